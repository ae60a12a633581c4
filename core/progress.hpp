// The progress of long operations. Reported by storage and by preloads of training data.
#pragma once

#include <cstdint>
#include <functional>

namespace millrace {

/// Receives the progress of a long operation: done and total bytes. A total of 0 means that the
/// total is not known. Returns false to stop the operation. Any thread.
using progress_callback = std::function<bool(std::uint64_t done, std::uint64_t total)>;

} // namespace millrace
