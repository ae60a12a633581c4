// Memory of NVIDIA GPUs as device memory.
#pragma once

#include <millrace/transport/memory/device_memory.hpp>

#include <memory>

namespace millrace::transport {

/// Finds pointers into memory of GPUs, as `cudaMalloc` and its relatives return them; managed and pinned host memory
/// counts as the host's. It never starts CUDA in a process that does not use it (a child forked later could not use
/// it any more), and needs no NVIDIA software to be there.
///
/// Copies run on streams of their own and wait for nobody: work that fills a tensor must have ended before the tensor
/// is handed to Millrace.
std::shared_ptr<device_kind> make_cuda_kind();

} // namespace millrace::transport
