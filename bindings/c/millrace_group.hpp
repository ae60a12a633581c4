// Groups in C++17. A part of millrace.hpp, which includes it.
#pragma once

#include "millrace.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace::abi {

inline namespace v0 {

/// A process's membership in a group, see `millrace_join_group`.
class group {
public:
  using handle = millrace_group;
  explicit group(detail::owned<millrace_group> of) : of_(std::move(of)) {}

  /// Joins. The request is over when all others have joined, too.
  static making<group> join(
    const client& by, const std::string& name, const millrace_group_options& options) {
    return {
      detail::begun(
        [&](auto** out) { return millrace_join_group(by.get(), name.c_str(), &options, out); }),
      millrace_request_group};
  }

  /// A `timeout` of 0 is the client's.
  request broadcast(
    const tensors& all, std::uint32_t root, std::chrono::milliseconds timeout = {}) const {
    return detail::begun([&](auto** out) {
      return millrace_group_broadcast(
        of_.get(), all.data(), all.size(), root, timeout.count(), out);
    });
  }
  request renew(std::chrono::milliseconds timeout = {}) const {
    return detail::begun(
      [&](auto** out) { return millrace_group_renew(of_.get(), timeout.count(), out); });
  }

  std::uint64_t epoch() const noexcept { return millrace_group_epoch(of_.get()); }
  /// Returns the ranks of the epoch.
  std::vector<std::uint32_t> ranks() const {
    std::vector<std::uint32_t> out(millrace_group_size(of_.get()));
    for (std::size_t i = 0; i < out.size(); ++i)
      check(millrace_group_rank(of_.get(), i, &out[i]));
    return out;
  }

private:
  detail::owned<millrace_group> of_;
};

} // namespace v0

} // namespace millrace::abi
