// Checkpoints: those of this job, and those of others.
#include "making.hpp"

#include <algorithm>
#include <iterator>
#include <optional>

using namespace millrace::bindings;
using millrace::status;
using millrace::tensor_place;
using millrace::tensor_view;

namespace {

constexpr std::uint32_t known_save_flags = MILLRACE_SAVE_SNAPSHOT;

millrace::result<millrace::checkpoint_options> checkpoint_options_of(
  const call& here, const millrace_checkpoint_options& o) {
  if (!o.name)
    return millrace::fail(here.wrong("options->name", "is NULL"));
  auto timeout = here.timeout("options->timeout_ms", o.timeout_ms);
  if (!timeout)
    return millrace::fail(timeout.error());
  if (o.busy != MILLRACE_BUSY_WAIT && o.busy != MILLRACE_BUSY_REFUSE)
    return millrace::fail(here.wrong("options->busy", fmt::format("is {}", o.busy)));
  auto axes = here.pairs("options->axes", o.axes, o.axes_count);
  if (!axes)
    return millrace::fail(axes.error());
  auto metadata = here.pairs("options->metadata", o.metadata, o.metadata_count);
  if (!metadata)
    return millrace::fail(metadata.error());
  millrace::checkpoint_options c;
  c.model = o.name;
  c.rank = o.rank;
  c.world_size = std::max(o.world_size, 1u);
  if (o.keep > 0)
    c.keep = o.keep;
  c.axes = std::move(*axes);
  c.metadata = std::move(*metadata);
  c.busy =
    o.busy == MILLRACE_BUSY_REFUSE ? millrace::when_saving::refuse : millrace::when_saving::wait;
  c.group = text_or(o.group, "");
  c.timeout = *timeout;
  c.life = o.life;
  return c;
}

millrace::result<std::optional<std::uint64_t>> step_of(
  const call& here, const char* argument, std::int64_t step) {
  if (step < -1)
    return millrace::fail(
      here.wrong(argument, fmt::format("is {}; it must be a step, or -1", step)));
  return step < 0 ? std::nullopt : std::optional{static_cast<std::uint64_t>(step)};
}

// One for each tensor. A scalar is whole.
std::vector<tensor_place> places_of(const millrace_tensor* tensors, std::size_t count) {
  std::vector<tensor_place> places(count);
  for (std::size_t i = 0; i < count; ++i)
    if (auto& t = tensors[i]; t.global_shape && t.rank > 0) {
      places[i].name = t.name;
      places[i].global_shape.assign(t.global_shape, t.global_shape + t.rank);
      places[i].offset.assign(t.offsets, t.offsets + t.rank);
    }
  return places;
}

bool lies_as_before(const millrace_tensor& now, const tensor_view& before) {
  auto rank = before.desc.shape.size();
  if (
    !now.name || before.desc.name != now.name || now.data != before.data ||
    now.dtype != static_cast<std::int32_t>(before.desc.type) ||
    now.rank != static_cast<std::int32_t>(rank) || (rank > 0 && !now.shape) ||
    (now.strides_bytes == nullptr) != before.strides_bytes.empty())
    return false;
  return std::equal(before.desc.shape.begin(), before.desc.shape.end(), now.shape) &&
    std::equal(before.strides_bytes.begin(), before.strides_bytes.end(), now.strides_bytes);
}

bool is_part_as_before(const millrace_tensor& now, const tensor_place& before) {
  if (before.global_shape.empty())
    return now.rank == 0 || (!now.global_shape && !now.offsets);
  return now.global_shape && now.offsets &&
    now.rank == static_cast<std::int32_t>(before.global_shape.size()) &&
    std::equal(before.global_shape.begin(), before.global_shape.end(), now.global_shape) &&
    std::equal(before.offset.begin(), before.offset.end(), now.offsets);
}

bool lie_as_before(
  const millrace_tensor* now, std::size_t count, const millrace_checkpointer& before) {
  if (count != before.bound.size())
    return false;
  for (std::size_t i = 0; i < count; ++i)
    if (!lies_as_before(now[i], before.bound[i]) || !is_part_as_before(now[i], before.places[i]))
      return false;
  return true;
}

// What the loads of a step are given besides the rank.
struct step_load {
  std::string group;
  std::optional<std::uint64_t> step;
  std::chrono::milliseconds timeout{0};
  std::vector<millrace::load_target> targets;
};

millrace::result<step_load> step_load_of(
  const call& here, std::int64_t step, const millrace_tensor* tensors, std::size_t count,
  const millrace_get_options* options) {
  auto given = here.options(options);
  if (!given)
    return millrace::fail(given.error());
  if (given->version != 0)
    return millrace::fail(here.wrong("options->version", "is set; `step` chooses the version"));
  auto timeout = here.timeout("options->timeout_ms", given->timeout_ms);
  if (!timeout)
    return millrace::fail(timeout.error());
  auto wanted = step_of(here, "step", step);
  if (!wanted)
    return millrace::fail(wanted.error());
  auto targets = here.targets(tensors, count);
  if (!targets)
    return millrace::fail(targets.error());
  return step_load{text_or(given->group, ""), *wanted, *timeout, std::move(*targets)};
}

using registration = making<millrace::checkpointer, millrace_checkpointer>;

millrace::result<std::unique_ptr<registration>> registering(
  const call& here, const millrace_client& client, const millrace_checkpoint_options* options,
  const millrace_tensor* tensors, std::size_t count) {
  auto given = here.options(options);
  if (!given)
    return millrace::fail(given.error());
  auto how = checkpoint_options_of(here, *given);
  if (!how)
    return millrace::fail(how.error());
  auto views = here.tensors(tensors, count, call::extent::part);
  if (!views)
    return millrace::fail(views.error());
  auto places = places_of(tensors, count);
  std::ranges::copy_if(
    places, std::back_inserter(how->places), [](auto& p) { return !p.global_shape.empty(); });
  using bound = std::pair<std::vector<tensor_view>, std::vector<tensor_place>>;
  auto begun = std::make_unique<registration>(
    [b = std::make_shared<bound>(*views, std::move(places))](const millrace::checkpointer& made) {
      return std::make_unique<millrace_checkpointer>(
        made, std::move(b->first), std::move(b->second));
    });
  begun->begin(client.of.checkpointer(*how, std::move(*views)));
  return begun;
}

} // namespace

millrace_code millrace_register(
  millrace_client* client, const millrace_checkpoint_options* options,
  const millrace_tensor* tensors, size_t count, millrace_checkpointer** checkpointer) {
  clear(checkpointer);
  return guarded(__func__, [&](const call& here) -> status {
    auto bad =
      here.need({{client, "client"}, {options, "options"}, {checkpointer, "checkpointer"}});
    if (!bad.ok())
      return bad;
    auto begun = registering(here, *client, options, tensors, count);
    return begun ? await_made(*begun, checkpointer) : begun.error();
  });
}

millrace_code millrace_register_begin(
  millrace_client* client, const millrace_checkpoint_options* options,
  const millrace_tensor* tensors, size_t count, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{client, "client"}, {options, "options"}, {request, "request"}});
    if (!bad.ok())
      return bad;
    auto begun = registering(here, *client, options, tensors, count);
    return begun ? hand_over<void>(std::move(*begun), request) : begun.error();
  });
}

millrace_code millrace_request_checkpointer(
  millrace_request* request, millrace_checkpointer** checkpointer) {
  return give_made(__func__, request, "checkpointer", checkpointer);
}

namespace {

millrace_code save(
  const char* function, millrace_checkpointer* checkpointer,
  const std::optional<millrace::device_stream>& after, uint64_t step, uint32_t flags,
  std::span<const std::byte> extra, millrace_request** staged, millrace_request** durable) {
  clear(staged);
  clear(durable);
  return guarded(function, [&](const call& here) -> status {
    if (!checkpointer)
      return here.wrong("checkpointer", "is NULL");
    if ((flags & ~known_save_flags) != 0)
      return here.wrong("flags", fmt::format("are {:#x}, with one that is unknown", flags));
    if (!extra.empty() && !extra.data())
      return here.wrong("extra", fmt::format("is NULL, and extra_bytes is {}", extra.size()));
    auto when_staged = std::make_unique<request_of<millrace::save_receipt>>(counted::steps);
    auto when_durable = std::make_unique<request_of<millrace::save_receipt>>(counted::steps);
    auto mode =
      flags & MILLRACE_SAVE_SNAPSHOT ? millrace::save_mode::snapshot : millrace::save_mode::direct;
    auto saving = checkpointer->of.save(step, mode, extra, after);
    when_staged->of = std::move(saving.staged);
    when_durable->of = std::move(saving.durable);
    // What did not begin has failed in both.
    if (when_staged->over() && !when_staged->outcome().ok())
      return when_staged->outcome();
    if (staged)
      *staged = when_staged.release();
    if (durable)
      *durable = when_durable.release();
    return {};
  });
}

} // namespace

millrace_code millrace_save(
  millrace_checkpointer* checkpointer, uint64_t step, uint32_t flags, const void* extra,
  size_t extra_bytes, millrace_request** staged, millrace_request** durable) {
  return save(
    __func__, checkpointer, {}, step, flags, {static_cast<const std::byte*>(extra), extra_bytes},
    staged, durable);
}

millrace_code millrace_save_after(
  millrace_checkpointer* checkpointer, void* cuda_stream, uint64_t step, uint32_t flags,
  const void* extra, size_t extra_bytes, millrace_request** staged, millrace_request** durable) {
  return save(
    __func__, checkpointer, millrace::device_stream{.handle = cuda_stream}, step, flags,
    {static_cast<const std::byte*>(extra), extra_bytes}, staged, durable);
}

millrace_code millrace_fence(millrace_checkpointer* checkpointer, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (!checkpointer)
      return here.wrong("checkpointer", "is NULL");
    if (!request)
      return checkpointer->of.fence();
    return begin<void>(request, [&] { return checkpointer->of.fence_async(); });
  });
}

millrace_code millrace_fence_stream(millrace_checkpointer* checkpointer, void* cuda_stream) {
  return guarded(__func__, [&](const call& here) -> status {
    return checkpointer ? checkpointer->of.fence({.handle = cuda_stream})
                        : here.wrong("checkpointer", "is NULL");
  });
}

millrace_code millrace_rebind(
  millrace_checkpointer* checkpointer, const millrace_tensor* tensors, size_t count) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{checkpointer, "checkpointer"}, {tensors, "tensors"}});
    if (!bad.ok())
      return bad;
    // In a forked child a thread of the parent may have held the lock: the call below refuses.
    if (!checkpointer->made_in.is_here())
      return checkpointer->of.rebind({});
    std::lock_guard guard{checkpointer->mutex};
    if (!checkpointer->closed && lie_as_before(tensors, count, *checkpointer))
      return {};
    auto views = here.tensors(tensors, count, call::extent::part);
    if (!views)
      return views.error();
    if (count == checkpointer->places.size())
      for (std::size_t i = 0; i < count; ++i)
        if (!is_part_as_before(tensors[i], checkpointer->places[i]))
          return here.wrong(
            fmt::format("tensors[{}]", i), "has another place than the one registered");
    auto moved = checkpointer->of.rebind(*views);
    if (moved.ok())
      checkpointer->bound = std::move(*views);
    return moved;
  });
}

millrace_code millrace_restore(
  millrace_checkpointer* checkpointer, int64_t step, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (!checkpointer)
      return here.wrong("checkpointer", "is NULL");
    auto wanted = step_of(here, "step", step);
    if (!wanted)
      return wanted.error();
    return begin<millrace::load_receipt>(
      request, [&] { return checkpointer->of.restore(*wanted); }, counted::steps);
  });
}

millrace_code millrace_close(
  millrace_checkpointer* checkpointer, int32_t finished, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (!checkpointer)
      return here.wrong("checkpointer", "is NULL");
    return begin<void>(request, [&] {
      checkpointer->closed = true;
      return checkpointer->of.close_async(finished != 0);
    });
  });
}

void millrace_checkpointer_release(millrace_checkpointer* checkpointer) { end(checkpointer); }

millrace_code millrace_await_step(
  millrace_client* client, const char* group, const char* model, int64_t newer_than,
  int64_t timeout_ms, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    auto than = step_of(here, "newer_than", newer_than);
    if (!than)
      return than.error();
    auto timeout = here.timeout("timeout_ms", timeout_ms);
    if (!timeout)
      return timeout.error();
    return begin<millrace::checkpoint_summary>(request, [&] {
      return client->of.checkpoints(text_or(group, "")).newer(model, *than, *timeout);
    });
  });
}

millrace_code millrace_get_shard(
  millrace_client* client, const char* model, uint32_t rank, int64_t step,
  const millrace_tensor* tensors, size_t count, const millrace_get_options* options,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    auto load = step_load_of(here, step, tensors, count, options);
    if (!load)
      return load.error();
    return begin<millrace::load_receipt>(
      request,
      [&] {
        return client->of.checkpoints(load->group)
          .load_boxes(model, rank, load->step, std::move(load->targets), load->timeout);
      },
      counted::steps);
  });
}

millrace_code millrace_get_global(
  millrace_client* client, const char* model, int64_t step, const millrace_tensor* tensors,
  size_t count, const millrace_get_options* options, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    auto load = step_load_of(here, step, tensors, count, options);
    if (!load)
      return load.error();
    return begin<millrace::global_load_receipt>(request, [&] {
      return client->of.checkpoints(load->group)
        .load_global(model, std::move(load->targets), {load->step, load->timeout});
    });
  });
}

millrace_code millrace_list_runs(
  millrace_client* client, const char* group, const char* prefix, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (!client)
      return here.wrong("client", "is NULL");
    return begin<millrace::listed<millrace::checkpoint_summary>>(request, [&] {
      return client->of.checkpoints(text_or(group, "")).list(text_or(prefix, ""));
    });
  });
}

millrace_code millrace_list_steps(
  millrace_client* client, const char* group, const char* model, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    return begin<millrace::checkpoint_summary>(
      request, [&] { return client->of.checkpoints(text_or(group, "")).describe(model); });
  });
}

millrace_code millrace_describe_shard(
  millrace_client* client, const char* group, const char* model, uint32_t rank, int64_t step,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    auto wanted = step_of(here, "step", step);
    if (!wanted)
      return wanted.error();
    return begin<millrace::shard_spec>(request, [&] {
      return client->of.checkpoints(text_or(group, "")).describe_shard(model, rank, *wanted);
    });
  });
}

millrace_code millrace_erase_run(
  millrace_client* client, const char* group, const char* model, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    return begin<void>(
      request, [&] { return client->of.checkpoints(text_or(group, "")).erase(model); });
  });
}

millrace_code millrace_erase_step(
  millrace_client* client, const char* group, const char* model, uint64_t step,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    return begin<void>(
      request, [&] { return client->of.checkpoints(text_or(group, "")).erase(model, step); });
  });
}
