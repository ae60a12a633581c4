// Asks every provider of a group, brings their views together, and picks the newest version.
#include <millrace/runtime/client/calls/model_search.hpp>
#include <millrace/runtime/client/calls/placement.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace millrace::runtime {

using actors::location;
using actors::store_service;
using actors::views_compared;

namespace {

class model_search : public std::enable_shared_from_this<model_search> {
public:
  model_search(
    std::shared_ptr<client_core> core, std::string group, std::string model,
    completion<model_places> done)
    : core_(std::move(core)), group_(std::move(group)), model_(std::move(model)),
      done_(std::move(done)) {}

  void begin() {
    answers_.clear();
    ids_.clear();
    early_.clear();
    two_of_one_id_ = {};
    is_one_renamed_ = false;
    asked_others_ = false;
    places_ = {};
    everyone_ = model_.empty();
    auto placed = core_->place_now(model_, group_);
    if (!placed)
      return done_(fail(placed.error()));
    placed_ = *placed;
    ask(everyone_ ? everyone_known() : std::set{placed_});
  }

private:
  std::set<std::size_t> everyone_known() const {
    std::set<std::size_t> known = listed_;
    known.insert(placed_);
    auto& all = core_->where().providers;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].group == group_)
        known.insert(i);
    std::erase_if(known, [this](auto i) { return answers_.contains(i); });
    return known;
  }

  // Asks these providers, and then those that follow from their answers.
  void ask(const std::set<std::size_t>& providers) {
    std::vector<std::size_t> asked{providers.begin(), providers.end()};
    std::vector<future<location>> coming;
    coming.reserve(asked.size());
    for (auto p : asked)
      coming.push_back(core_->ask<store_service, actors::locate_request, location>(
        p, {group_, model_, must_answer(p) ? 0 : core_->connect_timeout_ms()}));
    when_all(coming).chain(
      [self = shared_from_this(), asked](const result<std::vector<result<location>>>& answers) {
        for (std::size_t i = 0; i < asked.size(); ++i)
          self->answers_.emplace(asked[i], (*answers)[i]);
        if (self->sees_a_start())
          return self->ask_anew();
        self->merge();
        if (!self->two_of_one_id_.ok())
          return self->end_with_two_of_one_id();
        if (self->asked_nodes_.empty() && self->misses_one())
          return self->ask_nodes();
        self->everyone_ ? self->ask_everyone() : self->ask_keepers();
      });
  }

  // A file has no two of one id: a node with both was started anew, with another name for one.
  void end_with_two_of_one_id() {
    if (!is_one_renamed_ || searches_++ == searches_max)
      return done_(fail(two_of_one_id_));
    begin();
  }

  // Others are asked only for what they know of the group. One that is stuck must not hold up the
  // requests that others can answer.
  bool must_answer(std::size_t provider) {
    return model_.empty() || ids_.empty() || provider == placed_ ||
      std::ranges::any_of(members_of(places_.history), [&](auto& m) {
             return may_have(m) && core_->number_of(m, group_) == provider;
           });
  }

  bool sees_a_start() {
    bool is_new = false;
    for (auto& [provider, answer] : answers_)
      if (answer && answer->compared != views_compared::with_all)
        is_new |= starts_.insert(answer->start).second;
    return is_new;
  }

  // What the others said before a provider started says nothing of what they have changed since.
  // Those that could not be asked just now are not asked again.
  void ask_anew() {
    if (anew_++ == searches_max)
      return done_(fail(goes_on_changing()));
    merge();
    everyone_ = true;
    std::erase_if(answers_, [](auto& entry) { return entry.second.has_value(); });
    auto all = everyone_known();
    for (auto& [id, provider] : ids_)
      all.insert(provider);
    ask(all);
  }

  // True if a provider that may have the name, or any if all are asked, was asked and is not there.
  bool misses_one() {
    return std::ranges::any_of(members_of(places_.history), [this](auto& m) {
      return !ids_.contains(m.id) && (everyone_ || may_have(m)) &&
        answers_.contains(core_->number_of(m, group_));
    });
  }

  // One provider that knows a view which is in use says who may have the model. Providers that
  // cannot have it may be down.
  void ask_keepers() {
    std::set<std::size_t> more;
    auto ready = !ids_.empty() && std::ranges::all_of(answers_, [this](auto& entry) {
      return !entry.second || is_ready(*entry.second);
    });
    if (!ready) {
      everyone_ = true;
      more = everyone_known();
      return more.empty() ? ask_everyone() : ask(more);
    }
    for (auto& m : members_of(places_.history))
      if (auto number = core_->number_of(m, group_); may_have(m) && !answers_.contains(number))
        more.insert(number);
    more.empty() ? choose() : ask(more);
  }

  void ask_everyone() {
    auto more = named_but_not_asked();
    more.empty() ? judge() : ask(more);
  }

  std::set<std::size_t> named_but_not_asked() {
    std::set<std::size_t> more;
    auto add = [&](const group_member& m) {
      auto number = core_->number_of(m, group_);
      if (!answers_.contains(number))
        more.insert(number);
    };
    for (auto& m : members_of(places_.history))
      if (!ids_.contains(m.id))
        add(m);
    for (auto& [provider, answer] : answers_)
      if (answer)
        std::ranges::for_each(answer->proposal, add);
    return more;
  }

  // Brings together what the providers know.
  void merge() {
    auto& all = places_.history;
    all = {group_, {}, 0};
    ids_.clear();
    for (auto& [provider, answer] : answers_) {
      if (!answer)
        continue;
      auto [at, is_new] = ids_.emplace(answer->id, provider);
      if (!is_new && at->second != provider) {
        auto &one = core_->entry(at->second), &other = core_->entry(provider);
        two_of_one_id_ = same_id(one.name, other.name, answer->id);
        is_one_renamed_ = one.node == other.node;
      }
      auto& views = answer->history.views;
      all.views.insert(all.views.end(), views.begin(), views.end());
      all.settled = std::max(all.settled, answer->history.settled);
    }
    std::ranges::sort(all.views);
    // One that this client has seen in use. Those that answer may have been away since before it.
    if (auto known = core_->known_view(group_); known.number > all.number())
      all.views.push_back(std::move(known));
    all.views.erase(std::unique(all.views.begin(), all.views.end()), all.views.end());
    // One without members stands for all before it.
    auto unknown =
      std::find_if(all.views.rbegin(), all.views.rend(), [](auto& v) { return v.members.empty(); });
    if (unknown != all.views.rend())
      std::erase_if(all.views, [n = unknown->number](auto& v) {
        return v.number <= n && !(v.members.empty() && v.number == n);
      });
  }

  void judge() {
    for (auto& [provider, answer] : answers_)
      if (!answer && answer.error().code() == errc::unsupported)
        return done_(fail(
          errc::unsupported,
          "provider {} is of an older version, which cannot say where models are; upgrade it: {}",
          core_->entry(provider).name, answer.error().detail()));
    if (ids_.empty() && asked_nodes_.empty())
      return ask_nodes();
    if (ids_.empty())
      return done_(fail(answers_.begin()->second.error()));
    // The group is new to all that are in it now. Others may have been in it before.
    if (places_.history.views.empty() && asked_nodes_.empty())
      return ask_nodes();
    if (places_.history.views.empty() && !std::exchange(asked_others_, true))
      if (auto others = others_listed(); !others.empty())
        return ask(others);
    // One that is proposed may not be there yet.
    if (asked_nodes_.empty() && proposes_one_that_is_missing())
      return ask_nodes();
    auto added = add_views();
    if (!added)
      return done_(fail(added.error()));
    auto& all = places_.history;
    bool in_use = !*added && all.settled == all.number() && all.number() > 0;
    has_asked_all_ = !misses_a_view();
    std::vector<std::size_t> behind;
    for (auto& m : members_of(all)) {
      auto at = ids_.find(m.id);
      if (at != ids_.end() && !is_ready(*answers_[at->second]))
        behind.push_back(at->second);
      if (at == ids_.end() && !in_use && is_present(m))
        return done_(fail(out_of_reach(m)));
    }
    behind.empty() ? choose() : tell(std::move(behind));
  }

  // True if a provider that may know a newer view was asked and has not answered.
  bool misses_a_view() {
    auto all = members_of(places_.history);
    auto missing = [&](const group_member& m) {
      return !ids_.contains(m.id) && is_present(m) && !is_unlisted(core_->number_of(m, group_));
    };
    auto in_a_view = [&](std::size_t provider) {
      return std::ranges::any_of(
        all, [&](auto& m) { return core_->number_of(m, group_) == provider; });
    };
    return std::ranges::any_of(all, missing) || std::ranges::any_of(answers_, [&](auto& entry) {
             auto& [provider, answer] = entry;
             return !answer && core_->entry(provider).group == group_ && !is_unlisted(provider) &&
               !in_a_view(provider);
           });
  }

  // Some that a view names are not where it says, or all are not. Nodes know the present names.
  void ask_nodes() {
    std::set<std::string> names;
    for (auto& node : core_->where().nodes)
      names.insert(node.name);
    ask_nodes(names, true);
  }

  void ask_nodes(const std::set<std::string>& names, bool further) {
    asked_nodes_.insert(names.begin(), names.end());
    core_->ask_nodes(
      names, time_point::max(),
      [self = shared_from_this(), further](const result<std::vector<actors::directory>>& answers) {
        auto more = self->learn(*answers);
        if (further && !more.empty())
          return self->ask_nodes(more, false);
        auto providers = self->everyone_ ? self->everyone_known() : std::set<std::size_t>{};
        providers.merge(self->named_but_not_asked());
        self->ask(providers);
      });
  }

  // Returns the nodes that the answers name and that were not asked.
  std::set<std::string> learn(const std::vector<actors::directory>& answers) {
    std::set<std::string> more;
    for (auto& where : answers)
      has_answered_.insert(where.node);
    for (auto& where : answers)
      for (auto& p : where.providers) {
        if (p.group == group_)
          listed_.insert(core_->number_of(p));
        if (p.node == where.node)
          at_home_.insert(core_->number_of(p));
        if (p.node == where.node && !p.id.empty())
          with_known_id_.insert(core_->number_of(p));
        else
          of_others_.insert(core_->number_of(p));
        if (!asked_nodes_.contains(p.node))
          more.insert(p.node);
      }
    return more;
  }

  std::set<std::size_t> others_listed() {
    auto out = of_others_;
    out.insert(with_known_id_.begin(), with_known_id_.end());
    std::erase_if(out, [this](auto i) { return answers_.contains(i); });
    return out;
  }

  bool proposes_one_that_is_missing() {
    return std::ranges::any_of(answers_, [this](auto& entry) {
      return entry.second && std::ranges::any_of(entry.second->proposal, [this](auto& m) {
               auto at = answers_.find(core_->number_of(m, group_));
               return at != answers_.end() && !at->second;
             });
    });
  }

  // Returns what the provider that a view or a file names has answered; null if it has not.
  const location* answer_of(const group_member& m) {
    auto at = answers_.find(core_->number_of(m, group_));
    return at != answers_.end() && at->second ? &*at->second : nullptr;
  }

  // One that is listed and has not said its id may be one of the views under another name.
  std::string of_unknown_id() {
    auto known = members_of(places_.history);
    for (auto provider : of_others_) {
      auto& entry = core_->entry(provider);
      auto answered = answers_.find(provider);
      if (
        !with_known_id_.contains(provider) && (answered == answers_.end() || !answered->second) &&
        std::ranges::find(known, entry.name, &group_member::name) == known.end())
        return entry.name;
    }
    return {};
  }

  bool is_ready(const location& l) const {
    auto& all = places_.history;
    return all.number() > 0 && l.history.views == all.views && l.history.settled == all.number() &&
      (l.proposal.empty() || early_.contains(ids_.at(l.id))) &&
      l.compared == views_compared::with_all;
  }

  // A file names a provider that its node does not have yet: it runs with another file. Then the
  // newest view is used until it has restarted.
  bool is_early(const std::vector<group_member>& proposal) {
    auto& all = places_.history;
    return all.number() > 0 && all.settled == all.number() &&
      std::ranges::all_of(proposal, [this](auto& m) {
             return answer_of(m) || ids_.contains(m.id.empty() ? m.name : m.id) ||
               has_answered_.contains(m.node);
           });
  }

  // Makes views of the files that ask for one. Returns true if it made any.
  result<bool> add_views() {
    auto& all = places_.history;
    std::set<std::vector<group_member>> asked_for;
    for (auto& [provider, answer] : answers_) {
      if (!answer || answer->proposal.empty())
        continue;
      auto members = identify(answer->proposal);
      if (!members && !is_early(answer->proposal))
        return fail(members.error());
      if (members)
        asked_for.insert(std::move(*members));
      else
        early_.insert(provider);
    }
    auto count = all.views.size();
    auto twice = count > 1 && all.views[count - 2].number == all.number();
    if (count > 0 && !twice)
      asked_for.erase(all.views.back().members);
    if (twice && asked_for.empty())
      asked_for.insert(all.views.back().members);
    for (auto& members : asked_for)
      all.views.push_back({next_view_number(all), members});
    if (!asked_for.empty())
      all.settled = 0;
    if (all.views.empty() || all.views.back().members.empty())
      return fail(nobody_in_group());
    bound(all);
    return !asked_for.empty();
  }

  status nobody_in_group() const {
    auto listed = place(model_, group_, core_->where().providers);
    auto all_say_so = std::ranges::all_of(answers_, [](auto& a) { return a.second.has_value(); });
    return !listed && all_say_so
      ? listed.error()
      : status{errc::unavailable, "no provider says which providers are in group {}", group_};
  }

  // Files name providers; the providers know their ids.
  result<std::vector<group_member>> identify(std::vector<group_member> members) {
    std::set<const location*> named;
    for (auto& m : members)
      named.insert(answer_of(m));
    for (auto& m : members) {
      auto* answer = answer_of(m);
      // The file may have a name that it had before.
      if (auto found = ids_.find(m.id.empty() ? m.name : m.id); !answer && found != ids_.end())
        if (auto* other = &*answers_.at(found->second); !named.contains(other))
          answer = other;
      if (!answer)
        return fail(out_of_reach(m));
      m.id = answer->id;
      m.forgets = answer->forgets;
    }
    std::ranges::sort(members);
    for (std::size_t i = 1; i < members.size(); ++i)
      if (members[i - 1].id == members[i].id)
        return fail(same_id(members[i - 1].name, members[i].name, members[i].id));
    return members;
  }

  status same_id(const std::string& one, const std::string& other, const std::string& id) const {
    return {
      errc::invalid_argument,
      "providers {} and {} have the same id, {}; give the newer one another (providers[].id)", one,
      other, id};
  }

  // Taken out of the group, and of the file of this client: the operator says that it is gone.
  bool is_present(const group_member& m) {
    auto& now = places_.history.views.back().members;
    if (std::ranges::find(now, m.id, &group_member::id) != now.end())
      return true;
    auto listed = std::ranges::any_of(core_->where().providers, [&](auto& entry) {
      return entry.name == m.name || (!entry.id.empty() && entry.id == m.id);
    });
    return listed || !of_unknown_id().empty();
  }

  status out_of_reach(const group_member& m) {
    auto answer = answers_.find(core_->number_of(m, group_));
    auto what = model_.empty()
      ? fmt::format("provider {} of group {} must be asked", m.name, group_)
      : fmt::format("provider {} of group {} may have model {}", m.name, group_, model_);
    if (auto other = of_unknown_id(); !other.empty())
      what += fmt::format(
        " (it may be called {} now, of which nothing is known: its node does not answer)", other);
    auto why = answer == answers_.end() ? "nothing is known of it"
      : answer->second                  ? "it has another id now"
                                        : answer->second.error().to_string();
    return {
      errc::unavailable,
      "{}, and cannot be asked: {}; if it is gone for good, take it out of the providers of every "
      "node, and restart the nodes",
      what, why};
  }

  // Tells the providers that are behind: first the views, and when all have them, that all have.
  void tell(std::vector<std::size_t> behind) {
    if (searches_++ == searches_max)
      return done_(fail(goes_on_changing()));
    actors::adopt_request told{places_.history, has_asked_all_};
    told.history.settled = 0;
    tell_all(behind, told, [self = shared_from_this(), behind, told]() mutable {
      told.history.settled = told.history.number();
      self->tell_all(behind, told, [self] { self->begin(); });
    });
  }

  status goes_on_changing() const {
    return {errc::busy, "the providers of group {} go on changing; try again", group_};
  }

  template <class Then>
  void tell_all(const std::vector<std::size_t>& providers, actors::adopt_request told, Then then) {
    std::vector<future<actors::done_reply>> coming;
    coming.reserve(providers.size());
    for (auto p : providers) {
      told.start = answers_.at(p)->start;
      coming.push_back(core_->ask<store_service>(p, told));
    }
    when_all(coming).chain(
      [self = shared_from_this(), providers,
       then](const result<std::vector<result<actors::done_reply>>>& answers) mutable {
        for (std::size_t i = 0; i < providers.size(); ++i) {
          auto& answer = (*answers)[i];
          if (!answer && answer.error().code() == errc::busy)
            return self->begin(); // it knows more than it did
          if (!answer)
            return self->done_(fail(answer.error().within(fmt::format(
              "telling provider {} which providers are in group {}",
              self->core_->entry(providers[i]).name, self->group_))));
        }
        then();
      });
  }

  void choose() {
    auto& all = places_.history;
    places_.by = {group_, all.number()};
    core_->learn_view(group_, all.views.back());
    for (auto& m : members_of(all)) {
      if (auto at = ids_.find(m.id); at != ids_.end())
        places_.asked.push_back(at->second), places_.ids.push_back(m.id);
      else if (answers_.contains(core_->number_of(m, group_)) && !is_present(m))
        places_.gone.push_back(m.id);
    }
    for (auto& [provider, answer] : answers_)
      if (!answer && is_unlisted(provider))
        places_.unlisted.insert(provider);
    if (model_.empty())
      return done_(std::move(places_));
    status bad = check_keepers();
    if (!bad.ok())
      return done_(fail(bad));
    places_.home = ids_.at(home_of(model_, all.views.back())->id);
    pick_newest();
    done_(std::move(places_));
  }

  bool is_unlisted(std::size_t provider) const {
    return has_answered_.contains(core_->entry(provider).node) && !at_home_.contains(provider);
  }

  // Every provider at which a view placed the name must have answered, or be gone.
  status check_keepers() {
    for (auto& m : members_of(places_.history)) {
      if (!may_have(m) || ids_.contains(m.id))
        continue;
      if (is_present(m))
        return out_of_reach(m);
      places_.may_be_away = true;
      away_ = m.name;
    }
    return {};
  }

  bool may_have(const group_member& m) const {
    return std::ranges::any_of(places_.history.views, [&](auto& v) {
      auto* home = home_of(model_, v);
      return !home || home->id == m.id;
    });
  }

  status because(const std::string& why) const {
    return {errc::not_found, "no model named {}: {}", model_, why};
  }

  void pick_newest() {
    auto age = [&](const model_copy& copy) { return age_of(*answers_[copy.provider]); };
    for (auto provider : places_.asked)
      if (answers_[provider]->has_model)
        places_.copies.push_back({provider, answers_[provider]->version});
    std::ranges::sort(places_.copies, {}, age);
    places_.missing = {errc::not_found, "no model named {} in group {}", model_, group_};
    if (places_.copies.empty()) {
      if (places_.may_be_away)
        places_.missing = because(
          fmt::format("it may be at provider {}, which was taken out of group {}", away_, group_));
      return;
    }
    auto newest = places_.copies.back().provider;
    auto& at = *answers_[newest];
    auto why = superseded_by(places_.history, model_, at.id, at.view, places_.gone);
    if (!why.empty())
      places_.missing = because(why);
    else if (at.erased)
      places_.marked = true;
    else
      places_.newest = newest;
  }

  std::shared_ptr<client_core> core_;
  std::string group_, model_;
  completion<model_places> done_;
  std::map<std::size_t, result<location>> answers_; // by provider
  std::map<std::string, std::size_t> ids_;          // the ids of those that answered
  model_places places_;
  std::size_t placed_ = 0;
  bool everyone_ = false; // is asked, since the providers do not agree
  std::string away_;      // the name of a provider that may have it and is gone
  status two_of_one_id_;
  bool is_one_renamed_ = false; // they are of one node
  std::set<std::string> asked_nodes_;
  std::set<std::string> has_answered_;  // the nodes that have answered
  std::set<std::size_t> early_;         // their files name providers that are not there yet
  bool asked_others_ = false;           // providers of other groups
  std::set<std::size_t> listed_;        // by nodes, of this group
  std::set<std::size_t> at_home_;       // listed by their own nodes, of any group
  std::set<std::size_t> of_others_;     // listed by nodes that do not have them, of any group
  std::set<std::size_t> with_known_id_; // their own nodes have said it
  std::set<std::uint64_t> starts_;      // of providers that have not compared their views
  bool has_asked_all_ = false;          // that may know a newer view
  int searches_ = 0, anew_ = 0;
};

status late_search(const std::string& model, const std::string& group) {
  auto what = model.empty() ? std::string{} : " about model " + model;
  return {
    errc::deadline_exceeded,
    "a provider of group {} that must be asked{} has not answered within the operation's time",
    group, what};
}

} // namespace

void find_model(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  time_point deadline, completion<model_places> done) {
  auto found = std::make_shared<promise<model_places>>();
  found->get_future().chain(std::move(done));
  core->at(deadline, [weak = std::weak_ptr{found}, model, group] {
    if (auto waits = weak.lock())
      waits->set(fail(late_search(model, group)));
  });
  std::make_shared<model_search>(core, group, model, [found](result<model_places> r) {
    found->set(std::move(r));
  })->begin();
}

bool asks_for_search(const status& why) {
  return why.code() == errc::unsupported_version || why.code() == errc::unavailable;
}

} // namespace millrace::runtime
