// A process that loads each version of the weights into memory of its own: this program, started
// again with --follow. Used by the weights section.
#pragma once

#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/model_table.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace millrace::bench {

inline constexpr auto follow_option = "--follow";
inline constexpr auto weights_name = "policy";

/// Returns the tensors that the publisher and the followers have.
model_table weights_table(std::uint64_t size_bytes);

/// Writes bytes that tell the version and their place. `memory` has whole words of 8 bytes.
void stamp(std::span<std::byte> memory, std::uint64_t version);

/// Returns whether all bytes are those that `stamp` writes.
bool is_stamped(std::span<std::byte> memory, std::uint64_t version);

class follower_process {
public:
  /// Starts the process, and waits until it follows.
  /// Errors:  throws `millrace::error`.
  follower_process(const std::string& address, std::uint64_t size_bytes);

  /// Waits until the process has loaded the version. Returns when the load ended, in nanoseconds of
  /// the host's monotonic clock.
  /// Errors:  throws `millrace::error`, for another version, too.
  std::int64_t loaded_at_ns(std::uint64_t version);

  /// Has the process compare all bytes, after each version. It loads no other one before.
  /// Errors:  throws `millrace::error`, for wrong bytes, too.
  void check();

private:
  child process_;
};

/// Runs the child's side until it is ended. Returns the exit status of a failure.
int follow(const std::string& address, std::uint64_t size_bytes);

/// Returns the time of the host's monotonic clock, which all its processes share.
std::int64_t monotonic_ns();

} // namespace millrace::bench
