// Weights by version in C++17. A part of millrace.hpp, which includes it.
#pragma once

#include "millrace.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace millrace::abi {

inline namespace v0 {

/// Publishes tensors that stay at their addresses, see `millrace_publish`.
class publisher {
public:
  using handle = millrace_publisher;
  publisher(
    const client& by, const std::string& weights, const tensors& all,
    const millrace_publisher_options* options = nullptr)
    : of_(detail::made<millrace_publisher>([&](auto** out) {
        return millrace_publisher_create(
          by.get(), weights.c_str(), all.data(), all.size(), options, out);
      })) {}

  /// The tensors may change; followers can load them.
  struct publication {
    request staged, stored;
  };
  publication publish(std::uint64_t version) const {
    millrace_request *staged = nullptr, *stored = nullptr;
    check(millrace_publish(of_.get(), version, &staged, &stored));
    return {
      request{detail::owned<millrace_request>{staged}},
      request{detail::owned<millrace_request>{stored}}};
  }
  void rebind(const tensors& moved) const {
    check(millrace_publisher_rebind(of_.get(), moved.data(), moved.size()));
  }

private:
  detail::owned<millrace_publisher> of_;
};

/// Follows publications, and loads them, see `millrace_follower_next`. The receipt of a request has
/// the number of the publication as `step`.
class follower {
public:
  using handle = millrace_follower;
  follower(const client& by, const std::string& weights, const char* group = nullptr)
    : of_(detail::made<millrace_follower>(
        [&](auto** out) { return millrace_follow(by.get(), group, weights.c_str(), out); })) {}

  /// A `timeout` of 0 is the client's.
  request next(std::chrono::milliseconds timeout = {}) const {
    return detail::begun(
      [&](auto** out) { return millrace_follower_next(of_.get(), timeout.count(), out); });
  }
  request load(const tensors& into, std::chrono::milliseconds timeout = {}) const {
    return detail::begun([&](auto** out) {
      return millrace_follower_load(of_.get(), into.data(), into.size(), timeout.count(), out);
    });
  }

private:
  detail::owned<millrace_follower> of_;
};

} // namespace v0

} // namespace millrace::abi
