// Millrace in C++17, header-only over millrace.h: objects that release themselves, and exceptions.
// For programs that cannot take the C++20 API, or want the stable binary interface.
#pragma once

#include "millrace.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
#if __has_include(<version>)
#include <version>
#endif
#if defined(__cpp_lib_span)
#include <cstddef>
#include <span>
#endif

namespace millrace::abi {

// Programs and libraries that were compiled with headers of different versions can be one process.
inline namespace v0 {

/// What a call throws that has failed. Its text is that of `millrace_error`.
class error : public std::runtime_error {
public:
  explicit error(millrace_code code) : std::runtime_error(millrace_error()), code_(code) {}
  millrace_code code() const noexcept { return code_; }

private:
  millrace_code code_;
};

inline void check(millrace_code code) {
  if (code != MILLRACE_OK)
    throw error{code};
}

namespace detail {

struct release {
  void operator()(millrace_client* p) const noexcept { millrace_release(p); }
  void operator()(millrace_node* p) const noexcept { millrace_node_release(p); }
  void operator()(millrace_checkpointer* p) const noexcept { millrace_checkpointer_release(p); }
  void operator()(millrace_queue* p) const noexcept { millrace_queue_release(p); }
  void operator()(millrace_request* p) const noexcept { millrace_detach(&p); }
  void operator()(millrace_set_reader* p) const noexcept { millrace_set_reader_release(p); }
  void operator()(millrace_loader* p) const noexcept { millrace_loader_release(p); }
  void operator()(millrace_batch* p) const noexcept { millrace_batch_release(p); }
  void operator()(millrace_producer* p) const noexcept { millrace_producer_release(p); }
  void operator()(millrace_stream_reader* p) const noexcept { millrace_stream_reader_release(p); }
  void operator()(millrace_publisher* p) const noexcept { millrace_publisher_release(p); }
  void operator()(millrace_follower* p) const noexcept { millrace_follower_release(p); }
  void operator()(millrace_group* p) const noexcept { millrace_group_release(p); }
};

template <class Handle>
using owned = std::unique_ptr<Handle, release>;

/// Calls a C function whose last argument is an output, and returns what it gave.
template <class Handle, class F>
owned<Handle> made(F&& call) {
  Handle* out = nullptr;
  check(call(&out));
  return owned<Handle>{out};
}

/// Returns a structure with its size set.
template <class T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

} // namespace detail

/// A running operation. Destroying it lets the operation go on: its tensors must stay until it is
/// over.
class request {
public:
  request() = default;
  explicit request(detail::owned<millrace_request> r) : of_(std::move(r)) {}

  millrace_request* get() const noexcept { return of_.get(); }

  /// Waits without end. Throws the failure of the operation.
  void wait() const { check(millrace_request_wait(get(), MILLRACE_FOREVER)); }
  /// Waits at most so long. Returns whether it is over; throws its failure.
  bool wait_for(std::chrono::milliseconds time) const {
    auto code = millrace_request_wait(get(), time.count() < 0 ? 0 : time.count());
    if (code == MILLRACE_DEADLINE_EXCEEDED) { // of the wait, or of the operation
      auto r = detail::sized<millrace_receipt>();
      code = millrace_request_receipt(get(), &r);
      if (code == MILLRACE_BUSY)
        return false;
    }
    check(code);
    return true;
  }
  void cancel() const { check(millrace_cancel(get())); }

  /// What the operation did. Valid as long as the request, after `wait`.
  millrace_receipt receipt() const {
    auto r = detail::sized<millrace_receipt>();
    check(millrace_request_receipt(get(), &r));
    return r;
  }
#if defined(__cpp_lib_span)
  std::span<const std::byte> extra() const {
    const void* data = nullptr;
    std::size_t size = 0;
    check(millrace_request_extra(get(), &data, &size));
    return {static_cast<const std::byte*>(data), size};
  }
#endif
  std::vector<std::uint8_t> copy_of_extra() const {
    const void* data = nullptr;
    std::size_t size = 0;
    check(millrace_request_extra(get(), &data, &size));
    auto* bytes = static_cast<const std::uint8_t*>(data);
    return {bytes, bytes + size};
  }
  /// The models that were listed.
  std::vector<millrace_model> models() const {
    std::vector<millrace_model> all(millrace_request_count(get()), detail::sized<millrace_model>());
    for (std::size_t i = 0; i < all.size(); ++i)
      check(millrace_request_model(get(), i, &all[i]));
    return all;
  }
  /// The steps that were listed, ascending.
  std::vector<millrace_step> steps() const {
    std::vector<millrace_step> all(millrace_request_count(get()), detail::sized<millrace_step>());
    for (std::size_t i = 0; i < all.size(); ++i)
      check(millrace_request_step(get(), i, &all[i]));
    return all;
  }
  /// The runs that were listed.
  std::vector<millrace_run> runs() const {
    std::vector<millrace_run> all(millrace_request_count(get()), detail::sized<millrace_run>());
    for (std::size_t i = 0; i < all.size(); ++i)
      check(millrace_request_run(get(), i, &all[i]));
    return all;
  }
  /// The working sets that were listed, or the one that was preloaded or described.
  std::vector<millrace_set> sets() const {
    std::vector<millrace_set> all;
    auto set = detail::sized<millrace_set>();
    while (millrace_request_set(get(), all.size(), &set) == MILLRACE_OK)
      all.push_back(set);
    return all;
  }
  /// Which providers did not answer a listing, and why.
  std::vector<std::string> silent() const {
    std::vector<std::string> all;
    while (auto* text = millrace_request_silent(get(), all.size()))
      all.emplace_back(text);
    return all;
  }
  /// The metadata of what was described.
  std::vector<std::pair<std::string, std::string>> metadata() const {
    return pairs(millrace_request_metadata);
  }
  /// The axes of the shard that was described.
  std::vector<std::pair<std::string, std::string>> axes() const {
    return pairs(millrace_request_axis);
  }
  /// The tensors that were described.
  std::vector<millrace_tensor> tensors() const {
    std::vector<millrace_tensor> all(millrace_request_count(get()));
    for (std::size_t i = 0; i < all.size(); ++i)
      check(millrace_request_tensor(get(), i, &all[i]));
    return all;
  }
  /// The layers of the model that was described.
  std::vector<millrace_layer> layers() const {
    std::vector<millrace_layer> all;
    each<millrace_layer>(millrace_request_layer, [&](auto& layer) { all.push_back(layer); });
    return all;
  }

private:
  /// Reads lines until one is not found.
  template <class Line, class Read, class Add>
  void each(Read&& read, Add&& add) const {
    Line line{};
    std::size_t index = 0;
    auto code = read(get(), index, &line);
    for (; code == MILLRACE_OK; code = read(get(), ++index, &line))
      add(line);
    if (code != MILLRACE_NOT_FOUND)
      throw error{code};
  }
  template <class F>
  std::vector<std::pair<std::string, std::string>> pairs(F&& read) const {
    std::vector<std::pair<std::string, std::string>> all;
    each<millrace_pair>(read, [&](auto& pair) { all.emplace_back(pair.key, pair.value); });
    return all;
  }

  detail::owned<millrace_request> of_;
};

namespace detail {

/// The texts as C wants them, valid as long as `texts`.
inline std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> out;
  for (auto& text : texts)
    out.push_back(text.c_str());
  return out;
}

/// Calls a C function whose last argument is a request.
template <class F>
request begun(F&& call) {
  return request{made<millrace_request>(std::forward<F>(call))};
}

} // namespace detail

/// A request that makes an object. `object` waits for it and gives it, once.
template <class Object>
class making : public request {
public:
  using handle = typename Object::handle;
  using take = millrace_code (*)(millrace_request*, handle**);
  making(request r, take t) : request(std::move(r)), take_(t) {}

  Object object() const {
    wait();
    return Object{detail::made<handle>([this](auto** out) { return take_(get(), out); })};
  }

private:
  take take_;
};

/// A dense tensor. The shape must live until the call that takes the tensor has returned.
inline millrace_tensor dense(
  const char* name, std::int32_t dtype, const std::vector<std::uint64_t>& shape, void* data) {
  millrace_tensor t{};
  t.name = name;
  t.data = data;
  t.dtype = dtype;
  t.rank = static_cast<std::int32_t>(shape.size());
  t.shape = shape.data();
  return t;
}

using tensors = std::vector<millrace_tensor>;

/// The identities of layers, see `millrace_identify_layers`.
inline std::vector<std::array<unsigned char, 16>> identify_layers(
  const std::vector<millrace_layer>& layers, const tensors& all) {
  std::vector<std::array<unsigned char, 16>> ids(layers.size());
  auto* first = ids.empty() ? nullptr : ids.front().data();
  check(millrace_identify_layers(layers.data(), layers.size(), all.data(), all.size(), first));
  return ids;
}

/// One registered shard, see `millrace_register`.
class checkpointer {
public:
  using handle = millrace_checkpointer;
  explicit checkpointer(detail::owned<millrace_checkpointer> c) : of_(std::move(c)) {}

  struct saving {
    request staged, durable;
  };
  saving save(
    std::uint64_t step, std::uint32_t flags = MILLRACE_SAVE_DIRECT, const void* extra = nullptr,
    std::size_t extra_bytes = 0) const {
    return begun([&](auto** staged, auto** durable) {
      return millrace_save(of_.get(), step, flags, extra, extra_bytes, staged, durable);
    });
  }
  /// After the work in a CUDA stream, see `millrace_save_after`.
  saving save_after(
    void* cuda_stream, std::uint64_t step, std::uint32_t flags = MILLRACE_SAVE_DIRECT,
    const void* extra = nullptr, std::size_t extra_bytes = 0) const {
    return begun([&](auto** staged, auto** durable) {
      return millrace_save_after(
        of_.get(), cuda_stream, step, flags, extra, extra_bytes, staged, durable);
    });
  }
  void fence() const { check(millrace_fence(of_.get(), nullptr)); }
  request begin_fence() const {
    return request{
      detail::made<millrace_request>([&](auto** out) { return millrace_fence(of_.get(), out); })};
  }
  /// Holds a CUDA stream instead of the calling thread, see `millrace_fence_stream`.
  void fence(void* cuda_stream) const { check(millrace_fence_stream(of_.get(), cuda_stream)); }
  void rebind(const tensors& moved) const {
    check(millrace_rebind(of_.get(), moved.data(), moved.size()));
  }
  request restore(std::int64_t step = -1) const {
    return detail::begun([&](auto** out) { return millrace_restore(of_.get(), step, out); });
  }
  /// Ends the registration, and waits for the save in flight.
  void close(bool finished = false) const {
    check(millrace_close(of_.get(), finished ? 1 : 0, nullptr));
  }

private:
  template <class F>
  static saving begun(F&& call) {
    millrace_request *staged = nullptr, *durable = nullptr;
    check(call(&staged, &durable));
    return {
      request{detail::owned<millrace_request>{staged}},
      request{detail::owned<millrace_request>{durable}}};
  }

  detail::owned<millrace_checkpointer> of_;
};

class client {
public:
  using handle = millrace_client;
  explicit client(detail::owned<millrace_client> c) : of_(std::move(c)) {}

  static client connect(
    const char* address = nullptr, const millrace_client_options* options = nullptr) {
    return client{detail::made<millrace_client>(
      [&](auto** out) { return millrace_connect(address, options, out); })};
  }
  static making<client> begin_connect(
    const char* address = nullptr, const millrace_client_options* options = nullptr) {
    return {
      detail::begun([&](auto** out) { return millrace_connect_begin(address, options, out); }),
      millrace_request_client};
  }
  static client open(const std::string& config_file) {
    return client{detail::made<millrace_client>(
      [&](auto** out) { return millrace_open(config_file.c_str(), out); })};
  }

  millrace_client* get() const noexcept { return of_.get(); }

  request put(
    const std::string& model, const tensors& all,
    const millrace_put_options* options = nullptr) const {
    return detail::begun([&](auto** out) {
      return millrace_put(get(), model.c_str(), all.data(), all.size(), options, out);
    });
  }
  request load(
    const std::string& model, const tensors& targets,
    const millrace_get_options* options = nullptr) const {
    return detail::begun([&](auto** out) {
      return millrace_get(get(), model.c_str(), targets.data(), targets.size(), options, out);
    });
  }
  /// `timeout` 0: the client's. At most a day.
  request newer(
    const std::string& model, std::uint64_t than, std::chrono::milliseconds timeout = {},
    const char* group = nullptr) const {
    return detail::begun([&](auto** out) {
      return millrace_await(get(), group, model.c_str(), than, timeout.count(), out);
    });
  }
  request describe(
    const std::string& model, std::uint64_t version = 0, const char* group = nullptr) const {
    return detail::begun(
      [&](auto** out) { return millrace_describe(get(), group, model.c_str(), version, out); });
  }
  request list(const std::string& prefix = {}, const char* group = nullptr) const {
    return detail::begun(
      [&](auto** out) { return millrace_list(get(), group, prefix.c_str(), out); });
  }
  request erase(const std::string& model, const char* group = nullptr) const {
    return detail::begun(
      [&](auto** out) { return millrace_erase(get(), group, model.c_str(), out); });
  }
  request pin(const std::string& model, bool pinned, const char* group = nullptr) const {
    return detail::begun(
      [&](auto** out) { return millrace_pin(get(), group, model.c_str(), pinned ? 1 : 0, out); });
  }
  /// Waits for the registration.
  checkpointer register_shard(
    const millrace_checkpoint_options& options, const tensors& shard) const {
    return checkpointer{detail::made<millrace_checkpointer>([&](auto** out) {
      return millrace_register(get(), &options, shard.data(), shard.size(), out);
    })};
  }
  making<checkpointer> begin_register(
    const millrace_checkpoint_options& options, const tensors& shard) const {
    return {
      detail::begun([&](auto** out) {
        return millrace_register_begin(get(), &options, shard.data(), shard.size(), out);
      }),
      millrace_request_checkpointer};
  }

  /// `than` -1: any step.
  request newer_step(
    const std::string& model, std::int64_t than = -1, std::chrono::milliseconds timeout = {},
    const char* group = nullptr) const {
    return detail::begun([&](auto** out) {
      return millrace_await_step(get(), group, model.c_str(), than, timeout.count(), out);
    });
  }
  request load_shard(
    const std::string& model, std::uint32_t rank, const tensors& targets, std::int64_t step = -1,
    const millrace_get_options* options = nullptr) const {
    return detail::begun([&](auto** out) {
      return millrace_get_shard(
        get(), model.c_str(), rank, step, targets.data(), targets.size(), options, out);
    });
  }
  /// The targets are in the indices of the whole tensors, see `millrace_get_global`.
  request load_global(
    const std::string& model, const tensors& targets, std::int64_t step = -1,
    const millrace_get_options* options = nullptr) const {
    return detail::begun([&](auto** out) {
      return millrace_get_global(
        get(), model.c_str(), step, targets.data(), targets.size(), options, out);
    });
  }
  request list_runs(const std::string& prefix = {}, const char* group = nullptr) const {
    return detail::begun(
      [&](auto** out) { return millrace_list_runs(get(), group, prefix.c_str(), out); });
  }
  request list_steps(const std::string& model, const char* group = nullptr) const {
    return detail::begun(
      [&](auto** out) { return millrace_list_steps(get(), group, model.c_str(), out); });
  }
  /// What one rank has registered.
  request describe_shard(
    const std::string& model, std::uint32_t rank, std::int64_t step = -1,
    const char* group = nullptr) const {
    return detail::begun([&](auto** out) {
      return millrace_describe_shard(get(), group, model.c_str(), rank, step, out);
    });
  }
  request erase_run(const std::string& model, const char* group = nullptr) const {
    return detail::begun(
      [&](auto** out) { return millrace_erase_run(get(), group, model.c_str(), out); });
  }
  request erase_step(
    const std::string& model, std::uint64_t step, const char* group = nullptr) const {
    return detail::begun(
      [&](auto** out) { return millrace_erase_step(get(), group, model.c_str(), step, out); });
  }

private:
  detail::owned<millrace_client> of_;
};

/// A node in this process. Destroying it stops it on another thread.
class node {
public:
  using handle = millrace_node;
  static node embed(const std::string& config_file, const char* name = nullptr) {
    return node{detail::made<millrace_node>(
      [&](auto** out) { return millrace_embed(config_file.c_str(), name, out); })};
  }
  static making<node> begin_embed(const std::string& config_file, const char* name = nullptr) {
    return {
      detail::begun(
        [&](auto** out) { return millrace_embed_begin(config_file.c_str(), name, out); }),
      millrace_request_node};
  }

  explicit node(detail::owned<millrace_node> n) : of_(std::move(n)) {}

  abi::client client() const {
    return abi::client{detail::made<millrace_client>(
      [&](auto** out) { return millrace_node_client(of_.get(), out); })};
  }
  std::string address() const { return millrace_node_address(of_.get()); }
  /// Waits until all of it is closed.
  void stop() const { check(millrace_node_stop(of_.get(), nullptr)); }

private:
  detail::owned<millrace_node> of_;
};

/// What the launcher says of this process. Throws if none has started it.
inline millrace_job_info job() {
  auto info = detail::sized<millrace_job_info>();
  check(millrace_job(&info));
  return info;
}

/// Tokens of requests, and a descriptor for an event loop.
class queue {
public:
  explicit queue(std::uint32_t tokens_max = 0)
    : of_(detail::made<millrace_queue>(
        [&](auto** out) { return millrace_queue_create(tokens_max, out); })) {}

  int descriptor() const noexcept { return millrace_queue_fd(of_.get()); }
  void add(const request& r, std::uint64_t token) const {
    check(millrace_queue_add(of_.get(), r.get(), token));
  }
  /// Returns at most `most` tokens, those that come until `time` is up.
  std::vector<std::uint64_t> poll(std::size_t most, std::chrono::milliseconds time = {}) const {
    std::vector<std::uint64_t> tokens(most);
    std::size_t taken = 0;
    check(millrace_queue_poll(of_.get(), tokens.data(), most, time.count(), &taken));
    tokens.resize(taken);
    return tokens;
  }

private:
  detail::owned<millrace_queue> of_;
};

} // namespace v0

} // namespace millrace::abi

#include "millrace_data.hpp"
#include "millrace_group.hpp"
#include "millrace_stream.hpp"
#include "millrace_weights.hpp"
