// A stream of a device's work, as its vendor's library hands it out.
// Passed to checkpointers, so that saves keep the order of a trainer's own work.
#pragma once

#include <string_view>

namespace millrace {

/// The work of a device that runs in the order in which it was given to the device. It must exist
/// during the call that takes it.
struct device_stream {
  /// `cudaStream_t` or `CUstream`; null is CUDA's default stream of the calling thread's context.
  void* handle = nullptr;
  /// The name of the kind of device.
  std::string_view kind = "cuda";
};

} // namespace millrace
