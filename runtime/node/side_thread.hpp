// Threads for what takes long and must not hold up the thread that asks for it. Used by nodes and
// engines.
#pragma once

#include <millrace/core/status.hpp>

#include <functional>

namespace millrace::runtime {

/// Runs `work` on a thread of its own. At its exit the process waits for such threads, for ten
/// seconds at most; handlers that run after this wait run `work` themselves. An exception ends the
/// work, and is logged.
/// Errors:  throws `std::system_error` when there can be no other thread.
void run_aside(std::function<void()> work);

/// Returns an error once the process has begun to exit, and has waited for such threads: libraries
/// may have destroyed what a start needs.
status refused_at_exit();

} // namespace millrace::runtime
