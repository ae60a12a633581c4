// How a test says what this machine cannot do.
#pragma once

#include <string>

namespace millrace::testing {

/// Says aloud that the running test leaves out `what`, and why: "low space: a device is as large as
/// it is". The test then counts as skipped, never as passed. A program whose tests all skip ends
/// with status 77.
void skipped(const std::string& what);

} // namespace millrace::testing
