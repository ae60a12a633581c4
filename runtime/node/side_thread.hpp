// Threads for what takes long and must not hold up the thread that asks for it. Used by nodes and
// engines.
#pragma once

#include <functional>

namespace millrace::runtime {

/// Runs `work` on a thread of its own. Before the process ends it waits for such threads, for ten
/// seconds at most. An exception ends the work, and is logged.
/// Errors:  throws `std::system_error` when there can be no other thread.
void run_aside(std::function<void()> work);

} // namespace millrace::runtime
