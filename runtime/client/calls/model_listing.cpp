// Lists the models of a group: asks every provider, and leaves of each name what is newest.
#include <millrace/runtime/client/calls/listing.hpp>
#include <millrace/runtime/client/calls/model_erasing.hpp>
#include <millrace/runtime/client/calls/model_listing.hpp>
#include <millrace/runtime/client/calls/model_search.hpp>
#include <millrace/runtime/client/calls/placement.hpp>

#include <algorithm>
#include <map>
#include <optional>

namespace millrace::runtime {

namespace {

using actors::store_service;
using model_listing = listed<model_summary>;

/// A provider that was asked for its models. A listing names it.
struct asked_provider {
  std::size_t number = 0;
  std::string id;
};

/// A mark with all versions that it is for, itself among them, oldest first. Without versions it
/// must stay.
struct listed_mark {
  model_listing::entry mark;
  std::vector<model_copy> copies;
};

/// Leaves each name once, as its newest version says, or as a mark. Providers that were taken out
/// and came back may list versions that were replaced or erased meanwhile.
class newest_versions {
public:
  newest_versions(client_core& core, std::string group, const model_places& places)
    : group_(std::move(group)), places_(places) {
    for (std::size_t i = 0; i < std::min(places.ids.size(), places.asked.size()); ++i) {
      asked_provider one{places.asked[i], places.ids[i]};
      auto [at, is_new] = asked_.emplace(core.entry(one.number).name, one);
      if (!is_new)
        at->second.reset();
    }
  }

  /// `all` is sorted by name.
  void add(const std::vector<model_listing::entry>& all) {
    for (auto first = all.begin(); first != all.end();) {
      auto last = std::find_if(first, all.end(), [&](auto& e) { return e.name != first->name; });
      versions ours;
      // Older services do not name a group.
      for (; first != last; ++first)
        if (first->group.empty() || first->group == group_)
          ours.push_back(&*first);
      std::ranges::stable_sort(ours, {}, [](auto* e) { return age_of(*e); });
      if (!ours.empty())
        add_newest(ours);
    }
  }

  std::vector<model_listing::entry> found;
  std::vector<listed_mark> marks;

private:
  using versions = std::vector<const model_listing::entry*>; // of one name, oldest first

  void add_newest(const versions& all) {
    auto& newest = *all.back();
    auto* from = asked(newest);
    auto is_newest = !from ||
      superseded_by(places_.history, newest.name, from->id, newest.view, places_.gone).empty();
    if (newest.erased)
      marks.push_back({newest, is_newest ? copies_of(all) : std::vector<model_copy>{}});
    else if (is_newest)
      found.push_back(newest);
  }

  // A version of an older view that was stored later than one of a newer view came from a provider
  // that did not know the newer one.
  std::vector<model_copy> copies_of(const versions& all) const {
    std::vector<model_copy> out;
    for (auto* e : all)
      if (auto* from = asked(*e))
        out.push_back({from->number, e->version});
    auto in_order = std::ranges::is_sorted(all, {}, [](auto* e) { return e->stored_at_ns; });
    return in_order && out.size() == all.size() ? out : std::vector<model_copy>{};
  }

  const asked_provider* asked(const model_listing::entry& e) const {
    auto at = asked_.find(e.provider);
    return at != asked_.end() && at->second ? &*at->second : nullptr;
  }

  const std::string group_;
  const model_places& places_;
  std::map<std::string, std::optional<asked_provider>> asked_; // none: two have the name
};

// Removes marks that no provider needs any more, one after the other. Marks that cannot be removed
// stay, for the next listing. What was stored since the listing stays, too.
struct sweeping : std::enable_shared_from_this<sweeping> {
  static constexpr std::size_t marks_max = 1000; // the bound of one listing

  std::shared_ptr<client_core> core;
  actors::placement_claim by;
  time_point deadline;
  std::vector<listed_mark> marks;
  promise<void> done;

  void next(std::size_t at) {
    if (at == marks.size())
      return static_cast<void>(done.set({}));
    erase_copies(
      core, marks[at].mark.name, by, marks[at].copies, deadline,
      [self = shared_from_this(), at](const result<void>& erased) {
        // The others would wait for the same provider.
        if (!erased && is_out_of_reach(erased.error()))
          return static_cast<void>(self->done.set(erased));
        self->next(at + 1);
      });
  }

  static bool is_out_of_reach(const status& why) {
    return why.code() == errc::deadline_exceeded || why.code() == errc::unavailable ||
      why.code() == errc::peer_lost;
  }
};

// True if every provider that may have a version of any name has answered. A first view without
// members stands for others that nobody knows any more.
bool has_all(const model_places& places) {
  return places.history.number() > 0 && !places.history.views.front().members.empty() &&
    std::ranges::all_of(members_of(places.history), [&](auto& m) {
           return std::ranges::find(places.ids, m.id) != places.ids.end();
         });
}

// Those that did not answer and are not gone.
std::vector<std::size_t> members_to_ask(client_core& core, const model_places& places) {
  std::vector<std::size_t> out;
  for (auto& m : members_of(places.history))
    if (std::ranges::find(places.gone, m.id) == places.gone.end())
      out.push_back(core.number_of(m, places.history.group));
  return out;
}

// The client's file may have a name that no view knows: such a provider has no models. One that
// answered may have another name now.
bool may_be_silent(const model_places& places, const provider_entry& p) {
  auto& views = places.history.views;
  if (views.empty() || views.front().members.empty())
    return true;
  return std::ranges::any_of(members_of(places.history), [&](auto& m) {
    auto answered = std::ranges::find(places.ids, m.id) != places.ids.end();
    return m.name == p.name && m.node == p.node && !answered;
  });
}

void list_at(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& prefix,
  std::uint32_t page, time_point deadline, const model_places& places, const status& incomplete,
  const promise<model_listing>& done) {
  auto ask = [core, prefix, page,
              deadline](std::size_t provider, const std::string& after, auto answer) {
    core->ask_until<store_service>(
      deadline, provider, actors::list_request{prefix, after, page},
      [answer, page](result<actors::model_list> r) {
        answer(r.map([&](auto& list) {
          auto more = list.models.size() >= page;
          return listing_page<model_summary>{std::move(list.models), more};
        }));
      });
  };
  auto all = listing<model_summary>::begin(
    core, places.asked, std::move(ask),
    [](const model_summary& m) -> const std::string& { return m.name; });
  all.chain([core, group, deadline, places, incomplete, done](const result<model_listing>& r) {
    if (!r)
      return static_cast<void>(done.set(fail(r.error())));
    newest_versions newest{*core, group, places};
    newest.add(r->found);
    model_listing out;
    out.found = std::move(newest.found);
    out.silent = r->silent;
    if (out.silent.empty() && !incomplete.ok())
      out.silent.push_back({{}, incomplete});
    auto sweep = std::make_shared<sweeping>();
    auto may_sweep = out.silent.empty() && has_all(places);
    for (auto& one : newest.marks) {
      auto goes = may_sweep && !one.copies.empty() && sweep->marks.size() < sweeping::marks_max;
      goes ? sweep->marks.push_back(std::move(one)) : out.marks.push_back(std::move(one.mark));
    }
    sweep->core = core;
    sweep->by = places.by;
    sweep->deadline = deadline;
    sweep->done = core->make_promise<void>();
    out.swept = sweep->done.get_future();
    done.set(std::move(out));
    sweep->next(0);
  });
}

} // namespace

future<listed<model_summary>> list_models(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& prefix,
  std::uint32_t page) {
  auto done = core->make_promise<model_listing>();
  auto deadline = core->deadline_after();
  auto list = [core, group, prefix, page, deadline, done](const result<model_places>& found) {
    // Services of older versions have no views.
    auto code = found ? errc::ok : found.error().code();
    auto incomplete = code == errc::unavailable || code == errc::deadline_exceeded;
    if (!found && !incomplete && code != errc::unsupported)
      return static_cast<void>(done.set(fail(found.error())));
    auto places = found.value_or(model_places{});
    // Providers that did not answer are asked once more: the listing names them with the reason.
    // Their nodes tell which of them no longer exist.
    auto& all = core->where().providers;
    auto more = members_to_ask(*core, places);
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].group == group && may_be_silent(places, all[i]))
        more.push_back(i);
    for (auto provider : more)
      if (
        !places.unlisted.contains(provider) &&
        std::ranges::find(places.asked, provider) == places.asked.end())
        places.asked.push_back(provider);
    if (places.asked.empty())
      return static_cast<void>(done.set(fail(place(prefix, group, all).error())));
    list_at(
      core, group, prefix, page, deadline, places, incomplete ? found.error() : status{}, done);
  };
  find_model(core, group, {}, core->search_deadline_after(), std::move(list));
  return done.get_future();
}

} // namespace millrace::runtime
