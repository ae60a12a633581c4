// Where threads run: on which cores, and what a bare message between two cores takes.
// Used by the store benchmark.
#pragma once

#include <sys/types.h>

#include <optional>

namespace millrace::bench {

/// The cores on which two processes run, while this lives: all threads of this process on one core,
/// all of another one on the same core or another one. Threads that they start later run there,
/// too.
class on_cores {
public:
  /// Errors:  throws `millrace::error` when the system refuses.
  on_cores(unsigned own_core, pid_t other, unsigned others_core);
  /// Gives all cores back.
  ~on_cores();
  on_cores(const on_cores&) = delete;
  on_cores& operator=(const on_cores&) = delete;

private:
  pid_t other_;
};

/// Returns how many cores this process may use.
unsigned cores_here();

/// Returns the seconds in which a cache line goes to a thread on another core and back, the median
/// of many: the least that a request and its answer can take. Nothing if there is one core.
std::optional<double> bare_message_s();

} // namespace millrace::bench
