// The memory of NVIDIA GPUs as device memory.
// Registered by `builtin`.
#pragma once

#include <millrace/transport/memory/device_memory.hpp>

#include <memory>

namespace millrace::transport {

/// Finds pointers into GPU memory, as `cudaMalloc` and its relatives return them. Managed memory
/// and pinned host memory count as host memory. It never starts CUDA in a process that does not use
/// it, since a child forked later could then not use CUDA. It needs no NVIDIA software on the
/// machine.
///
/// Copies run on streams of their own and do not wait for other work: work that fills a tensor must
/// have ended before the tensor is given to Millrace, which `when_reached` tells.
std::shared_ptr<device_kind> make_cuda_kind();

} // namespace millrace::transport
