// Weights by version: publishers and followers.
#include "data.hpp"

#include <millrace/runtime/client/weights.hpp>

using namespace millrace::bindings;
using millrace::status;

struct millrace_publisher : held<millrace::weights_publisher> {
  using held::held;
};

struct millrace_follower : held<millrace::weights_follower> {
  using held::held;
};

namespace {

constexpr const char* default_group = "default";

millrace::result<millrace::publisher_options> options_of(
  const call& here, const millrace_publisher_options& o) {
  millrace::publisher_options out;
  if (o.reserved != 0)
    return millrace::fail(
      here.wrong("options->reserved", "is set; this version of the library has no use for it"));
  if (auto bad = here.read_storing(o, out); !bad.ok())
    return millrace::fail(bad);
  return out;
}

} // namespace

millrace_code millrace_publisher_create(
  millrace_client* client, const char* weights, const millrace_tensor* tensors, size_t count,
  const millrace_publisher_options* options, millrace_publisher** publisher) {
  clear(publisher);
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{client, "client"}, {weights, "weights"}, {publisher, "publisher"}});
    if (!bad.ok())
      return bad;
    auto given = here.options(options);
    if (!given)
      return given.error();
    auto how = options_of(here, *given);
    if (!how)
      return how.error();
    auto views = here.tensors(tensors, count);
    if (!views)
      return views.error();
    auto made = client->of.weights(weights, text_or(given->group, default_group))
                  .publisher(std::move(*views), std::move(*how));
    if (!made)
      return made.error();
    *publisher = new millrace_publisher{std::move(*made)};
    return {};
  });
}

millrace_code millrace_publish(
  millrace_publisher* publisher, uint64_t version, millrace_request** staged,
  millrace_request** stored) {
  clear(staged);
  clear(stored);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, publisher, "publisher"); !bad.ok())
      return bad;
    auto when_staged = std::make_unique<request_of<void>>(counted::versions);
    auto when_stored = std::make_unique<request_of<millrace::receipt>>(counted::versions);
    auto pending = publisher->of.publish(version);
    when_staged->of = std::move(pending.staged);
    when_stored->of = std::move(pending.stored);
    // What did not begin has failed in both.
    if (when_stored->over() && !when_stored->outcome().ok())
      return when_stored->outcome();
    if (staged)
      *staged = when_staged.release();
    if (stored)
      *stored = when_stored.release();
    return {};
  });
}

millrace_code millrace_publisher_rebind(
  millrace_publisher* publisher, const millrace_tensor* tensors, size_t count) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, publisher, "publisher"); !bad.ok())
      return bad;
    auto views = here.tensors(tensors, count);
    return views ? publisher->of.rebind(std::move(*views)) : views.error();
  });
}

void millrace_publisher_release(millrace_publisher* publisher) { end(publisher); }

millrace_code millrace_follow(
  millrace_client* client, const char* group, const char* weights, millrace_follower** follower) {
  clear(follower);
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{client, "client"}, {weights, "weights"}, {follower, "follower"}});
    if (!bad.ok())
      return bad;
    auto made = client->of.weights(weights, text_or(group, default_group)).follow();
    if (!made)
      return made.error();
    *follower = new millrace_follower{std::move(*made)};
    return {};
  });
}

millrace_code millrace_follower_next(
  millrace_follower* follower, int64_t timeout_ms, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, follower, "follower"); !bad.ok())
      return bad;
    auto timeout = here.timeout("timeout_ms", timeout_ms);
    if (!timeout)
      return timeout.error();
    return begin<millrace::weights_version>(request, [&] { return follower->of.next(*timeout); });
  });
}

millrace_code millrace_follower_load(
  millrace_follower* follower, const millrace_tensor* tensors, size_t count, int64_t timeout_ms,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, follower, "follower"); !bad.ok())
      return bad;
    auto timeout = here.timeout("timeout_ms", timeout_ms);
    if (!timeout)
      return timeout.error();
    auto targets = here.targets(tensors, count);
    if (!targets)
      return targets.error();
    return begin<millrace::weights_version>(
      request, [&] { return follower->of.load(std::move(*targets), *timeout); });
  });
}

void millrace_follower_release(millrace_follower* follower) { end(follower); }
