// Transfers that belong together, with regions of many owners. Called by readers and writers of
// working sets.
#pragma once

#include <millrace/transport/fabric.hpp>

#include <vector>

namespace millrace::transport {

/// Submits all transfers of a batch, and reports once. `done` runs when none of them is in flight
/// any more, with the error that came first.
///
/// The ops are shared with the drivers, not copied. Put the ops of one region into one transfer:
/// each transfer is a message, or a list of work requests, of its own.
/// Errors:  those of `fabric::submit`. Threads: any.
void submit_all(fabric& by, std::vector<transfer> batch, completion<void> done);

} // namespace millrace::transport
