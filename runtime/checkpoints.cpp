// Which provider is asked what.
#include <millrace/runtime/checkpoint_call.hpp>
#include <millrace/runtime/checkpoints.hpp>
#include <millrace/runtime/listing.hpp>
#include <millrace/runtime/load_call.hpp>
#include <millrace/runtime/placement.hpp>

namespace millrace {

using actors::checkpoint_manager_actor;

namespace {

constexpr std::uint32_t list_page = 1000;

} // namespace

namespace runtime {

future<checkpoint_summary> describe_checkpoints(
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model) {
  auto done = core->make_promise<checkpoint_summary>();
  // A listing that starts with a model's name starts with that model.
  core->ask<checkpoint_manager_actor, actors::list_checkpoints_request, actors::checkpoint_list>(
    core->checkpoints(provider), {model, {}, 1},
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

future<actors::load_receipt> restore_into(
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model,
  std::uint32_t rank, std::optional<std::uint64_t> step, std::vector<tensor_view> targets,
  std::chrono::milliseconds timeout) {
  actors::restore_request request;
  request.model = model;
  request.rank = rank;
  request.latest = !step;
  request.step = step.value_or(0);
  request.timeout_ms = timeout_ms(*core, timeout);
  for (auto& t : targets)
    request.selections.push_back({t.desc, false, 0});
  auto call = load_call::make(core);
  auto out = call->outcome();
  load_into<checkpoint_manager_actor>(
    call, core, core->checkpoints(provider), std::move(request), std::move(targets));
  return out;
}

} // namespace runtime

checkpoints::checkpoints(std::shared_ptr<runtime::client_core> core, std::string group)
  : core_(std::move(core)), group_(std::move(group)) {}

future<std::vector<checkpoint_summary>> checkpoints::list(const std::string& prefix) {
  using page = std::vector<checkpoint_summary>;
  auto providers = checkpoint_providers(group_, core_->where().providers);
  if (providers.empty())
    return ready_future<page>(
      fail(place_checkpoints(prefix, group_, core_->where().providers).error()));
  auto done = core_->make_promise<page>();
  auto ask = [core = core_,
              prefix](std::size_t provider, const std::string& after, completion<page> answer) {
    core->ask<checkpoint_manager_actor, actors::list_checkpoints_request, actors::checkpoint_list>(
      core->checkpoints(provider), {prefix, after, list_page},
      [answer](result<actors::checkpoint_list> r) {
        answer(r.map([](auto& all) { return std::move(all.models); }));
      });
  };
  std::make_shared<runtime::listing<checkpoint_summary>>(
    std::move(providers), list_page, std::move(ask),
    [](const checkpoint_summary& m) -> const std::string& { return m.model; }, done)
    ->begin();
  return done.get_future();
}

future<checkpoint_summary> checkpoints::describe(const std::string& model) {
  auto provider = place_checkpoints(model, group_, core_->where().providers);
  if (!provider)
    return ready_future<checkpoint_summary>(fail(provider.error()));
  return runtime::describe_checkpoints(core_, *provider, model);
}

future<shard_spec> checkpoints::describe_shard(const std::string& model, std::uint32_t rank) {
  auto provider = place_checkpoints(model, group_, core_->where().providers);
  if (!provider)
    return ready_future<shard_spec>(fail(provider.error()));
  return runtime::ask_checkpoints<actors::describe_shard_request>(core_, *provider, {model, rank});
}

future<actors::load_receipt> checkpoints::load(
  const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step,
  std::vector<tensor_view> targets, std::chrono::milliseconds timeout) {
  auto provider = place_checkpoints(model, group_, core_->where().providers);
  if (!provider)
    return ready_future<actors::load_receipt>(fail(provider.error()));
  return runtime::restore_into(core_, *provider, model, rank, step, std::move(targets), timeout);
}

future<actors::verify_receipt> checkpoints::verify(
  const std::string& model, std::uint32_t rank, std::uint64_t step,
  std::chrono::milliseconds timeout) {
  auto provider = place_checkpoints(model, group_, core_->where().providers);
  if (!provider)
    return ready_future<actors::verify_receipt>(fail(provider.error()));
  return runtime::ask_checkpoints<actors::verify_request>(
    core_, *provider, {model, rank, step, runtime::timeout_ms(*core_, timeout)});
}

future<void> checkpoints::erase(const std::string& model, std::optional<std::uint64_t> step) {
  auto provider = place_checkpoints(model, group_, core_->where().providers);
  if (!provider)
    return ready_future<void>(fail(provider.error()));
  auto done = core_->make_promise<void>();
  core_->ask<checkpoint_manager_actor, actors::erase_checkpoint_request, actors::done_reply>(
    core_->checkpoints(*provider), {model, step.has_value(), step.value_or(0)},
    [core = core_, done](const result<actors::done_reply>& r) {
      done.set(r ? result<void>{} : fail(r.error()));
    });
  return done.get_future();
}

future<std::vector<result<std::pair<std::string, actors::repack_receipt>>>> checkpoints::repack(
  std::chrono::milliseconds timeout) {
  using named = std::pair<std::string, actors::repack_receipt>;
  std::vector<future<named>> asked;
  for (auto provider : checkpoint_providers(group_, core_->where().providers)) {
    auto done = core_->make_promise<named>();
    asked.push_back(done.get_future());
    auto name = core_->where().providers[provider].name;
    core_->ask<checkpoint_manager_actor, actors::repack_request, actors::repack_receipt>(
      core_->checkpoints(provider), {runtime::timeout_ms(*core_, timeout)},
      [core = core_, done, name](result<actors::repack_receipt> r) {
        done.set(r.map([&](auto& receipt) { return named{name, receipt}; }));
      });
  }
  if (asked.empty())
    asked.push_back(
      ready_future<named>(fail(place_checkpoints({}, group_, core_->where().providers).error())));
  return when_all(asked);
}

result<actors::provider_entry> checkpoints::provider_of(const std::string& model) const {
  auto provider = place_checkpoints(model, group_, core_->where().providers);
  if (!provider)
    return fail(provider.error());
  return core_->where().providers[*provider];
}

} // namespace millrace
