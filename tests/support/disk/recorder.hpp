// Tells a program what it does to its files. Used by tests into which recorder.cpp is linked.
#pragma once

#include <millrace/tests/support/disk/events.hpp>

#include <functional>
#include <string>

namespace millrace::testing::disk {

/// Called after each change of a file, and each sync, on the thread that made it, with a lock held.
/// It must not throw.
using event_listener = std::function<void(const event&)>;

/// Notes what happens below `root`, a directory that is empty. A null `listener` ends it.
void listen_to(const std::string& root, event_listener listener);

} // namespace millrace::testing::disk
