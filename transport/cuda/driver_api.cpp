// Looks up the functions of the library one by one.
#include <millrace/core/log.hpp>
#include <millrace/transport/cuda/driver_api.hpp>

#include <dlfcn.h>
#include <fmt/core.h>
#include <link.h>

#include <atomic>
#include <mutex>

namespace millrace::transport::cuda {

namespace {

constexpr auto library = "libcuda.so.1";

template <class F>
bool look_up(void* from, F& into, const char* name) {
  into = reinterpret_cast<F>(dlsym(from, name));
  return into != nullptr;
}

// The header renames most functions by macros to add a version. The argument must be expanded
// before it becomes a string.
#define TEXT_OF(name) #name
#define LOOK_UP(member, name) look_up(from, api.member, TEXT_OF(name)) // expands `name` first

bool look_up_all(void* from, driver_api& api) {
  LOOK_UP(handle_for_range, cuMemGetHandleForAddressRange);
  LOOK_UP(flush_writes, cuFlushGPUDirectRDMAWrites);
  LOOK_UP(stream_wait_value, cuStreamWaitValue32);
  return LOOK_UP(init, cuInit) && LOOK_UP(get_error_string, cuGetErrorString) &&
    LOOK_UP(device_get_count, cuDeviceGetCount) && LOOK_UP(device_get, cuDeviceGet) &&
    LOOK_UP(device_get_name, cuDeviceGetName) && LOOK_UP(device_total_mem, cuDeviceTotalMem) &&
    LOOK_UP(device_get_attribute, cuDeviceGetAttribute) &&
    LOOK_UP(primary_context_retain, cuDevicePrimaryCtxRetain) &&
    LOOK_UP(context_synchronize, cuCtxSynchronize) && LOOK_UP(mem_alloc, cuMemAlloc) &&
    LOOK_UP(mem_free, cuMemFree) && LOOK_UP(context_push, cuCtxPushCurrent) &&
    LOOK_UP(context_pop, cuCtxPopCurrent) &&
    LOOK_UP(pointer_get_attribute, cuPointerGetAttribute) &&
    LOOK_UP(pointer_set_attribute, cuPointerSetAttribute) &&
    LOOK_UP(stream_create, cuStreamCreate) && LOOK_UP(stream_synchronize, cuStreamSynchronize) &&
    LOOK_UP(event_create, cuEventCreate) && LOOK_UP(event_record, cuEventRecord) &&
    LOOK_UP(event_synchronize, cuEventSynchronize) && LOOK_UP(memcpy_async, cuMemcpyAsync) &&
    LOOK_UP(memcpy_2d_async, cuMemcpy2DAsync) && LOOK_UP(host_register, cuMemHostRegister) &&
    LOOK_UP(host_unregister, cuMemHostUnregister) && LOOK_UP(stream_get_context, cuStreamGetCtx) &&
    LOOK_UP(stream_is_capturing, cuStreamIsCapturing) &&
    LOOK_UP(launch_host_function, cuLaunchHostFunc) && LOOK_UP(host_alloc, cuMemHostAlloc) &&
    LOOK_UP(host_device_pointer, cuMemHostGetDevicePointer) &&
    LOOK_UP(address_range, cuMemGetAddressRange);
}

#undef LOOK_UP
#undef TEXT_OF

std::mutex mutex;
std::atomic<const driver_api*> found = nullptr;

// The caller holds the mutex. The library stays loaded.
const driver_api* resolve(void* handle) {
  static driver_api api;
  if (!found.load()) {
    if (look_up_all(handle, api))
      found = &api;
    else
      log().error("{} lacks functions of CUDA 11.3, so its devices' memory is not known", library);
  }
  return found;
}

// Returns how many libraries were ever loaded into this process.
unsigned long long libraries_loaded() {
  unsigned long long count = 0;
  auto first = [](dl_phdr_info* info, std::size_t, void* out) {
    *static_cast<unsigned long long*>(out) = info->dlpi_adds;
    return 1;
  };
  dl_iterate_phdr(first, &count);
  return count;
}

} // namespace

std::string driver_api::words_for(CUresult code) const {
  const char* words = nullptr;
  if (get_error_string(code, &words) != CUDA_SUCCESS || !words)
    return fmt::format("error {}", static_cast<int>(code));
  return words;
}

// *Problem*: this is called for every tensor, also on machines without a GPU, and a look-up takes
// some 10 µs. But the result can change only after another library has been loaded.
const driver_api* loaded_driver() {
  if (auto* api = found.load(std::memory_order_acquire))
    return api;
  static std::atomic<unsigned long long> looked_at = 0;
  auto now = libraries_loaded();
  if (looked_at.load() == now)
    return nullptr;
  std::lock_guard guard{mutex};
  auto* handle = dlopen(library, RTLD_NOLOAD | RTLD_NOW);
  auto* api = handle ? resolve(handle) : nullptr;
  // Stored after the look-up: a thread that sees the number may rely on its result.
  looked_at = now;
  return api;
}

const driver_api* load_driver(std::string& why) {
  std::lock_guard guard{mutex};
  auto* handle = dlopen(library, RTLD_NOW);
  if (!handle) {
    why = std::string{"no NVIDIA driver: "} + dlerror();
    return nullptr;
  }
  auto* api = resolve(handle);
  if (!api)
    why = std::string{library} + " is older than CUDA 11.3";
  return api;
}

} // namespace millrace::transport::cuda
