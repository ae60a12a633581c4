// Copies on our own streams in the primary context, which the program's own CUDA code uses, too.
#include <millrace/transport/cuda/cuda_memory.hpp>
#include <millrace/transport/cuda/cuda_stream.hpp>
#include <millrace/transport/cuda/driver_api.hpp>

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>

namespace millrace::transport {

namespace {

using namespace cuda;

constexpr std::uint64_t pitch_bytes_max = 0x7fff'ffff; // supported by every device

// Rows of equal length at equal distances on each side: one command instead of many.
struct rows {
  device_run first;
  std::uint64_t count = 1;
  std::uint64_t device_pitch = 0;
  std::uint64_t host_pitch = 0;
};

CUdeviceptr address_of(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

// The allocation in which a run begins. *Problem*: the driver refuses commands that leave it, and
// tensors of several allocations may lie side by side, or at equal distances.
struct allocation {
  CUdeviceptr begin = 0, end = 0;

  CUresult find(const driver_api& api, const std::byte* data) {
    auto at = address_of(data);
    if (at >= begin && at < end)
      return CUDA_SUCCESS;
    std::size_t length = 0;
    auto code = api.address_range(&begin, &length, at);
    end = code == CUDA_SUCCESS ? begin + length : begin;
    return code;
  }

  std::uint64_t from(const std::byte* data) const { return end - address_of(data); }
  bool holds(const device_run& r) const {
    auto at = address_of(r.device);
    return at >= begin && at < end && r.length <= end - at;
  }
};

// Returns the rows with which `runs` begins. They lie in one allocation.
rows rows_at(std::span<const device_run> runs, const allocation& within) {
  rows out{runs[0]};
  auto length = runs[0].length;
  if (runs.size() == 1 || runs[1].length != length)
    return out;
  auto device_pitch = address_of(runs[1].device) - address_of(runs[0].device);
  auto host_pitch = address_of(runs[1].host) - address_of(runs[0].host);
  auto fits = [&](std::uint64_t pitch) { return pitch >= length && pitch <= pitch_bytes_max; };
  // The rows go backwards or overlap.
  if (!fits(device_pitch) || !fits(host_pitch) || !within.holds(runs[0]))
    return out;
  out.device_pitch = device_pitch;
  out.host_pitch = host_pitch;
  while (out.count < runs.size() && runs[out.count].length == length &&
         runs[out.count].device == runs[0].device + out.count * device_pitch &&
         runs[out.count].host == runs[0].host + out.count * host_pitch &&
         within.holds(runs[out.count]))
    ++out.count;
  return out;
}

class cuda_memory : public device_memory, public std::enable_shared_from_this<cuda_memory> {
public:
  cuda_memory(const driver_api& api, int ordinal)
    : api_(api), ordinal_(ordinal), name_(fmt::format("cuda:{}", ordinal)) {}

  const std::string& name() const noexcept override { return name_; }
  std::string_view kind() const noexcept override { return "cuda"; }
  std::string pci_address() const override {
    char text[32];
    std::snprintf(
      text, sizeof(text), "%04x:%02x:%02x.0", attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
      attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID), attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
    return text;
  }

  status copy(std::span<const device_run> runs, device_way way) override {
    in_context here{*this};
    if (!here.ok())
      return error(here.code, "copying");
    auto l = take_lane();
    if (!l)
      return l.error();
    auto code = enqueue(*l, runs, way);
    if (code == CUDA_SUCCESS)
      code = api_.event_record(l->event, l->stream);
    if (code == CUDA_SUCCESS)
      code = api_.event_synchronize(l->event);
    // Commands issued before the failure may still run.
    if (code != CUDA_SUCCESS)
      api_.stream_synchronize(l->stream);
    std::lock_guard guard{mutex_};
    lanes_.push_back(*l);
    return code == CUDA_SUCCESS ? status{} : error(code, "copying");
  }

  result<dma_buf> export_range(std::byte* data, std::uint64_t length) override {
    in_context here{*this};
    if (!here.ok())
      return fail(error(here.code, "exporting memory"));
    if (!api_.handle_for_range || !attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED))
      return fail(
        errc::unsupported, name_ + " exports no dma-buf (it takes the open kernel modules)");
    // This keeps the order between the device's own synchronous copies and RDMA access to the
    // memory.
    unsigned int on = 1;
    api_.pointer_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address_of(data));
    auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    auto offset = address_of(data) % page;
    auto whole = (offset + length + page - 1) / page * page;
    int fd = -1;
    auto code = api_.handle_for_range(
      &fd, address_of(data) - offset, whole, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (code != CUDA_SUCCESS)
      return fail(errc::unsupported, error(code, "exporting memory").detail());
    return dma_buf{net::unique_fd{fd}, offset};
  }

  bool peer_memory() const noexcept override {
    return access("/sys/module/nvidia_peermem", F_OK) == 0;
  }

  result<std::shared_ptr<void>> pin(std::byte* host, std::uint64_t length) override {
    in_context here{*this};
    auto code =
      here.ok() ? api_.host_register(host, length, CU_MEMHOSTREGISTER_PORTABLE) : here.code;
    if (code == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
      return std::shared_ptr<void>{};
    if (code != CUDA_SUCCESS)
      return fail(error(code, "pinning host memory"));
    return std::shared_ptr<void>{host, [self = shared_from_this()](void* data) {
                                   in_context there{*self};
                                   self->api_.host_unregister(data);
                                 }};
  }

  result<memory_block> allocate(std::uint64_t size_bytes) override {
    in_context here{*this};
    CUdeviceptr at = 0;
    auto code = here.ok() ? api_.mem_alloc(&at, size_bytes) : here.code;
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
      return fail(errc::no_space, "{} has no {} bytes of memory left", name_, size_bytes);
    if (code != CUDA_SUCCESS)
      return fail(error(code, "making memory"));
    auto* data = reinterpret_cast<std::byte*>(at);
    auto free = [self = shared_from_this()](void* made) {
      in_context there{*self};
      if (there.ok())
        self->api_.mem_free(address_of(static_cast<std::byte*>(made)));
    };
    return memory_block{data, size_bytes, std::shared_ptr<void>{data, std::move(free)}};
  }

  status when_reached(void* stream, std::function<void()> reached) override {
    in_context here{*this};
    return here.ok() ? cuda::when_reached(api_, static_cast<CUstream>(stream), std::move(reached))
                     : error(here.code, "waiting for a stream");
  }

  status drain() override {
    in_context here{*this};
    auto code = here.ok() ? api_.context_synchronize() : here.code;
    return code == CUDA_SUCCESS ? status{} : error(code, "waiting for all work");
  }

  void settle() noexcept override {
    in_context here{*this};
    if (here.ok() && api_.flush_writes)
      api_.flush_writes(
        CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
        CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
  }

private:
  struct lane {
    CUstream stream = nullptr;
    CUevent event = nullptr;
  };

  // Makes the primary context current while it lives.
  struct in_context {
    explicit in_context(cuda_memory& m) : api(m.api_), code(m.enter()) {}
    ~in_context() {
      CUcontext popped = nullptr;
      if (ok())
        api.context_pop(&popped);
    }
    in_context(const in_context&) = delete;
    in_context& operator=(const in_context&) = delete;
    bool ok() const { return code == CUDA_SUCCESS; }

    const driver_api& api;
    CUresult code;
  };

  CUresult enter() {
    CUcontext context = nullptr;
    {
      std::lock_guard guard{mutex_};
      if (!context_) {
        CUdevice device{};
        auto code = api_.device_get(&device, ordinal_);
        if (code == CUDA_SUCCESS)
          code = api_.primary_context_retain(&context_, device);
        if (code != CUDA_SUCCESS)
          return code;
      }
      context = context_;
    }
    return api_.context_push(context);
  }

  int attribute(CUdevice_attribute which) const {
    CUdevice device{};
    int value = 0;
    auto known = api_.device_get(&device, ordinal_) == CUDA_SUCCESS &&
      api_.device_get_attribute(&value, which, device) == CUDA_SUCCESS;
    return known ? value : 0;
  }

  // There are as many lanes as copies at one time.
  result<lane> take_lane() {
    std::lock_guard guard{mutex_};
    if (!lanes_.empty()) {
      auto l = lanes_.back();
      lanes_.pop_back();
      return l;
    }
    lane made;
    auto code = api_.stream_create(&made.stream, CU_STREAM_NON_BLOCKING);
    // A waiting thread sleeps: a thread that spins would take a core from the trainer.
    if (code == CUDA_SUCCESS)
      code = api_.event_create(&made.event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
    if (code != CUDA_SUCCESS)
      return fail(error(code, "making a stream"));
    return made;
  }

  CUresult enqueue(const lane& l, std::span<const device_run> runs, device_way way) const {
    allocation within;
    while (!runs.empty()) {
      auto code = within.find(api_, runs[0].device);
      if (code != CUDA_SUCCESS)
        return code;
      auto r = rows_at(runs, within);
      code = r.count == 1 ? enqueue_run(l, r.first, way, within) : enqueue_rows(l, r, way);
      if (code != CUDA_SUCCESS)
        return code;
      runs = runs.subspan(r.count);
    }
    return CUDA_SUCCESS;
  }

  CUresult enqueue_run(const lane& l, device_run r, device_way way, allocation& within) const {
    auto out = way == device_way::to_host;
    while (r.length > 0) {
      auto code = within.find(api_, r.device);
      auto part = std::min(r.length, within.from(r.device));
      if (code == CUDA_SUCCESS)
        code = api_.memcpy_async(
          address_of(out ? r.host : r.device), address_of(out ? r.device : r.host), part, l.stream);
      if (code != CUDA_SUCCESS)
        return code;
      r = {r.device + part, r.host + part, r.length - part};
    }
    return CUDA_SUCCESS;
  }

  CUresult enqueue_rows(const lane& l, const rows& r, device_way way) const {
    CUDA_MEMCPY2D m{};
    m.WidthInBytes = r.first.length;
    m.Height = r.count;
    if (way == device_way::to_host) {
      m.srcMemoryType = CU_MEMORYTYPE_DEVICE;
      m.srcDevice = address_of(r.first.device);
      m.srcPitch = r.device_pitch;
      m.dstMemoryType = CU_MEMORYTYPE_HOST;
      m.dstHost = r.first.host;
      m.dstPitch = r.host_pitch;
    } else {
      m.srcMemoryType = CU_MEMORYTYPE_HOST;
      m.srcHost = r.first.host;
      m.srcPitch = r.host_pitch;
      m.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      m.dstDevice = address_of(r.first.device);
      m.dstPitch = r.device_pitch;
    }
    return api_.memcpy_2d_async(&m, l.stream);
  }

  status error(CUresult code, const char* doing) const {
    return {errc::io_error, "{}: {}: {}", name_, doing, api_.words_for(code)};
  }

  const driver_api& api_;
  const int ordinal_;
  const std::string name_;
  std::mutex mutex_;
  CUcontext context_ = nullptr;
  std::vector<lane> lanes_; // not in use
};

class cuda_kind : public device_kind {
public:
  std::string_view name() const noexcept override { return "cuda"; }

  std::shared_ptr<device_memory> find(const std::byte* data) override {
    auto* api = loaded_driver();
    if (!api)
      return nullptr;
    auto where = address_of(data);
    // Also fails where no code of this process has started CUDA.
    unsigned int type = 0;
    auto known = api->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, where);
    if (known != CUDA_SUCCESS || type != CU_MEMORYTYPE_DEVICE)
      return nullptr;
    unsigned int managed = 0;
    api->pointer_get_attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, where);
    if (managed != 0)
      return nullptr;
    int ordinal = 0;
    api->pointer_get_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, where);
    return memory_of(*api, ordinal);
  }

  result<std::vector<device_facts>> examine() override {
    auto driver = start();
    if (!driver)
      return fail(driver.error());
    std::vector<device_facts> out;
    out.reserve(static_cast<std::size_t>(driver->count));
    for (int i = 0; i < driver->count; ++i)
      out.push_back(facts_of(*driver->api, i));
    return out;
  }

  result<std::shared_ptr<device_memory>> open(std::uint32_t number) override {
    auto driver = start();
    if (!driver)
      return fail(driver.error());
    if (number >= static_cast<std::uint32_t>(driver->count))
      return fail(
        errc::not_found, "no device cuda:{}; this process sees {} CUDA devices", number,
        driver->count);
    return memory_of(*driver->api, static_cast<int>(number));
  }

  status when_reached(void* stream, std::function<void()> reached) override {
    auto* api = loaded_driver();
    return api ? cuda::when_reached(*api, static_cast<CUstream>(stream), std::move(reached))
               : not_in_use();
  }

  result<std::shared_ptr<stream_gate>> hold(void* stream) override {
    auto* api = loaded_driver();
    if (!api)
      return fail(not_in_use());
    auto holds = [&] {
      std::lock_guard guard{mutex_};
      if (!holds_)
        holds_ = std::make_shared<stream_holds>(*api);
      return holds_;
    }();
    return holds->hold(static_cast<CUstream>(stream));
  }

private:
  struct started {
    const driver_api* api = nullptr;
    int count = 0; // of devices
  };

  static result<started> start() {
    std::string why;
    started out{load_driver(why)};
    if (!out.api)
      return fail(errc::unavailable, why);
    auto code = out.api->init(0);
    if (code == CUDA_SUCCESS)
      code = out.api->device_get_count(&out.count);
    if (code != CUDA_SUCCESS)
      return fail(
        errc::unavailable, "the NVIDIA driver does not start: " + out.api->words_for(code));
    return out;
  }

  static status not_in_use() {
    return {errc::invalid_argument, "a CUDA stream, and this process does not use CUDA"};
  }

  device_facts facts_of(const driver_api& api, int ordinal) {
    auto m = memory_of(api, ordinal);
    device_facts out{m->name(), {}, 0, false, m->peer_memory(), m->pci_address()};
    CUdevice device{};
    if (api.device_get(&device, ordinal) != CUDA_SUCCESS)
      return out;
    char model[128] = "";
    std::size_t bytes = 0;
    int exports = 0;
    api.device_get_name(model, sizeof(model) - 1, device);
    api.device_total_mem(&bytes, device);
    api.device_get_attribute(&exports, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device);
    out.model = model;
    out.size_bytes = bytes;
    out.dma_buf = exports != 0 && api.handle_for_range;
    return out;
  }

  std::shared_ptr<device_memory> memory_of(const driver_api& api, int ordinal) {
    std::lock_guard guard{mutex_};
    auto& m = devices_[ordinal];
    if (!m)
      m = std::make_shared<cuda_memory>(api, ordinal);
    return m;
  }

  std::mutex mutex_;
  std::map<int, std::shared_ptr<device_memory>> devices_;
  std::shared_ptr<stream_holds> holds_;
};

} // namespace

std::shared_ptr<device_kind> make_cuda_kind() { return std::make_shared<cuda_kind>(); }

} // namespace millrace::transport
