// A request: a future of any type, and what its value tells a C program.
// Made by the functions that begin operations.
#pragma once

#include "call.hpp"

#include <millrace/core/process_mark.hpp>
#include <millrace/runtime/client/broadcast_group.hpp>
#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/client/completion_queue.hpp>
#include <millrace/runtime/client/weights.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace::bindings {

/// What can be read of a request that has succeeded. It points into the value of the future.
struct findings {
  millrace_receipt receipt{};
  std::span<const std::uint8_t> extra;
  std::vector<millrace_model> models;
  std::vector<millrace_run> runs;
  std::vector<millrace_step> steps;
  std::vector<millrace_set> sets;
  std::vector<std::vector<const char*>> left_out; // of each set
  std::vector<millrace_stream_info> streams;
  std::vector<millrace_skipped_file> skipped;
  std::span<const std::uint64_t> numbers; // one for each sample that was asked for
  std::optional<millrace_set_damage> damage;
  std::vector<millrace_part_access> parts;
  const char* processors = nullptr;
  std::vector<millrace_tensor> tensors;
  std::span<const std::uint32_t> tensor_layers;
  /// The model that was described; null: none. Its layers are read when they are asked for, with
  /// the attributes of all of them, one after another, and their labels.
  const model_info* model = nullptr;
  std::vector<millrace_layer> layers;
  std::vector<millrace_pair> attributes;
  std::vector<std::string> labels;
  std::span<const std::pair<std::string, std::string>> metadata;
  std::span<const std::pair<std::string, std::string>> axes;
  std::vector<std::string> silent;
};

/// Whether the numbers of versions are steps.
enum class counted { versions, steps };

findings read(const receipt& r, counted by);
findings read(const load_receipt& r, counted by);
findings read(const global_load_receipt& r, counted by);
findings read(const save_receipt& r, counted by);
findings read(const model_record& r, counted by);
findings read(const model_info& r, counted by);
findings read(const checkpoint_summary& r, counted by);
findings read(const shard_spec& r, counted by);
findings read(const listed<model_summary>& r, counted by);
findings read(const listed<checkpoint_summary>& r, counted by);
findings read(const set_info& r, counted by);
findings read(const preloaded_set& r, counted by);
findings read(const listed<set_info>& r, counted by);
findings read(const std::vector<std::uint64_t>& numbers, counted by);
findings read(const set_damage& r, counted by);
findings read(const set_access& r, counted by);
findings read(const stream_status& r, counted by);
findings read(const listed<stream_status>& r, counted by);
findings read(const weights_version& r, counted by);
findings read(const broadcast_receipt& r, counted by);

/// Describes a working set, and a field of it, as long as they live. `left_out`: pointers to its
/// names of that kind, which live as long.
millrace_set described(const set_info& set, const std::vector<const char*>& left_out);
std::vector<const char*> pointers_to(const std::vector<std::string>& texts);
/// Describes a stream without strings, whose owner may be gone.
millrace_stream_info numbers_of(const stream_status& stream);
millrace_tensor described(const tensor_desc& t);

class wakers;

} // namespace millrace::bindings

struct millrace_request {
  millrace_request() = default;
  millrace_request(const millrace_request&) = delete;
  millrace_request& operator=(const millrace_request&) = delete;
  virtual ~millrace_request() = default;

  virtual bool over() const = 0;
  virtual bool wait_for(std::chrono::milliseconds time) const = 0;
  virtual void cancel() const = 0;
  /// Call it when the request is over.
  virtual millrace::status outcome() const = 0;
  virtual void then(std::function<void()> f) const = 0;
  /// Lets the operation go on though no thread waits for it.
  virtual void attend() const = 0;
  virtual millrace::status post(
    const millrace::completion_queue& queue, std::uint64_t token) const = 0;

  millrace::process_mark made_in = {};

  /// Returns what the value says, once it is there. Errors: `busy`; the outcome's own.
  millrace::result<const millrace::bindings::findings*> found();
  /// Does the same, with the layers of a model.
  millrace::result<const millrace::bindings::findings*> found_layers();

  /// Who is told when the request is over, see `millrace_waitany`; null: none has asked.
  std::shared_ptr<millrace::bindings::wakers> told;

private:
  virtual millrace::bindings::findings read_value() const = 0;

  // Several threads may wait for a request, and look whether it has found something.
  std::mutex mutex_;
  std::optional<millrace::bindings::findings> found_;
};

namespace millrace::bindings {

/// The part of a request that is the same for every value.
template <class T>
class future_request : public millrace_request {
public:
  bool over() const override { return of.ready(); }
  bool wait_for(std::chrono::milliseconds time) const override { return of.wait_for(time); }
  // By a copy: the thread that waits may free the request as soon as there is an outcome.
  void cancel() const override {
    auto kept = of;
    kept.cancel();
  }
  status outcome() const override {
    auto& value = of.result();
    return value ? status{} : value.error();
  }
  void then(std::function<void()> f) const override {
    of.then([f = std::move(f)](const result<T>&) { f(); });
  }
  void attend() const override {
    if (auto io = of.io())
      io->attend();
  }
  status post(const completion_queue& queue, std::uint64_t token) const override {
    return queue.post_when_ready(of, token);
  }

  future<T> of;
};

template <class T>
class request_of final : public future_request<T> {
public:
  explicit request_of(counted by) : by_(by) {}

private:
  findings read_value() const override {
    if constexpr (std::is_void_v<T>)
      return {};
    else
      return read(*this->of.result(), by_);
  }

  counted by_;
};

/// Hands a begun operation to the caller; with `out` null, waits for it.
template <class T>
status hand_over(std::unique_ptr<future_request<T>> begun, millrace_request** out) {
  if (!out || (begun->over() && !begun->outcome().ok()))
    return begun->outcome();
  *out = begun.release();
  return {};
}

/// Begins the operation that gives a `future<T>`, and hands it over. The request is made first, so
/// that no operation is lost for want of memory.
template <class T, class F>
status begin(millrace_request** out, F&& operation, counted by = counted::versions) {
  std::unique_ptr<future_request<T>> made = std::make_unique<request_of<T>>(by);
  made->of = std::forward<F>(operation)();
  return hand_over(std::move(made), out);
}

template <class Handle>
void clear(Handle** out) noexcept {
  if (out)
    *out = nullptr;
}

} // namespace millrace::bindings
