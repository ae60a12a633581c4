// Picks the providers at which a watch waits.
#include <millrace/core/log.hpp>
#include <millrace/runtime/client/calls/checkpoint_call.hpp>
#include <millrace/runtime/client/calls/describe_call.hpp>
#include <millrace/runtime/client/calls/model_search.hpp>
#include <millrace/runtime/client/calls/watch_call.hpp>
#include <millrace/runtime/client/calls/watches.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace::runtime {

namespace {

class model_watch final : public watch_call<model_record> {
public:
  model_watch(
    std::shared_ptr<client_core> core, std::string group, std::string model, std::uint64_t than,
    std::chrono::milliseconds timeout)
    : watch_call(std::move(core), std::move(group), std::move(model), timeout), than_(than) {}

private:
  void start() override {
    auto placed = core_->place_now(model_, group_);
    placed ? wait_at(*placed, {group_, 0}) : end(fail(placed.error()));
  }

  void stop() override {
    if (at_)
      std::exchange(at_, nullptr)->stop();
  }

  void wait_at(std::size_t provider, actors::placement_claim by) {
    actors::watch_request what;
    what.name = model_;
    what.than = than_;
    what.by = std::move(by);
    provider_ = provider;
    at_ = std::make_shared<watch_at_provider<model_record>>(
      core_->watches_at(watched::models, provider), std::move(what), deadline_,
      [self = self()](auto found) { self->look(std::move(found)); },
      [self = self()](result<model_record> newer) { self->on_outcome(std::move(newer)); });
    at_->begin();
  }

  void look(completion<std::optional<model_record>> found) {
    ask_record(
      core_, group_, model_, 0, deadline_,
      [than = than_, found = std::move(found)](result<found_record> r) {
        if (!r && r.error().code() != errc::not_found)
          return found(fail(r.error()));
        auto is_newer = r && r->record.version > than;
        found(is_newer ? std::optional{std::move(r->record)} : std::nullopt);
      });
  }

  // A provider that was never reached may not be the one; the others know.
  void on_outcome(result<model_record> newer) {
    auto was_parked = std::exchange(at_, nullptr)->was_parked();
    if (newer)
      return end(std::move(newer));
    auto& why = newer.error();
    auto moved = why.code() == errc::unsupported_version;
    if (moved && was_parked)
      searches_ = 0;
    if (!moved && (was_parked || !asks_for_search(why)))
      return end(std::move(newer));
    if (searches_++ == searches_max)
      return end(std::move(newer));
    core_->watches_at(watched::models, provider_)
      .in_turn([self = self()](std::function<void()> over) {
        if (self->has_ended())
          return over();
        find_model(
          self->core_, self->group_, self->model_, self->deadline_,
          [self, over = std::move(over)](const result<model_places>& places) {
            self->on_places(places);
            over();
          });
      });
  }

  void on_places(const result<model_places>& places) {
    if (has_ended())
      return;
    places ? wait_at(places->home, places->by)
           : end(fail(places.error().within("waiting for " + model_)));
  }

  std::shared_ptr<model_watch> self() {
    return std::static_pointer_cast<model_watch>(shared_from_this());
  }

  const std::uint64_t than_;
  std::shared_ptr<watch_at_provider<model_record>> at_;
  std::size_t provider_ = 0; // at which it waits, or has waited
  int searches_ = 0;
};

class step_watch final : public watch_call<checkpoint_summary> {
public:
  step_watch(
    std::shared_ptr<client_core> core, std::string group, std::string model,
    std::optional<std::uint64_t> than, std::chrono::milliseconds timeout)
    : watch_call(std::move(core), std::move(group), std::move(model), timeout), than_(than) {}

private:
  void start() override {
    find_keepers(
      core_, group_, model_, core_->deadline_after(), [self = self()](const result<keepers>& all) {
        self->core_->run([self, all = all] { self->wait_at_all(all); });
      });
  }

  void stop() override {
    for (auto& one : std::exchange(at_, {}))
      one->stop();
  }

  void wait_at_all(const result<keepers>& all) {
    if (has_ended())
      return;
    if (!all)
      return end(fail(all.error()));
    actors::watch_request what;
    what.name = model_;
    what.any = !than_;
    what.than = than_.value_or(0);
    waiting_ = all->asked.size();
    for (auto provider : all->asked)
      at_.push_back(std::make_shared<watch_at_provider<checkpoint_summary>>(
        core_->watches_at(watched::checkpoints, provider), what, deadline_,
        [self = self(), provider](auto found) { self->look(provider, std::move(found)); },
        [self = self(), provider](result<checkpoint_summary> later) {
          self->on_outcome(provider, std::move(later));
        }));
    for (auto& one : std::vector{at_})
      if (!has_ended())
        one->begin();
  }

  void look(std::size_t provider, completion<std::optional<checkpoint_summary>> found) {
    describe_checkpoints(core_, provider, model_, deadline_)
      .chain([than = than_, found = std::move(found)](const result<checkpoint_summary>& r) {
        if (!r && r.error().code() != errc::not_found)
          return found(fail(r.error()));
        auto is_later = r &&
          std::ranges::any_of(r->complete_steps, [&](auto step) { return !than || step > *than; });
        found(is_later ? std::optional{*r} : std::nullopt);
      });
  }

  void on_outcome(std::size_t provider, result<checkpoint_summary> later) {
    if (later || --waiting_ == 0)
      return end(std::move(later));
    log().warn(
      "a watch does not wait at one of its providers any more model={} provider={} why=\"{}\"",
      model_, core_->entry(provider).name, later.error().to_string());
  }

  std::shared_ptr<step_watch> self() {
    return std::static_pointer_cast<step_watch>(shared_from_this());
  }

  const std::optional<std::uint64_t> than_;
  std::vector<std::shared_ptr<watch_at_provider<checkpoint_summary>>> at_;
  std::size_t waiting_ = 0; // providers
};

} // namespace

future<model_record> watch_model(
  std::shared_ptr<client_core> core, std::string group, std::string model, std::uint64_t than,
  std::chrono::milliseconds timeout) {
  return std::make_shared<model_watch>(
           std::move(core), std::move(group), std::move(model), than, timeout)
    ->begin();
}

future<checkpoint_summary> watch_steps(
  std::shared_ptr<client_core> core, std::string group, std::string model,
  std::optional<std::uint64_t> than, std::chrono::milliseconds timeout) {
  return std::make_shared<step_watch>(
           std::move(core), std::move(group), std::move(model), than, timeout)
    ->begin();
}

} // namespace millrace::runtime
