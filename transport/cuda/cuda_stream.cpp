// Host functions tell that a stream has come to a point; streams wait for words of pinned memory.
#include <millrace/transport/cuda/cuda_stream.hpp>

#include <atomic>
#include <utility>

namespace millrace::transport::cuda {

namespace {

// A device has channels for some streams at a time. Those that wait keep theirs, and where none is
// left, the copies for which they wait stand still, see docs/decisions/028-streams.md.
constexpr std::size_t held_max = 4;

// Makes the stream's context current while it lives.
class in_context_of {
public:
  in_context_of(const driver_api& api, CUstream stream) : api_(api) {
    CUcontext own = nullptr;
    code_ = api.stream_get_context(stream, &own);
    if (code_ == CUDA_SUCCESS)
      code_ = api.context_push(own);
  }
  ~in_context_of() {
    CUcontext popped = nullptr;
    if (code_ == CUDA_SUCCESS)
      api_.context_pop(&popped);
  }
  in_context_of(const in_context_of&) = delete;
  in_context_of& operator=(const in_context_of&) = delete;
  CUresult code() const noexcept { return code_; }

private:
  const driver_api& api_;
  CUresult code_;
};

status refusal(const driver_api& api, CUresult code, const char* doing) {
  auto given = code == CUDA_ERROR_INVALID_HANDLE || code == CUDA_ERROR_INVALID_CONTEXT ||
    code == CUDA_ERROR_CONTEXT_IS_DESTROYED || code == CUDA_ERROR_NOT_INITIALIZED;
  return {
    given ? errc::invalid_argument : errc::io_error, "{} a CUDA stream: {}{}", doing,
    api.words_for(code),
    code == CUDA_ERROR_INVALID_CONTEXT ? "; the calling thread has no current context" : ""};
}

// What is put into a stream that is being captured runs when the graph does, any number of times.
status check_usable(const driver_api& api, CUstream stream, const char* doing) {
  if (!api.stream_wait_value)
    return {errc::unsupported, "{} a CUDA stream takes a driver of CUDA 11.7 or later", doing};
  auto capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  if (auto code = api.stream_is_capturing(stream, &capturing); code != CUDA_SUCCESS)
    return refusal(api, code, doing);
  if (capturing != CU_STREAM_CAPTURE_STATUS_NONE)
    return {errc::invalid_argument, "{} a CUDA stream that is being captured into a graph", doing};
  return {};
}

constexpr auto waiting = "waiting for";
constexpr auto holding = "holding back";

} // namespace

status when_reached(const driver_api& api, CUstream stream, std::function<void()> reached) {
  in_context_of here{api, stream};
  if (here.code() != CUDA_SUCCESS)
    return refusal(api, here.code(), waiting);
  if (auto bad = check_usable(api, stream, waiting); !bad.ok())
    return bad;
  auto call = [](void* f) {
    std::unique_ptr<std::function<void()>> owned{static_cast<std::function<void()>*>(f)};
    (*owned)();
  };
  auto owned = std::make_unique<std::function<void()>>(std::move(reached));
  auto code = api.launch_host_function(stream, call, owned.get());
  if (code != CUDA_SUCCESS)
    return refusal(api, code, waiting);
  static_cast<void>(owned.release()); // the device's now
  return {};
}

class stream_holds::gate : public stream_gate {
public:
  gate(std::shared_ptr<stream_holds> of, const word& w) : of_(std::move(of)), word_(w) {}
  ~gate() override { open(); }
  gate(const gate&) = delete;
  gate& operator=(const gate&) = delete;

  void open() noexcept override {
    if (opened_.exchange(true))
      return;
    std::atomic_ref{*word_.host}.store(word_.passes);
    of_->give_back(word_);
  }

private:
  const std::shared_ptr<stream_holds> of_;
  const word word_;
  std::atomic<bool> opened_ = false;
};

result<std::shared_ptr<stream_gate>> stream_holds::hold(CUstream stream) {
  in_context_of here{api_, stream};
  if (here.code() != CUDA_SUCCESS)
    return fail(refusal(api_, here.code(), holding));
  if (auto bad = check_usable(api_, stream, holding); !bad.ok())
    return fail(bad);
  auto taken = take();
  if (!taken)
    return fail(taken.error());
  auto code =
    api_.stream_wait_value(stream, taken->device, taken->passes, CU_STREAM_WAIT_VALUE_GEQ);
  if (code != CUDA_SUCCESS) {
    give_back(*taken);
    return fail(refusal(api_, code, holding));
  }
  return std::shared_ptr<stream_gate>{std::make_shared<gate>(shared_from_this(), *taken)};
}

// The word of an earlier gate has the value that the earlier stream waits for, or a larger one.
result<stream_holds::word> stream_holds::take() {
  std::lock_guard guard{mutex_};
  if (auto made = make_words(); !made.ok())
    return fail(made);
  if (free_.empty())
    return fail(errc::busy, "{} CUDA streams are held back, and no more at a time", held_max);
  auto w = free_.back();
  free_.pop_back();
  ++w.passes;
  return w;
}

void stream_holds::give_back(const word& w) {
  std::lock_guard guard{mutex_};
  free_.push_back(w);
}

// Called with `mutex_` held, in a context.
status stream_holds::make_words() {
  if (made_)
    return {};
  void* host = nullptr;
  CUdeviceptr device = 0;
  auto code = api_.host_alloc(
    &host, held_max * sizeof(std::uint32_t), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (code == CUDA_SUCCESS)
    code = api_.host_device_pointer(&device, host, 0);
  if (code != CUDA_SUCCESS)
    return refusal(api_, code, holding);
  for (std::size_t i = 0; i < held_max; ++i) {
    auto* at = static_cast<std::uint32_t*>(host) + i;
    *at = 0;
    free_.push_back({at, device + i * sizeof(std::uint32_t), 0});
  }
  made_ = true;
  return {};
}

} // namespace millrace::transport::cuda
