// A process in a group, which broadcasts as it is told: this program, started again with --member.
// Used by the groups section.
#pragma once

#include <millrace/bench/common/child.hpp>

#include <cstdint>
#include <string>

namespace millrace::bench {

inline constexpr auto member_option = "--member";

class member_process {
public:
  /// Starts a process that joins a group at a service. `joined` waits until it has.
  /// Errors:  throws `millrace::error`, as all calls do.
  member_process(
    const std::string& address, const std::string& group, std::uint32_t rank, std::uint32_t size);
  void joined();

  /// Begins so many broadcasts from rank 0, one after the other, of as many bytes each.
  void begin(std::uint64_t size_bytes, std::uint64_t count);

  /// When the first one began and the last one had ended here, by the host's monotonic clock.
  struct span_ns {
    std::int64_t begun = 0, ended = 0;
  };
  /// Waits for the end. All bytes have been compared then.
  span_ns end();

private:
  child process_;
};

/// Runs the child's side until it is ended. Returns the exit status.
int broadcast_as_member(char** arguments);

} // namespace millrace::bench
