// Stands in for NVIDIA's driver library in tests, loaded as libcuda.so.1. It has two devices, whose
// memory is a mapping without any access, so that following a pointer into it crashes. Each stream
// has a thread, so work in it is as asynchronous as on a device.
// It has only the functions that `transport/cuda` and its tests call.
#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t memory_bytes = 64u << 20; // per device

struct device_state {
  char* view = nullptr;   // no access
  char* shadow = nullptr; // the same pages
  std::size_t used = 0;
  std::map<CUdeviceptr, std::size_t> allocations;

  // Null where there is no room.
  char* allocate(std::size_t bytes) {
    auto whole = (bytes + 511) / 512 * 512;
    if (used + whole > memory_bytes)
      return nullptr;
    auto* at = view + used;
    used += whole;
    allocations[reinterpret_cast<CUdeviceptr>(at)] = bytes;
    return at;
  }
};

// Streams live as long as the process.
class stream_state {
public:
  stream_state() {
    std::lock_guard guard{all_mutex};
    all.push_back(this);
    std::thread{[this] { run(); }}.detach();
  }

  static void wait_for_all() {
    std::unique_lock lock{all_mutex};
    auto streams = all;
    lock.unlock();
    for (auto* one : streams)
      one->wait();
  }

  void put(std::function<void()> work) {
    std::lock_guard guard{mutex_};
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [this] { return work_.empty(); });
  }

  std::atomic<bool> capturing = false;

private:
  [[noreturn]] void run() {
    std::unique_lock lock{mutex_};
    while (true) {
      changed_.wait(lock, [this] { return !work_.empty(); });
      auto work = work_.front();
      lock.unlock();
      work();
      lock.lock();
      work_.pop_front(); // now it is done
      changed_.notify_all();
    }
  }

  static inline std::mutex all_mutex;
  static inline std::vector<stream_state*> all;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
};

struct event_state {
  std::mutex mutex;
  std::condition_variable changed;
  unsigned asked = 0, reached = 0;
};

struct driver_state {
  std::mutex mutex;
  stream_state* default_stream = nullptr;
  bool started = false;
  device_state devices[2];
  std::map<const void*, std::size_t> pinned;
  std::atomic<int> fail_with = 0;
  std::atomic<unsigned> copies = 0, copies_2d = 0;
  int dma_buf = -1;
};

driver_state& driver() {
  static driver_state d;
  return d;
}

thread_local int current_context = 0; // device + 1
thread_local std::vector<int> contexts_below;

int device_of(CUdeviceptr at) {
  auto* p = reinterpret_cast<char*>(at);
  for (int i = 0; i < 2; ++i) {
    auto* view = driver().devices[i].view;
    if (view && p >= view && p < view + memory_bytes)
      return i;
  }
  return -1;
}

char* reach(CUdeviceptr at) {
  auto i = device_of(at);
  auto* p = reinterpret_cast<char*>(at);
  return i < 0 ? p : driver().devices[i].shadow + (p - driver().devices[i].view);
}

// The begin and the length of the allocation; no length: there is none.
std::pair<CUdeviceptr, std::size_t> allocation_of(CUdeviceptr at) {
  auto i = device_of(at);
  if (i < 0)
    return {};
  auto& all = driver().devices[i].allocations;
  auto next = all.upper_bound(at);
  if (next == all.begin() || at - std::prev(next)->first >= std::prev(next)->second)
    return {};
  return *std::prev(next);
}

// As on a device, one copy does not leave an allocation.
bool can_copy(CUdeviceptr at, std::size_t bytes) {
  if (device_of(at) < 0)
    return true;
  std::lock_guard guard{driver().mutex};
  auto [begin, length] = allocation_of(at);
  return length > 0 && bytes <= begin + length - at;
}

stream_state& stream_of(CUstream stream) {
  auto& d = driver();
  if (stream)
    return *reinterpret_cast<stream_state*>(stream);
  std::lock_guard guard{d.mutex};
  if (!d.default_stream)
    d.default_stream = new stream_state;
  return *d.default_stream;
}

event_state& event_of(CUevent event) { return *reinterpret_cast<event_state*>(event); }

CUresult ready() {
  if (auto code = driver().fail_with.load())
    return static_cast<CUresult>(code);
  return current_context == 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

} // namespace

extern "C" {

void* fake_cuda_allocate(int device, std::size_t size_bytes) {
  std::lock_guard guard{driver().mutex};
  return driver().devices[device].allocate(size_bytes);
}
void* fake_cuda_shadow(void* at) { return reach(reinterpret_cast<CUdeviceptr>(at)); }
void fake_cuda_fail_with(int code) { driver().fail_with = code; }
void fake_cuda_export_as(int fd) { driver().dma_buf = fd; }
unsigned fake_cuda_copies() { return driver().copies; }
unsigned fake_cuda_copies_2d() { return driver().copies_2d; }
unsigned fake_cuda_pins() {
  std::lock_guard guard{driver().mutex};
  return static_cast<unsigned>(driver().pinned.size());
}

CUresult CUDAAPI cuInit(unsigned int) {
  auto& d = driver();
  std::lock_guard guard{d.mutex};
  if (d.started)
    return CUDA_SUCCESS;
  for (auto& device : d.devices) {
    int fd = memfd_create("fake GPU", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, memory_bytes) != 0)
      return CUDA_ERROR_OUT_OF_MEMORY;
    device.view = static_cast<char*>(mmap(nullptr, memory_bytes, PROT_NONE, MAP_SHARED, fd, 0));
    device.shadow =
      static_cast<char*>(mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
  }
  d.started = true;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult code, const char** out) {
  *out = code == CUDA_ERROR_LAUNCH_FAILED ? "unspecified launch failure" : "some failure";
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetCount(int* count) {
  *count = 2;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceTotalMem(std::size_t* bytes, CUdevice) {
  *bytes = memory_bytes;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = which == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED && driver().dma_buf >= 0;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  contexts_below.push_back(current_context);
  current_context = static_cast<int>(reinterpret_cast<std::uintptr_t>(context));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxPopCurrent(CUcontext*) {
  if (current_context == 0 || contexts_below.empty())
    return CUDA_ERROR_INVALID_CONTEXT;
  current_context = contexts_below.back();
  contexts_below.pop_back();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSynchronize() {
  stream_state::wait_for_all();
  return ready();
}
CUresult CUDAAPI cuPointerGetAttribute(void* out, CUpointer_attribute which, CUdeviceptr at) {
  if (!driver().started)
    return CUDA_ERROR_NOT_INITIALIZED;
  auto device = device_of(at);
  if (device < 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
    *static_cast<unsigned int*>(out) = CU_MEMORYTYPE_DEVICE;
  else if (which == CU_POINTER_ATTRIBUTE_IS_MANAGED)
    *static_cast<unsigned int*>(out) = 0;
  else if (which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
    *static_cast<int*>(out) = device;
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuPointerSetAttribute(const void*, CUpointer_attribute, CUdeviceptr) {
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned int) {
  *stream = reinterpret_cast<CUstream>(new stream_state);
  return ready();
}
CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
  stream_of(stream).wait();
  return ready();
}
CUresult CUDAAPI cuStreamGetCtx(CUstream, CUcontext* context) {
  if (!driver().started)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (current_context == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(current_context));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* out) {
  *out =
    stream_of(stream).capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return ready();
}
CUresult CUDAAPI cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  stream_of(stream).capturing = true;
  return ready();
}
CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  stream_of(stream).capturing = false;
  *graph = nullptr;
  return ready();
}
CUresult CUDAAPI cuLaunchHostFunc(CUstream stream, CUhostFn f, void* data) {
  stream_of(stream).put([f, data] { f(data); });
  return ready();
}
CUresult CUDAAPI
cuStreamWaitValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags) {
  if (flags != CU_STREAM_WAIT_VALUE_GEQ)
    return CUDA_ERROR_INVALID_VALUE;
  auto* word = reinterpret_cast<std::atomic<std::uint32_t>*>(reach(at));
  stream_of(stream).put([word, value] {
    while (static_cast<std::int32_t>(word->load() - value) < 0)
      std::this_thread::sleep_for(std::chrono::microseconds{100});
  });
  return ready();
}
CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned int) {
  *event = reinterpret_cast<CUevent>(new event_state);
  return ready();
}
CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  auto& e = event_of(event);
  std::lock_guard guard{e.mutex};
  stream_of(stream).put([&e, number = ++e.asked] {
    std::lock_guard lock{e.mutex};
    e.reached = number;
    e.changed.notify_all();
  });
  return ready();
}
CUresult CUDAAPI cuEventSynchronize(CUevent event) {
  auto& e = event_of(event);
  std::unique_lock lock{e.mutex};
  e.changed.wait(lock, [&] { return e.reached == e.asked; });
  return ready();
}

CUresult CUDAAPI
cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  ++driver().copies;
  if (!can_copy(to, bytes) || !can_copy(from, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  stream_of(stream).put([=] { std::memcpy(reach(to), reach(from), bytes); });
  return ready();
}
CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D* of, CUstream stream) {
  ++driver().copies_2d;
  auto from = of->srcMemoryType == CU_MEMORYTYPE_DEVICE ? of->srcDevice : (CUdeviceptr)of->srcHost;
  auto to = of->dstMemoryType == CU_MEMORYTYPE_DEVICE ? of->dstDevice : (CUdeviceptr)of->dstHost;
  auto span = [&](std::size_t pitch) { return (of->Height - 1) * pitch + of->WidthInBytes; };
  if (!can_copy(from, span(of->srcPitch)) || !can_copy(to, span(of->dstPitch)))
    return CUDA_ERROR_INVALID_VALUE;
  stream_of(stream).put([=, m = *of] {
    for (std::size_t row = 0; row < m.Height; ++row)
      std::memcpy(reach(to) + row * m.dstPitch, reach(from) + row * m.srcPitch, m.WidthInBytes);
  });
  return ready();
}
CUresult CUDAAPI
cuMemsetD32Async(CUdeviceptr at, unsigned int value, std::size_t count, CUstream stream) {
  stream_of(stream).put([=] {
    auto* words = reinterpret_cast<unsigned int*>(reach(at));
    for (std::size_t i = 0; i < count; ++i)
      words[i] = value;
  });
  return ready();
}
CUresult CUDAAPI cuMemAlloc(CUdeviceptr* at, std::size_t bytes) {
  if (current_context == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard guard{driver().mutex};
  auto* made = driver().devices[current_context - 1].allocate(bytes);
  *at = reinterpret_cast<CUdeviceptr>(made);
  return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* begin, std::size_t* bytes, CUdeviceptr at) {
  std::lock_guard guard{driver().mutex};
  std::tie(*begin, *bytes) = allocation_of(at);
  return *bytes > 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult CUDAAPI cuMemFree(CUdeviceptr) { return ready(); } // not used again
CUresult CUDAAPI cuMemHostAlloc(void** out, std::size_t bytes, unsigned int) {
  *out = ::operator new(bytes);
  return ready();
}
CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* out, void* host, unsigned int) {
  *out = reinterpret_cast<CUdeviceptr>(host);
  return ready();
}
CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  current_context = static_cast<int>(reinterpret_cast<std::uintptr_t>(context));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemHostRegister(void* host, std::size_t bytes, unsigned int) {
  std::lock_guard guard{driver().mutex};
  auto made = driver().pinned.emplace(host, bytes).second;
  return made ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
CUresult CUDAAPI cuMemHostUnregister(void* host) {
  std::lock_guard guard{driver().mutex};
  return driver().pinned.erase(host) > 0 ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
CUresult CUDAAPI cuMemGetHandleForAddressRange(
  void* handle, CUdeviceptr at, std::size_t bytes, CUmemRangeHandleType, unsigned long long) {
  if (at % 4096 != 0 || bytes % 4096 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int*>(handle) = dup(driver().dma_buf);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI
cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope) {
  return CUDA_SUCCESS;
}

} // extern "C"
