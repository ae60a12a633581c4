// Queues of tokens for event loops.
#include "handles.hpp"

#include <millrace/core/clock.hpp>

using namespace millrace::bindings;
using millrace::status;

struct millrace_queue {
  millrace::completion_queue of;
};

namespace {

constexpr std::uint32_t default_tokens = 65'536;

} // namespace

millrace_code millrace_queue_create(uint32_t tokens_max, millrace_queue** queue) {
  clear(queue);
  return guarded(__func__, [&](const call& here) -> status {
    if (!queue)
      return here.wrong("queue", "is NULL");
    auto opened = millrace::completion_queue::open(tokens_max > 0 ? tokens_max : default_tokens);
    if (!opened)
      return opened.error();
    *queue = new millrace_queue{std::move(*opened)};
    return {};
  });
}

int millrace_queue_fd(const millrace_queue* queue) { return queue ? queue->of.descriptor() : -1; }

millrace_code millrace_queue_add(
  millrace_queue* queue, const millrace_request* request, uint64_t token) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{queue, "queue"}, {request, "request"}}); !bad.ok())
      return bad;
    return request->post(queue->of, token);
  });
}

millrace_code millrace_queue_poll(
  millrace_queue* queue, uint64_t* tokens, size_t count, int64_t timeout_ms, size_t* taken) {
  if (taken)
    *taken = 0;
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{queue, "queue"}, {tokens, "tokens"}, {taken, "taken"}});
    if (!bad.ok())
      return bad;
    if (auto why = queue->of.refusal(); !why.ok())
      return why;
    std::span room{tokens, count};
    *taken =
      timeout_ms == 0 ? queue->of.poll(room) : queue->of.wait(room, deadline_after(timeout_ms));
    return {};
  });
}

void millrace_queue_release(millrace_queue* queue) { delete queue; }
