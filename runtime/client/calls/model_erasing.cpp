// Removes what a search has found, and leaves a mark for what may come back.
#include <millrace/runtime/client/calls/model_erasing.hpp>

#include <fmt/format.h>

#include <memory>
#include <utility>

namespace millrace::runtime {

using actors::store_service;

namespace {

// Erases versions, one after the other.
struct erasing : std::enable_shared_from_this<erasing> {
  std::shared_ptr<client_core> core;
  std::string model;
  actors::placement_claim by;
  std::vector<model_copy> copies;
  time_point deadline;
  completion<void> done;

  void next(std::size_t at) {
    if (at == copies.size())
      return done({});
    auto [provider, version] = copies[at];
    core->ask_until<store_service>(
      deadline, provider, actors::erase_request{model, by, false, version},
      [self = shared_from_this(), at](const result<actors::done_reply>& r) {
        if (r || r.error().code() == errc::not_found)
          return self->next(at + 1);
        auto& why = r.error();
        auto moved = why.code() == errc::unsupported_version;
        auto said = status{moved ? errc::busy : why.code(), why.detail()};
        self->done(fail(said.within(fmt::format(
          "removing the version of {} at provider {}, after {} of {} were removed", self->model,
          self->core->entry(self->copies[at].provider).name, at, self->copies.size()))));
      });
  }
};

// Leaves a mark where the name is placed, if a provider that is away may have a version.
void erase_found(
  const std::shared_ptr<client_core>& core, const std::string& model, const model_places& places,
  time_point deadline, completion<void> done) {
  auto nothing_here = !places.newest;
  // All that the mark is for are here.
  if (places.marked && !places.may_be_away)
    return erase_copies(
      core, model, places.by, places.copies, deadline,
      [missing = places.missing, done = std::move(done)](const result<void>& r) {
        done(fail(r ? missing : r.error()));
      });
  if (nothing_here && (places.marked || !places.may_be_away))
    return done(fail(places.missing));
  if (!places.may_be_away)
    return erase_copies(core, model, places.by, places.copies, deadline, std::move(done));
  if (nothing_here)
    done = [done = std::move(done), missing = places.missing](const result<void>& marked) {
      done(fail(
        marked ? status{missing.code(), missing.detail() + "; it is erased there from now on"}
               : marked.error()));
    };
  auto others = places.copies;
  std::erase_if(others, [&](auto& copy) { return copy.provider == places.home; });
  core->ask_until<store_service>(
    deadline, places.home, actors::erase_request{model, places.by, true},
    [core, model, by = places.by, others, deadline, done](const result<actors::done_reply>& r) {
      if (!r)
        return done(fail(r.error()));
      erase_copies(core, model, by, others, deadline, [model, done](const result<void>& erased) {
        done(
          erased ? erased
                 : fail(erased.error().within(fmt::format(
                     "model {} is marked as erased, but older versions are not; erase it again",
                     model))));
      });
    });
}

} // namespace

void erase_copies(
  const std::shared_ptr<client_core>& core, const std::string& model,
  const actors::placement_claim& by, std::vector<model_copy> copies, time_point deadline,
  completion<void> done) {
  auto all = std::make_shared<erasing>();
  all->core = core;
  all->model = model;
  all->by = by;
  all->copies = std::move(copies);
  all->deadline = deadline;
  all->done = std::move(done);
  all->next(0);
}

void erase_model(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  time_point deadline, completion<void> done) {
  auto placed = core->place_now(model, group);
  if (!placed)
    return done(fail(placed.error()));
  core->ask_until<store_service>(
    deadline, *placed, actors::erase_request{model, {group, 0}, false},
    [core, group, model, deadline, done = std::move(done)](const result<actors::done_reply>& r) {
      if (r)
        return done({});
      if (!asks_for_search(r.error()))
        return done(fail(r.error()));
      find_model(
        core, group, model, deadline,
        [core, model, deadline, done](const result<model_places>& places) {
          places ? erase_found(core, model, *places, deadline, done)
                 : done(fail(places.error().within("nothing was removed")));
        });
    });
}

} // namespace millrace::runtime
