// Waits for requests, and reads them.
#include "request.hpp"

#include "graph.hpp"

#include <millrace/core/clock.hpp>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>

using millrace::errc;
using millrace::status;
using millrace::bindings::call;
using millrace::bindings::guarded;
using std::chrono::milliseconds;

namespace millrace::bindings {

/// A thread in `millrace_waitany`.
struct waker {
  std::mutex mutex;
  std::condition_variable changed;
  bool woken = false;
};

/// The threads that wait for a request among others.
///
/// *Problem*: a future forgets none of its continuations before it is ready, and a program may call
/// `millrace_waitany` a thousand times with one request. So the future gets one continuation, and
/// threads come and go here.
class wakers {
public:
  void add(std::weak_ptr<waker> one) {
    std::lock_guard guard{mutex_};
    std::erase_if(all_, [](auto& left) { return left.expired(); });
    all_.push_back(std::move(one));
  }

  void wake() {
    std::lock_guard guard{mutex_};
    for (auto& one : all_)
      if (auto w = one.lock()) {
        std::lock_guard lock{w->mutex};
        w->woken = true;
        w->changed.notify_one();
      }
  }

private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<waker>> all_;
};

namespace {

constexpr std::size_t requests_max = 1u << 20;
// In parts: the standard library adds to a deadline that is far away until it overflows.
bool wait_until(const millrace_request& r, time_point deadline) {
  if (r.over())
    return true;
  for (;;) {
    auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    auto part = std::clamp(left, milliseconds{0}, milliseconds{3'600'000});
    if (r.wait_for(part))
      return true;
    if (part == left || left.count() <= 0)
      return false;
  }
}

status time_is_up() { return {errc::deadline_exceeded, "the request is not over; it goes on"}; }

status free_over(millrace_request*& r) {
  auto outcome = r->outcome();
  delete r;
  r = nullptr;
  return outcome;
}

std::size_t first_over(std::span<millrace_request*> all) {
  return static_cast<std::size_t>(
    std::ranges::find_if(all, [](auto* r) { return r && r->over(); }) - all.begin());
}

void tell(millrace_request& r, const std::weak_ptr<waker>& one) {
  auto told = r.told ? r.told : std::make_shared<wakers>();
  told->add(one);
  // Last, so that a lack of memory leaves no one who is never woken.
  if (!r.told)
    r.then([told] { told->wake(); });
  r.told = std::move(told);
}

std::size_t wait_for_any(std::span<millrace_request*> all, time_point deadline) {
  auto found = first_over(all);
  auto pending = std::ranges::any_of(all, [](auto* r) { return r != nullptr; });
  if (found < all.size() || !pending)
    return found;
  auto self = std::make_shared<waker>();
  for (auto* r : all)
    if (r)
      tell(*r, self);
  // One may have become ready before it was told of this thread.
  while ((found = first_over(all)) == all.size() && steady_clock::now() < deadline) {
    std::unique_lock lock{self->mutex};
    auto part = std::min<time_point>(deadline, steady_clock::now() + std::chrono::hours{1});
    millrace::wait_until(self->changed, lock, part, [&] { return self->woken; });
    self->woken = false;
  }
  return found;
}

status check_array(const call& here, std::size_t count, millrace_request** requests) {
  if (count > requests_max)
    return here.wrong("count", fmt::format("is {}; at most {}", count, requests_max));
  if (count > 0 && !requests)
    return here.wrong("requests", "is NULL");
  return {};
}

// Gives one of the things that a request has found, which are called `what`.
template <class Line>
millrace_code give_line(
  const char* function, millrace_request* request, std::size_t index,
  std::vector<Line> findings::*lines, const char* what, Line* out) {
  return guarded(function, [&](const call& here) -> status {
    if (auto bad = here.need({{request, "request"}, {out, what}}); !bad.ok())
      return bad;
    auto found = request->found();
    if (!found)
      return found.error();
    auto& all = (*found)->*lines;
    if (index >= all.size())
      return here.wrong(
        "index", fmt::format("is {}, and the request has {} {}s", index, all.size(), what));
    if constexpr (requires { out->struct_size; })
      return here.give(out, what, all[index]);
    *out = all[index];
    return {};
  });
}

millrace_code give_pair(
  const char* function, millrace_request* request, std::size_t index,
  std::span<const std::pair<std::string, std::string>> findings::*pairs, const char* what,
  millrace_pair* out) {
  return guarded(function, [&](const call& here) -> status {
    if (auto bad = here.need({{request, "request"}, {out, "pair"}}); !bad.ok())
      return bad;
    *out = {};
    auto found = request->found();
    if (!found)
      return found.error();
    auto all = (*found)->*pairs;
    if (index >= all.size())
      return {errc::not_found, "{}: the description has {} {}", function, all.size(), what};
    *out = {all[index].first.c_str(), all[index].second.c_str()};
    return {};
  });
}

// Returns a text that a request has found; null without one.
template <class Get>
const char* text_of(const char* function, millrace_request* request, const Get& get) {
  const char* text = nullptr;
  guarded(function, [&](const call& here) -> status {
    if (!request)
      return here.wrong("request", "is NULL");
    auto found = request->found();
    if (!found)
      return found.error();
    text = get(**found);
    return {};
  });
  return text;
}

} // namespace

} // namespace millrace::bindings

using namespace millrace::bindings;

millrace::result<const findings*> millrace_request::found() {
  if (!over())
    return millrace::fail(errc::busy, "the request is not over; wait for it first");
  if (auto failed = outcome(); !failed.ok())
    return millrace::fail(failed);
  std::lock_guard guard{mutex_};
  if (!found_)
    found_ = read_value();
  return &*found_;
}

millrace::result<const findings*> millrace_request::found_layers() {
  auto known = found();
  if (!known)
    return known;
  std::lock_guard guard{mutex_};
  if (found_->model && found_->layers.empty())
    describe_layers(*found_->model, *found_);
  return &*found_;
}

millrace_code millrace_wait(millrace_request** request, int64_t timeout_ms) {
  return guarded(__func__, [&](const call& here) -> status {
    if (!request)
      return here.wrong("request", "is NULL");
    if (!*request)
      return {};
    return wait_until(**request, deadline_after(timeout_ms)) ? free_over(*request) : time_is_up();
  });
}

millrace_code millrace_test(millrace_request** request, int* over) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{request, "request"}, {over, "over"}}); !bad.ok())
      return bad;
    *over = !*request || (*request)->over();
    if (*over)
      return *request ? free_over(*request) : status{};
    (*request)->attend();
    return {};
  });
}

millrace_code millrace_waitall(
  size_t count, millrace_request** requests, int64_t timeout_ms, millrace_code* each) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = check_array(here, count, requests); !bad.ok())
      return bad;
    auto deadline = deadline_after(timeout_ms);
    status first;
    for (std::size_t i = 0; i < count; ++i) {
      status outcome;
      if (requests[i])
        outcome = wait_until(*requests[i], deadline) ? free_over(requests[i]) : time_is_up();
      if (each)
        each[i] = static_cast<millrace_code>(outcome.code());
      if (first.ok())
        first = std::move(outcome);
    }
    return first;
  });
}

millrace_code millrace_waitany(
  size_t count, millrace_request** requests, int64_t timeout_ms, size_t* index) {
  return guarded(__func__, [&](const call& here) -> status {
    if (!index)
      return here.wrong("index", "is NULL");
    *index = count;
    if (auto bad = check_array(here, count, requests); !bad.ok())
      return bad;
    std::span all{requests, count};
    if (std::ranges::all_of(all, [](auto* r) { return r == nullptr; }))
      return {};
    *index = wait_for_any(all, deadline_after(timeout_ms));
    return *index < count ? free_over(requests[*index]) : time_is_up();
  });
}

millrace_code millrace_cancel(millrace_request* request) {
  return guarded(__func__, [&](const call& here) -> status {
    if (!request)
      return here.wrong("request", "is NULL");
    if (!request->made_in.is_here())
      return {
        errc::unavailable, "the operation belongs to process {}; only that one can cancel it",
        request->made_in.process()};
    request->cancel();
    return {};
  });
}

void millrace_detach(millrace_request** request) {
  if (request)
    delete std::exchange(*request, nullptr);
}

millrace_code millrace_request_wait(millrace_request* request, int64_t timeout_ms) {
  return guarded(__func__, [&](const call& here) -> status {
    if (!request)
      return here.wrong("request", "is NULL");
    return wait_until(*request, deadline_after(timeout_ms)) ? request->outcome() : time_is_up();
  });
}

millrace_code millrace_request_receipt(millrace_request* request, millrace_receipt* receipt) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{request, "request"}, {receipt, "receipt"}}); !bad.ok())
      return bad;
    auto found = request->found();
    return found ? here.give(receipt, "receipt", (*found)->receipt) : found.error();
  });
}

millrace_code millrace_request_extra(
  millrace_request* request, const void** extra, size_t* extra_bytes) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{request, "request"}, {extra, "extra"}, {extra_bytes, "extra_bytes"}});
    if (!bad.ok())
      return bad;
    *extra = nullptr;
    *extra_bytes = 0;
    auto found = request->found();
    if (!found)
      return found.error();
    *extra_bytes = (*found)->extra.size();
    *extra = *extra_bytes > 0 ? (*found)->extra.data() : nullptr;
    return {};
  });
}

size_t millrace_request_count(millrace_request* request) {
  size_t count = 0;
  guarded(__func__, [&](const call& here) -> status {
    if (!request)
      return here.wrong("request", "is NULL");
    auto found = request->found();
    if (!found)
      return found.error();
    auto& f = **found;
    count = std::max(
      {f.models.size(), f.runs.size(), f.steps.size(), f.sets.size(), f.streams.size(),
       f.parts.size(), f.tensors.size()});
    return {};
  });
  return count;
}

millrace_code millrace_request_model(
  millrace_request* request, size_t index, millrace_model* model) {
  return give_line(__func__, request, index, &findings::models, "model", model);
}

millrace_code millrace_request_run(millrace_request* request, size_t index, millrace_run* run) {
  return give_line(__func__, request, index, &findings::runs, "run", run);
}

millrace_code millrace_request_step(millrace_request* request, size_t index, millrace_step* step) {
  return give_line(__func__, request, index, &findings::steps, "step", step);
}

millrace_code millrace_request_set(millrace_request* request, size_t index, millrace_set* set) {
  return give_line(__func__, request, index, &findings::sets, "set", set);
}

millrace_code millrace_request_part(
  millrace_request* request, size_t index, millrace_part_access* part) {
  return give_line(__func__, request, index, &findings::parts, "part", part);
}

millrace_code millrace_request_stream(
  millrace_request* request, size_t index, millrace_stream_info* stream) {
  return give_line(__func__, request, index, &findings::streams, "stream", stream);
}

millrace_code millrace_request_tensor(
  millrace_request* request, size_t index, millrace_tensor* tensor) {
  return give_line(__func__, request, index, &findings::tensors, "tensor", tensor);
}

millrace_code millrace_request_layer(
  millrace_request* request, size_t index, millrace_layer* layer) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{request, "request"}, {layer, "layer"}}); !bad.ok())
      return bad;
    *layer = {};
    auto found = request->found_layers();
    if (!found)
      return found.error();
    auto& all = (*found)->layers;
    if (index >= all.size())
      return {
        errc::not_found, "{}: the description has {} layers", "millrace_request_layer", all.size()};
    *layer = all[index];
    return {};
  });
}

millrace_code millrace_request_tensor_layer(
  millrace_request* request, size_t index, uint32_t* layer) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{request, "request"}, {layer, "layer"}}); !bad.ok())
      return bad;
    *layer = 0;
    auto found = request->found();
    if (!found)
      return found.error();
    auto& f = **found;
    if (index >= f.tensors.size())
      return here.wrong(
        "index", fmt::format("is {}, and the request has {} tensors", index, f.tensors.size()));
    if (index >= f.tensor_layers.size())
      return {
        errc::not_found, "{}: the model was stored without an architecture",
        "millrace_request_tensor_layer"};
    *layer = f.tensor_layers[index];
    return {};
  });
}

millrace_code millrace_request_metadata(
  millrace_request* request, size_t index, millrace_pair* pair) {
  return give_pair(__func__, request, index, &findings::metadata, "pairs of metadata", pair);
}

millrace_code millrace_request_axis(millrace_request* request, size_t index, millrace_pair* pair) {
  return give_pair(__func__, request, index, &findings::axes, "axes", pair);
}

const char* millrace_request_silent(millrace_request* request, size_t index) {
  return text_of(__func__, request, [&](const findings& f) {
    return index < f.silent.size() ? f.silent[index].c_str() : nullptr;
  });
}

const char* millrace_request_processors(millrace_request* request) {
  return text_of(__func__, request, [](const findings& f) { return f.processors; });
}
