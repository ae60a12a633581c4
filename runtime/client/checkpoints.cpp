// Sends each request to the provider that keeps the model.
#include <millrace/runtime/client/calls/checkpoint_call.hpp>
#include <millrace/runtime/client/calls/listing.hpp>
#include <millrace/runtime/client/calls/load_call.hpp>
#include <millrace/runtime/client/calls/placement.hpp>
#include <millrace/runtime/client/checkpoints.hpp>

namespace millrace {

using actors::checkpoint_service;

namespace {

// The most models per page; the service sends fewer when they are large.
constexpr std::uint32_t checkpoints_page = 256;

// Asks the provider that keeps a model's checkpoints.
template <class Reply, class Ask>
future<Reply> ask_keeper(
  const std::shared_ptr<runtime::client_core>& core, const std::string& group,
  const std::string& model, std::optional<std::uint64_t> step, Ask ask) {
  auto done = core->make_promise<Reply>();
  runtime::find_keeper(core, group, model, step, [done, ask](const result<std::size_t>& provider) {
    if (!provider)
      return static_cast<void>(done.set(fail(provider.error())));
    ask(*provider).then([done](const result<Reply>& r) { done.set(r); });
  });
  return done.get_future();
}

// Removes what older copies other providers have, so that none is found afterwards.
void erase_older(
  const std::shared_ptr<runtime::client_core>& core, std::vector<std::size_t> providers,
  const actors::erase_checkpoint_request& request, completion<void> done) {
  std::vector<future<actors::done_reply>> asked;
  asked.reserve(providers.size());
  for (auto provider : providers)
    asked.push_back(core->ask<checkpoint_service>(provider, request));
  when_all(asked).then(
    [done = std::move(done)](const result<std::vector<result<actors::done_reply>>>& answers) {
      for (auto& answer : *answers)
        if (!answer && answer.error().code() != errc::not_found)
          return done(
            fail(answer.error().within("the newest copy is removed, an older one may not be")));
      done({});
    });
}

// A model, or a step, goes from every provider that has it, from the one that has the newest copy
// first.
void erase_at_keepers(
  const std::shared_ptr<runtime::client_core>& core, const std::string& group,
  const actors::erase_checkpoint_request& request, completion<void> done) {
  auto step = request.one_step ? std::optional{request.step} : std::nullopt;
  runtime::find_keeper(
    core, group, request.model, step,
    [core, group, request, done = std::move(done)](const result<std::size_t>& newest) {
      if (!newest)
        return done(fail(newest.error()));
      core->ask<checkpoint_service>(*newest, request)
        .then([core, group, request, newest = *newest, done](const result<actors::done_reply>& r) {
          if (!r)
            return done(fail(r.error()));
          runtime::find_keepers(
            core, group, request.model,
            [core, request, newest, done](result<runtime::keepers> all) {
              if (!all)
                return done(fail(all.error()));
              std::erase(all->asked, newest);
              erase_older(core, std::move(all->asked), request, done);
            });
        });
    });
}

} // namespace

checkpoints::checkpoints(std::shared_ptr<runtime::client_core> core, std::string group)
  : core_(std::move(core)), group_(std::move(group)) {}

future<listed<checkpoint_summary>> checkpoints::list(const std::string& prefix) {
  using page = runtime::listing_page<checkpoint_summary>;
  auto ask = [core = core_,
              prefix](std::size_t provider, const std::string& after, completion<page> answer) {
    core->ask<checkpoint_service>(
      provider, actors::list_checkpoints_request{prefix, after, checkpoints_page},
      [answer](result<actors::checkpoint_list> r) {
        answer(r.map([](auto& all) { return page{std::move(all.models), all.more}; }));
      });
  };
  auto done = core_->make_promise<listed<checkpoint_summary>>();
  runtime::find_keepers(
    core_, group_, prefix, [core = core_, ask, done](const result<runtime::keepers>& all) {
      if (!all)
        return static_cast<void>(done.set(fail(all.error())));
      runtime::listing<checkpoint_summary>::begin(
        core, all->asked, ask,
        [](const checkpoint_summary& m) -> const std::string& { return m.model; })
        .then([done](const result<listed<checkpoint_summary>>& r) { done.set(r); });
    });
  return done.get_future();
}

future<checkpoint_summary> checkpoints::describe(
  const std::string& model, std::optional<std::uint64_t> step) {
  return ask_keeper<checkpoint_summary>(
    core_, group_, model, step, [core = core_, model](std::size_t provider) {
      return runtime::describe_checkpoints(core, provider, model);
    });
}

future<shard_spec> checkpoints::describe_shard(
  const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step) {
  return ask_keeper<shard_spec>(
    core_, group_, model, step, [core = core_, model, rank](std::size_t provider) {
      return runtime::describe_shard(core, provider, model, rank);
    });
}

future<actors::load_receipt> checkpoints::load(
  const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step,
  std::vector<tensor_view> targets, std::chrono::milliseconds timeout) {
  auto call = runtime::load_call::make(core_);
  auto out = call->outcome();
  runtime::find_keeper(
    core_, group_, model, step,
    [core = core_, call, model, rank, step, targets = std::move(targets),
     timeout](const result<std::size_t>& provider) {
      if (provider)
        runtime::restore_into(call, core, *provider, model, rank, step, targets, timeout);
      else
        call->finish(fail(provider.error()));
    });
  return out;
}

future<actors::verify_receipt> checkpoints::verify(
  const std::string& model, std::uint32_t rank, std::uint64_t step,
  std::chrono::milliseconds timeout, std::uint64_t saved_at_ns) {
  actors::verify_request request{
    model, rank, step, runtime::timeout_ms(*core_, timeout), saved_at_ns};
  return ask_keeper<actors::verify_receipt>(
    core_, group_, model, step, [core = core_, request](std::size_t provider) {
      return core->ask<checkpoint_service>(provider, request);
    });
}

future<void> checkpoints::erase(const std::string& model, std::optional<std::uint64_t> step) {
  auto done = core_->make_promise<void>();
  erase_at_keepers(
    core_, group_, {model, step.has_value(), step.value_or(0)},
    [done](const result<void>& r) { done.set(r); });
  return done.get_future();
}

future<std::vector<result<std::pair<std::string, actors::repack_receipt>>>> checkpoints::repack(
  std::chrono::milliseconds timeout) {
  using named = std::pair<std::string, actors::repack_receipt>;
  std::vector<future<named>> asked;
  // The last tenth of the time is left for the answer.
  auto whole_ms = runtime::timeout_ms(*core_, timeout);
  auto work_ms = std::max(whole_ms - whole_ms / 10, 1u);
  for (auto provider : checkpoint_providers(group_, core_->where().providers)) {
    auto done = core_->make_promise<named>();
    asked.push_back(done.get_future());
    auto name = core_->where().providers[provider].name;
    core_->ask<checkpoint_service>(
      provider, actors::repack_request{whole_ms, work_ms},
      [core = core_, done, name](result<actors::repack_receipt> r) {
        done.set(r.map([&](auto& receipt) { return named{name, receipt}; }));
      });
  }
  if (asked.empty())
    asked.push_back(
      ready_future<named>(fail(place_checkpoints({}, group_, core_->where().providers).error())));
  return when_all(asked);
}

} // namespace millrace
