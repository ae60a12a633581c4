// NVIDIA's driver library, looked up at run time: the same build runs on machines without it.
// Used by `cuda_memory`.
#pragma once

#include <cuda.h>

#include <string>

namespace millrace::transport::cuda {

/// The library's functions, in the versions that the header names.
struct driver_api {
  decltype(&cuInit) init = nullptr;
  decltype(&cuGetErrorString) get_error_string = nullptr;
  decltype(&cuDeviceGetCount) device_get_count = nullptr;
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetName) device_get_name = nullptr;
  decltype(&cuDeviceTotalMem) device_total_mem = nullptr;
  decltype(&cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) primary_context_retain = nullptr;
  decltype(&cuCtxPushCurrent) context_push = nullptr;
  decltype(&cuCtxPopCurrent) context_pop = nullptr;
  decltype(&cuCtxSynchronize) context_synchronize = nullptr;
  decltype(&cuMemAlloc) mem_alloc = nullptr;
  decltype(&cuMemFree) mem_free = nullptr;
  decltype(&cuPointerGetAttribute) pointer_get_attribute = nullptr;
  decltype(&cuPointerSetAttribute) pointer_set_attribute = nullptr;
  decltype(&cuStreamCreate) stream_create = nullptr;
  decltype(&cuStreamSynchronize) stream_synchronize = nullptr;
  decltype(&cuStreamGetCtx) stream_get_context = nullptr;
  decltype(&cuStreamIsCapturing) stream_is_capturing = nullptr;
  decltype(&cuLaunchHostFunc) launch_host_function = nullptr;
  decltype(&cuEventCreate) event_create = nullptr;
  decltype(&cuEventRecord) event_record = nullptr;
  decltype(&cuEventSynchronize) event_synchronize = nullptr;
  decltype(&cuMemGetAddressRange) address_range = nullptr;
  decltype(&cuMemcpyAsync) memcpy_async = nullptr;
  decltype(&cuMemcpy2DAsync) memcpy_2d_async = nullptr;
  decltype(&cuMemHostAlloc) host_alloc = nullptr;
  decltype(&cuMemHostGetDevicePointer) host_device_pointer = nullptr;
  decltype(&cuMemHostRegister) host_register = nullptr;
  decltype(&cuMemHostUnregister) host_unregister = nullptr;
  // Older drivers lack these functions; they may be null.
  decltype(&cuMemGetHandleForAddressRange) handle_for_range = nullptr;
  decltype(&cuFlushGPUDirectRDMAWrites) flush_writes = nullptr;
  decltype(&cuStreamWaitValue32) stream_wait_value = nullptr;

  /// Returns the driver's text for a code, such as "out of memory".
  std::string words_for(CUresult code) const;
};

/// Returns the library if this process has loaded it, else null; then no pointer leads to a device.
/// This call is cheap.
const driver_api* loaded_driver();
/// Loads the library. Returns null and the reason if it is missing.
const driver_api* load_driver(std::string& why);

} // namespace millrace::transport::cuda
