// Sends each request to the provider that keeps the model.
#include <millrace/runtime/client/calls/checkpoint_call.hpp>
#include <millrace/runtime/client/calls/global_load.hpp>
#include <millrace/runtime/client/calls/listing.hpp>
#include <millrace/runtime/client/calls/load_call.hpp>
#include <millrace/runtime/client/calls/placement.hpp>
#include <millrace/runtime/client/calls/selected.hpp>
#include <millrace/runtime/client/calls/watches.hpp>
#include <millrace/runtime/client/checkpoints.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace millrace {

using actors::checkpoint_service;

namespace {

// The most models per page; the service sends fewer when they are large.
constexpr std::uint32_t checkpoints_page = 256;

// Asks the provider that keeps a model's checkpoints. `ask` gets its number, and the deadline for
// all of it.
template <class Reply, class Ask>
future<Reply> ask_keeper(
  const std::shared_ptr<runtime::client_core>& core, const std::string& group,
  const std::string& model, std::optional<std::uint64_t> step, std::chrono::milliseconds timeout,
  Ask ask) {
  if (auto refused = core->refused<Reply>(model))
    return *refused;
  auto done = core->make_promise<Reply>();
  auto deadline = core->deadline_after(timeout);
  runtime::find_keeper(
    core, group, model, step, core->search_deadline_after(timeout),
    [done, deadline, ask](const result<std::size_t>& provider) {
      if (!provider)
        return static_cast<void>(done.set(fail(provider.error())));
      ask(*provider, deadline).chain([done](const result<Reply>& r) { done.set(r); });
    });
  return done.get_future();
}

// Erases the copies at these providers, the last one first.
void erase_copies(
  const std::shared_ptr<runtime::client_core>& core, std::vector<std::size_t> providers,
  const actors::erase_checkpoint_request& request, time_point deadline, completion<void> done) {
  if (providers.empty())
    return done({});
  auto provider = providers.back();
  providers.pop_back();
  core->ask_until<checkpoint_service>(
    deadline, provider, request,
    [core, provider, providers = std::move(providers), request, deadline,
     done = std::move(done)](const result<actors::done_reply>& r) mutable {
      if (r || r.error().code() == errc::not_found)
        return erase_copies(core, std::move(providers), request, deadline, std::move(done));
      done(fail(r.error().within(
        fmt::format("removing {} at provider {}", request.model, core->entry(provider).name))));
    });
}

// Returns the providers that have what shall be erased, the newest copy first. Every provider must
// have answered: a copy that stays behind would be found later.
result<std::vector<std::size_t>> with_copies(
  runtime::client_core& core, const actors::erase_checkpoint_request& request,
  const std::vector<std::size_t>& asked, const std::vector<result<checkpoint_summary>>& answers) {
  std::vector<std::pair<std::uint64_t, std::size_t>> found;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    auto& answer = answers[i];
    if (!answer && answer.error().code() != errc::not_found)
      return fail(answer.error().within(fmt::format(
        "nothing is removed, since provider {} may have {}", core.entry(asked[i]).name,
        request.model)));
    auto has_it = answer &&
      (!request.one_step || runtime::part_of(*answer, request.step) != runtime::step_part::none);
    if (has_it)
      found.emplace_back(runtime::saved_last_ns(*answer), asked[i]);
  }
  if (found.empty())
    return request.one_step
      ? fail(errc::not_found, "there is no step {} of {}", request.step, request.model)
      : fail(errc::not_found, "there are no checkpoints of {}", request.model);
  std::ranges::sort(found, std::greater{});
  std::vector<std::size_t> out;
  out.reserve(found.size());
  for (auto& [saved, provider] : found)
    out.push_back(provider);
  return out;
}

} // namespace

checkpoints::checkpoints(std::shared_ptr<runtime::client_core> core, std::string group)
  : core_(std::move(core)), group_(std::move(group)) {}

future<listed<checkpoint_summary>> checkpoints::list(const std::string& prefix) {
  if (auto refused = core_->refused<listed<checkpoint_summary>>())
    return *refused;
  using page = runtime::listing_page<checkpoint_summary>;
  auto deadline = core_->deadline_after();
  auto ask = [core = core_, prefix,
              deadline](std::size_t provider, const std::string& after, completion<page> answer) {
    core->ask_until<checkpoint_service>(
      deadline, provider, actors::list_checkpoints_request{prefix, after, checkpoints_page},
      [answer](result<actors::checkpoint_list> r) {
        answer(r.map([](auto& all) { return page{std::move(all.models), all.more}; }));
      });
  };
  auto done = core_->make_promise<listed<checkpoint_summary>>();
  runtime::find_keepers(
    core_, group_, prefix, deadline,
    [core = core_, ask, done](const result<runtime::keepers>& all) {
      if (!all)
        return static_cast<void>(done.set(fail(all.error())));
      runtime::listing<checkpoint_summary>::begin(
        core, all->asked, ask,
        [](const checkpoint_summary& m) -> const std::string& { return m.model; })
        .chain([done](const result<listed<checkpoint_summary>>& r) { done.set(r); });
    });
  return done.get_future();
}

future<checkpoint_summary> checkpoints::describe(
  const std::string& model, std::optional<std::uint64_t> step) {
  return ask_keeper<checkpoint_summary>(
    core_, group_, model, step, {},
    [core = core_, model](std::size_t provider, time_point deadline) {
      return runtime::describe_checkpoints(core, provider, model, deadline);
    });
}

future<checkpoint_summary> checkpoints::newer(
  const std::string& model, std::optional<std::uint64_t> than, std::chrono::milliseconds timeout) {
  if (auto refused = core_->refused<checkpoint_summary>(model))
    return *refused;
  return runtime::watch_steps(core_, group_, model, than, timeout);
}

future<shard_spec> checkpoints::describe_shard(
  const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step) {
  return ask_keeper<shard_spec>(
    core_, group_, model, step, {},
    [core = core_, model, rank](std::size_t provider, time_point deadline) {
      return runtime::describe_shard(core, provider, model, rank, deadline);
    });
}

future<load_receipt> checkpoints::load(
  const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step,
  std::vector<tensor_view> targets, std::chrono::milliseconds timeout) {
  return load_boxes(model, rank, step, runtime::whole(std::move(targets)), timeout);
}

future<load_receipt> checkpoints::load_boxes(
  const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step,
  std::vector<load_target> targets, std::chrono::milliseconds timeout) {
  if (auto refused = core_->refused<load_receipt>(model))
    return *refused;
  auto call = runtime::load_call::make(core_);
  auto out = call->outcome();
  runtime::find_keeper(
    core_, group_, model, step, core_->search_deadline_after(timeout),
    [core = core_, call, model, rank, step, targets = std::move(targets),
     deadline = core_->deadline_after(timeout)](const result<std::size_t>& provider) {
      if (provider)
        runtime::restore_into(call, core, *provider, model, rank, step, targets, deadline);
      else
        call->finish(fail(provider.error()));
    });
  return out;
}

future<global_load_receipt> checkpoints::load_global(
  const std::string& model, std::vector<load_target> targets, const global_load_options& options) {
  if (auto refused = core_->refused<global_load_receipt>(model))
    return *refused;
  return runtime::begin_global_load(core_, group_, model, std::move(targets), options);
}

future<verify_receipt> checkpoints::verify(
  const std::string& model, std::uint32_t rank, std::uint64_t step,
  std::chrono::milliseconds timeout, std::uint64_t saved_at_ns) {
  actors::verify_request request{model, rank, step, 0, saved_at_ns};
  return ask_keeper<verify_receipt>(
    core_, group_, model, step, timeout,
    [core = core_, request](std::size_t provider, time_point deadline) {
      return core->ask_until<checkpoint_service>(deadline, provider, request);
    });
}

future<void> checkpoints::erase(const std::string& model, std::optional<std::uint64_t> step) {
  if (auto refused = core_->refused<void>(model))
    return *refused;
  actors::erase_checkpoint_request request{model, step.has_value(), step.value_or(0)};
  auto done = core_->make_promise<void>();
  auto deadline = core_->deadline_after();
  auto search = core_->search_deadline_after();
  runtime::find_keepers(
    core_, group_, model, search,
    [core = core_, request, deadline, search, done](const result<runtime::keepers>& all) {
      if (!all)
        return static_cast<void>(done.set(fail(all.error())));
      // One alone says itself what is not there.
      if (all->asked.size() == 1)
        return core->ask_until<checkpoint_service>(
          deadline, all->asked.front(), request, [done](const result<actors::done_reply>& r) {
            done.set(r ? result<void>{} : fail(r.error()));
          });
      runtime::describe_everywhere(core, all->asked, request.model, search)
        .chain([core, request, deadline, done,
                all = all->asked](const result<std::vector<result<checkpoint_summary>>>& answers) {
          auto copies = with_copies(*core, request, all, *answers);
          if (!copies)
            return static_cast<void>(done.set(fail(copies.error())));
          erase_copies(core, std::move(*copies), request, deadline, [done](const result<void>& r) {
            done.set(r);
          });
        });
    });
  return done.get_future();
}

future<std::vector<result<std::pair<std::string, repack_report>>>> checkpoints::repack(
  std::chrono::milliseconds timeout) {
  using named = std::pair<std::string, repack_report>;
  using outcomes = std::vector<result<named>>;
  if (auto refused = core_->refused<outcomes>())
    return *refused;
  // The last tenth of the time is left for the answer.
  auto whole_ms = core_->timeout_ms(timeout);
  auto work_ms = std::max(whole_ms - whole_ms / 10, 1u);
  auto all_done = core_->make_promise<outcomes>();
  runtime::find_keepers(
    core_, group_, {}, core_->deadline_after(timeout),
    [core = core_, whole_ms, work_ms, all_done](const result<runtime::keepers>& all) {
      if (!all)
        return static_cast<void>(all_done.set(outcomes{fail(all.error())}));
      std::vector<future<named>> asked;
      asked.reserve(all->asked.size());
      for (auto provider : all->asked) {
        auto done = core->make_promise<named>();
        asked.push_back(done.get_future());
        core->ask<checkpoint_service>(
          provider, actors::repack_request{whole_ms, work_ms},
          [done, name = core->entry(provider).name](result<repack_report> r) {
            done.set(r.map([&](auto& receipt) { return named{name, receipt}; }));
          });
      }
      when_all(asked).chain([all_done](const result<outcomes>& r) { all_done.set(r); });
    });
  return all_done.get_future();
}

} // namespace millrace
