// Finds the provider that keeps a model's checkpoints, and sends requests to it.
#include <millrace/core/log.hpp>
#include <millrace/runtime/client/calls/checkpoint_call.hpp>
#include <millrace/runtime/client/calls/placement.hpp>
#include <millrace/runtime/client/calls/selected.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace millrace::runtime {

using actors::checkpoint_service;

namespace {

// A client's file may be older than those of the nodes, and they know of each other.
constexpr std::size_t nodes_asked_max = 4;

bool has_job(const checkpoint_summary& model) {
  return std::ranges::any_of(model.shards, [](auto& shard) { return shard.registered; });
}

// Picks a provider whose answer has the step. It prefers one that has the step complete, then the
// one that was saved to last, then the one at which the name is placed.
result<std::size_t> pick_keeper(
  client_core& core, const std::string& model, std::optional<std::uint64_t> step,
  const keepers& all, const std::vector<result<checkpoint_summary>>& answers) {
  using rank = std::tuple<step_part, std::uint64_t, bool>;
  struct choice {
    rank how;
    std::size_t provider;
    bool has_job;
  };
  std::optional<choice> best;
  status not_asked;
  for (std::size_t i = 0; i < all.asked.size(); ++i) {
    auto& answer = answers[i];
    if (!answer && answer.error().code() != errc::not_found)
      not_asked = answer.error().within(
        fmt::format("asking provider {} whether it has {}", core.entry(all.asked[i]).name, model));
    if (!answer)
      continue;
    auto part = step ? part_of(*answer, *step) : step_part::none;
    rank how{part, saved_last_ns(*answer), all.asked[i] == all.placed};
    if (!best || best->how < how)
      best = {how, all.asked[i], has_job(*answer)};
  }
  if (not_asked.ok())
    return best ? best->provider : all.placed;
  // An unreachable provider may have the model, the rest of the step, or newer steps. Answering
  // with less would let the job lose steps, or begin anew. Where a job is registered, the newest
  // steps are: it was registered there when every provider could be asked.
  auto sure = best && (step ? std::get<0>(best->how) == step_part::all : best->has_job);
  if (!sure)
    return fail(
      errc::unavailable,
      "{}{}; if the provider is gone for good, take it out of the providers, or name a group",
      not_asked.detail(), step ? "" : "; if an older step will do, name the step");
  log().warn(
    "a provider was not asked for checkpoints, one that has them is used provider={} why=\"{}\"",
    core.entry(best->provider).name, not_asked.to_string());
  return best->provider;
}

bool lists(const std::vector<provider_entry>& all, const provider_entry& p) {
  return std::ranges::any_of(
    all, [&](auto& entry) { return entry.name == p.name && entry.node == p.node; });
}

// Picks those that keep checkpoints of what the client's file lists and what nodes list.
result<keepers> keepers_among(
  client_core& core, const std::string& group, const std::string& model,
  const std::vector<actors::directory>& answers) {
  std::vector<provider_entry> now;
  auto all = core.where().providers;
  for (auto& where : answers)
    for (auto& p : where.providers)
      for (auto* list : {&now, &all})
        if (!lists(*list, p))
          list->push_back(p);
  // A node knows which providers it has.
  auto is_gone = [&](auto& p) {
    return std::ranges::any_of(
      answers, [&](auto& where) { return where.node == p.node && !lists(where.providers, p); });
  };
  std::erase_if(now, is_gone);
  std::erase_if(all, is_gone);
  auto& from = checkpoint_providers(group, now).empty() ? all : now;
  auto placed = place_checkpoints(model, group, from);
  if (!placed)
    return fail(placed.error());
  keepers out{core.number_of(from[*placed]), {}};
  for (auto i : checkpoint_providers(group, all))
    out.asked.push_back(core.number_of(all[i]));
  return out;
}

} // namespace

std::uint64_t saved_last_ns(const checkpoint_summary& model) {
  std::uint64_t last = 0;
  for (auto& shard : model.shards)
    for (auto& slot : shard.slots)
      last = std::max(last, slot.saved_at_ns);
  return last;
}

step_part part_of(const checkpoint_summary& model, std::uint64_t step) {
  auto& complete = model.complete_steps;
  if (std::ranges::find(complete, step) != complete.end())
    return step_part::all;
  auto some = std::ranges::any_of(model.shards, [&](auto& shard) {
    return std::ranges::any_of(
      shard.slots, [&](auto& slot) { return slot.state == slot_state::done && slot.step == step; });
  });
  return some ? step_part::some : step_part::none;
}

void find_keepers(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  time_point deadline, completion<keepers> done) {
  auto& file = core->where().providers;
  std::set<std::string> nodes;
  if (auto placed = place_checkpoints(model, group, file))
    nodes.insert(file[*placed].node);
  for (auto provider : checkpoint_providers(group, file))
    if (nodes.size() < nodes_asked_max)
      nodes.insert(file[provider].node);
  for (auto& node : core->where().nodes)
    if (nodes.size() < nodes_asked_max)
      nodes.insert(node.name);
  auto now = steady_clock::now();
  core->ask_nodes(
    nodes, now + (deadline - now) / 2,
    [core, group, model,
     done = std::move(done)](const result<std::vector<actors::directory>>& answers) {
      done(keepers_among(*core, group, model, *answers));
    });
}

void find_keeper(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  std::optional<std::uint64_t> step, time_point deadline, completion<std::size_t> done) {
  find_keepers(
    core, group, model, deadline,
    [core, model, step, deadline, done = std::move(done)](const result<keepers>& all) {
      if (!all || all->asked.size() == 1)
        return done(all ? result<std::size_t>{all->asked.front()} : fail(all.error()));
      describe_everywhere(core, all->asked, model, deadline)
        .chain([core, model, step, all = *all,
                done](const result<std::vector<result<checkpoint_summary>>>& answers) {
          done(pick_keeper(*core, model, step, all, *answers));
        });
    });
}

future<checkpoint_summary> describe_checkpoints(
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model,
  time_point deadline) {
  auto done = core->make_promise<checkpoint_summary>();
  // A listing that starts with a model's name starts with that model.
  core->ask_until<checkpoint_service>(
    deadline, provider, actors::list_checkpoints_request{model, {}, 1},
    [core, done, model](result<actors::checkpoint_list> r) {
      if (!r)
        return static_cast<void>(done.set(fail(r.error())));
      if (r->models.empty() || r->models.front().model != model)
        return static_cast<void>(
          done.set(fail(errc::not_found, "there are no checkpoints of " + model)));
      done.set(std::move(r->models.front()));
    });
  return done.get_future();
}

future<std::vector<result<checkpoint_summary>>> describe_everywhere(
  const std::shared_ptr<client_core>& core, const std::vector<std::size_t>& providers,
  const std::string& model, time_point deadline) {
  std::vector<future<checkpoint_summary>> asked;
  asked.reserve(providers.size());
  for (auto provider : providers)
    asked.push_back(describe_checkpoints(core, provider, model, deadline));
  return when_all(asked);
}

future<shard_spec> describe_shard(
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model,
  std::uint32_t rank, time_point deadline) {
  auto done = core->make_promise<shard_spec>();
  core->ask_until<checkpoint_service>(
    deadline, provider, actors::describe_shard_request{model, rank},
    [core, done, provider, model, rank](result<shard_spec> shard) {
      if (!shard)
        return static_cast<void>(done.set(std::move(shard)));
      auto bad = validate(*shard);
      if (bad.ok() && (shard->model != model || shard->rank != rank))
        bad = {errc::protocol_error, "it is rank {} of {}", shard->rank, shard->model};
      if (!bad.ok())
        return static_cast<void>(done.set(fail(
          errc::protocol_error, "what provider {} says of rank {} of {}: {}",
          core->entry(provider).name, rank, model, bad.detail())));
      done.set(std::move(shard));
    });
  return done.get_future();
}

namespace {

status of_extra(const status& why, const load_receipt& of) {
  auto replaced = why.code() == errc::not_found;
  return status{
    replaced ? errc::busy : why.code(), "the user's bytes of step {} of {}: {}", of.version,
    of.model,
    replaced ? "the version was replaced before they were read; try again" : why.detail()};
}

// Asks for the user's bytes of the version that a receipt names, and finishes the call with both.
void read_extra(
  const std::shared_ptr<load_call>& call, const std::shared_ptr<client_core>& core,
  std::size_t provider, std::uint32_t rank, time_point deadline, actors::load_reply loaded) {
  if (loaded.extra_bytes > extra_bytes_max)
    return call->finish(fail(
      errc::protocol_error, "provider {} says that step {} of {} has {} bytes of the user",
      loaded.provider, loaded.version, loaded.model, loaded.extra_bytes));
  auto into = std::make_shared<std::vector<std::uint8_t>>(loaded.extra_bytes);
  actors::restore_request request;
  request.model = loaded.model;
  request.rank = rank;
  request.latest = false;
  request.step = loaded.version;
  request.saved_at_ns = loaded.stored_at_ns;
  request.extra = true;
  request.selections.push_back({extra_tensor(into->size()), false, 0});
  auto reading = load_call::make(core);
  auto target = reading->open(
    loaded.model, loaded.version,
    {{request.selections.front().expected, reinterpret_cast<std::byte*>(into->data()), {}}});
  if (!target)
    return call->finish(fail(of_extra(target.error(), loaded)));
  request.target = *target;
  reading->outcome().chain(
    [call, into, loaded = std::move(loaded)](const result<load_receipt>& r) mutable {
      if (!r)
        return call->finish(fail(of_extra(r.error(), loaded)));
      loaded.extra = std::move(*into);
      call->finish(std::move(loaded));
    });
  core->ask_until<checkpoint_service>(
    deadline, provider, std::move(request),
    [reading](result<actors::load_reply> r) { reading->finish(std::move(r)); });
}

} // namespace

void restore_into(
  const std::shared_ptr<load_call>& call, const std::shared_ptr<client_core>& core,
  std::size_t provider, const std::string& model, std::uint32_t rank,
  std::optional<std::uint64_t> step, std::vector<load_target> targets, time_point deadline,
  with_extra extra) {
  if (auto bad = check_targets(targets); !bad.ok())
    return call->finish(fail(std::move(bad)));
  actors::restore_request request;
  request.model = model;
  request.rank = rank;
  request.latest = !step;
  request.step = step.value_or(0);
  for (auto& t : targets)
    request.selections.push_back(selected(t.into.desc, t));
  auto target = call->open(model, step, take_views(targets));
  if (!target)
    return call->finish(fail(target.error()));
  request.target = *target;
  core->ask_until<checkpoint_service>(
    deadline, provider, std::move(request),
    [call, core, provider, rank, deadline, extra](result<actors::load_reply> r) {
      if (!r || r->extra_bytes == 0 || extra == with_extra::no)
        return call->finish(std::move(r));
      // The bytes of a receipt that is wrong are not asked for.
      r = call->check(std::move(r));
      if (!r)
        return call->finish(std::move(r));
      read_extra(call, core, provider, rank, deadline, std::move(*r));
    });
}

} // namespace millrace::runtime
