// Finds the provider of a model when the one at which its name is placed cannot answer alone.
// Internal, used by `repository` and `store_call`; needs CAF.
#pragma once

#include <millrace/actors/store/store_messages.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace millrace::runtime {

/// A version of a model at one provider, or a mark.
struct model_copy {
  std::size_t provider = 0;
  std::uint64_t version = 0;
};

/// Where a model is, as all providers of its group say.
struct model_places {
  actors::placement_claim by; // for requests that follow from this
  group_history history;
  std::size_t home = 0;              // where a store puts it
  std::optional<std::size_t> newest; // has the newest version
  status missing;                    // why there is no newest
  std::vector<model_copy> copies;    // oldest first
  std::vector<std::size_t> asked;    // every provider of the history that can be asked
  std::vector<std::string> ids;      // the ids of those, in the same order
  std::vector<std::string> gone;     // ids of those that were taken out and cannot be asked
  std::set<std::size_t> unlisted;    // did not answer, and their nodes do not list them any more
  bool may_be_away = false;          // one of them may have a version
  bool marked = false;               // the newest version is the mark of an erasure
};

/// Asks all providers of a group where a model is. Tells them of each other first, where the group
/// has changed. With an empty model it does only that. It answers by the deadline, also while it
/// waits for a provider that does not answer; what it has begun goes on, for the next search.
/// Errors:  `unavailable` naming a provider that may have the model; `unsupported` naming one of an
///          older version; `busy` while the group goes on changing; `deadline_exceeded`.
void find_model(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  time_point deadline, completion<model_places> done);

/// Returns true if other providers must be asked after this error.
bool asks_for_search(const status& why);

inline constexpr int searches_max = 5;

/// Returns what orders the versions of a name: the newer one has the larger age.
template <class Version>
auto age_of(const Version& v) {
  return std::tuple{v.view, v.stored_at_ns, v.version};
}

/// A request about one model that must reach the provider with its newest version. Its searches end
/// by the deadline; what `ask` asks must, too.
template <class Reply>
class keeper_call : public std::enable_shared_from_this<keeper_call<Reply>> {
public:
  using ask_one =
    std::function<void(std::size_t provider, actors::placement_claim by, completion<Reply> done)>;

  keeper_call(
    std::shared_ptr<client_core> core, std::string group, std::string model, time_point deadline,
    ask_one ask, completion<Reply> done)
    : core_(std::move(core)), group_(std::move(group)), model_(std::move(model)),
      deadline_(deadline), ask_(std::move(ask)), done_(std::move(done)) {}

  void begin() {
    auto placed = core_->place_now(model_, group_);
    placed ? begin_at(*placed, {group_, 0}) : done_(fail(placed.error()));
  }

  void begin_at(std::size_t provider, actors::placement_claim by) {
    asked_ = provider;
    ask_(provider, std::move(by), [self = this->shared_from_this()](result<Reply> r) {
      auto again = !r &&
        (asks_for_search(r.error()) ||
         (self->searches_ > 0 && self->searches_ < 3 && r.error().code() == errc::not_found));
      if (!again || self->searches_++ == searches_max)
        return self->done_(std::move(r));
      self->search();
    });
  }

private:
  void search() {
    find_model(
      core_, group_, model_, deadline_,
      [self = this->shared_from_this()](const result<model_places>& places) {
        if (places && places->newest)
          self->begin_at(*places->newest, places->by);
        else if (places || !self->begins_at_home())
          self->done_(fail(places ? places->missing : places.error()));
      });
  }

  // A search that failed may have learnt where the name is placed now. That provider can answer
  // alone if it has a version from since then.
  bool begins_at_home() {
    auto home = core_->place_now(model_, group_);
    if (!home || *home == asked_ || steady_clock::now() >= deadline_)
      return false;
    begin_at(*home, {group_, 0});
    return true;
  }

  std::shared_ptr<client_core> core_;
  std::string group_, model_;
  time_point deadline_;
  ask_one ask_;
  completion<Reply> done_;
  std::size_t asked_ = 0; // last
  int searches_ = 0;
};

/// Asks the provider at which the model is placed; after a search, the one that has it. `ask` must
/// end by the deadline.
template <class Reply>
void ask_keeper(
  std::shared_ptr<client_core> core, std::string group, std::string model, time_point deadline,
  typename keeper_call<Reply>::ask_one ask, completion<Reply> done) {
  std::make_shared<keeper_call<Reply>>(
    std::move(core), std::move(group), std::move(model), deadline, std::move(ask), std::move(done))
    ->begin();
}

} // namespace millrace::runtime
