// Compares file and bucket at the start, and answers by the views that the provider knows.
#include <millrace/actors/store/placement_keeper.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/ids.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/storage/await.hpp>

#include <algorithm>

namespace millrace::actors {

namespace {

const std::string own_record = std::string{storage::own_name_prefix} + "placement";
constexpr auto metadata_key = "placement";
constexpr std::uint32_t names_page = 1000;
constexpr std::size_t groups_max = 64; // the groups whose models one bucket has had
// What peers make a provider keep. Decoded it takes less than the codec allows by default.
constexpr std::size_t kept_bytes_max = 2u << 20;

// Two files say the same of a group if they name the same providers.
std::vector<group_member> by_name(std::vector<group_member> members) {
  for (auto& m : members)
    m.id.clear(), m.forgets = false;
  std::ranges::sort(members, {}, &group_member::name);
  return members;
}

group_history& history_of(kept_placement& kept, const std::string& group) {
  for (auto& h : kept.histories)
    if (h.group == group)
      return h;
  return kept.histories.emplace_back(group_history{group, {}, 0});
}

auto unreadable(const std::string& why) {
  return fail(
    errc::corrupt_data,
    "{}; `millrace models salvage` writes the models to files, from which a new bucket can be "
    "filled",
    why);
}

result<std::optional<kept_placement>> read_kept(
  storage::bucket& bucket, std::chrono::milliseconds deadline) {
  using opened = std::shared_ptr<storage::opened_model>;
  auto found = storage::await<opened>(
    deadline, [&](completion<opened> done) { bucket.open(own_record, 0, std::move(done)); });
  if (!found && found.error().code() == errc::not_found)
    return std::optional<kept_placement>{};
  if (!found)
    return fail(found.error());
  for (auto& [key, value] : (*found)->record().spec.metadata)
    if (key == metadata_key) {
      auto kept = decode<kept_placement>(
        std::as_bytes(std::span{value}), "the placement that a bucket keeps");
      if (!kept)
        return unreadable(kept.error().detail());
      return std::optional{std::move(*kept)};
    }
  return unreadable("the placement that a bucket keeps is empty");
}

using models_page = std::vector<model_summary>;

result<models_page> list_models(
  storage::bucket& bucket, const std::string& after, std::uint32_t count,
  std::chrono::milliseconds deadline) {
  return storage::await<models_page>(deadline, [&](completion<models_page> done) {
    bucket.list({}, after, count, std::move(done));
  });
}

// A bucket that an older build wrote may have models that its file places elsewhere.
result<bool> has_strays(
  storage::bucket& bucket, const std::string& id, const placement_file& file,
  std::chrono::milliseconds deadline) {
  group_view now{1, file.members};
  for (auto& m : now.members)
    m.id = m.name == file.name ? id : m.id.empty() ? m.name : m.id;
  for (auto after = storage::after_own_names();;) {
    auto names = list_models(bucket, after, names_page, deadline);
    if (!names)
      return fail(names.error());
    for (auto& model : *names)
      if (home_of(model.name, now)->id != id)
        return true;
    if (names->size() < names_page)
      return false;
    after = names->back().name;
  }
}

void say_if_file_is_older(
  const kept_placement& kept, const group_history& h, const std::string& provider) {
  if (
    h.group == kept.group && !kept.proposes && !h.views.empty() && !kept.file.empty() &&
    by_name(h.views.back().members) != kept.file)
    log().warn(
      "the file of a provider is older than the view that its group uses; models are placed by "
      "the view, number {} provider={} group={}",
      h.number(), provider, h.group);
}

void say_where_they_disagree(const kept_placement& kept, const placement_file& file) {
  if (!file.id.empty() && file.id != kept.id)
    log().warn(
      "the bucket of a provider keeps another id than its file; the bucket's is used provider={} "
      "file=\"{}\" bucket=\"{}\"",
      file.name, file.id, kept.id);
  for (auto& h : kept.histories)
    say_if_file_is_older(kept, h, file.name);
}

// A provider that has always been alone need not ask anyone. One that is new in its group must ask
// those of other groups, which may have been in this one before.
void settle_alone(kept_placement& kept, const placement_file& file, bool loses_models) {
  auto& h = history_of(kept, file.group);
  auto others = std::ranges::any_of(members_of(h), [&](auto& m) { return m.id != kept.id; });
  auto is_new = h.views.empty() && (file.of_several || kept.histories.size() > 1);
  if (
    !kept.proposes || file.members.size() != 1 || others || is_new ||
    h.views.size() == group_views_max)
    return;
  auto me = file.members.front();
  me.id = kept.id;
  me.forgets = loses_models;
  // Earlier views of the same provider place every name as this one does.
  h.views = {{next_view_number(h), {me}}};
  h.settled = h.number();
  kept.proposes = false;
}

} // namespace

bool forgets(const storage::bucket& bucket) {
  auto can = bucket.capabilities();
  return can.evicts || !can.durable;
}

kept_placement placement_alone(const std::string& name, const std::string& group) {
  group_member me;
  me.id = me.name = name;
  return {name, group, {}, false, group, {{group, {{1, {me}}}, 1}}};
}

result<kept_placement> placement_at_start(
  storage::bucket& bucket, const placement_file& file, std::chrono::milliseconds deadline) {
  auto read = read_kept(bucket, deadline);
  if (!read)
    return fail(read.error());
  auto kept = read->value_or(kept_placement{});
  auto is_new = !*read;
  if (!is_new && !file.id.empty() && file.id != kept.id) {
    auto models = list_models(bucket, storage::after_own_names(), 1, deadline);
    if (!models)
      return fail(models.error());
    // No name is found by the id of a bucket without models.
    if (is_new = models->empty(); is_new)
      kept = {};
  }
  if (is_new) {
    kept.id = file.id.empty() ? file.name : file.id;
    kept.first_group = file.group;
    auto strays = file.members.size() > 1 ? has_strays(bucket, kept.id, file, deadline) : false;
    if (!strays)
      return fail(strays.error());
    if (*strays)
      history_of(kept, file.group).views.push_back({});
  }
  auto members = by_name(file.members);
  if (kept.group != file.group || kept.file != members)
    kept.proposes = true;
  kept.group = file.group;
  kept.file = std::move(members);
  settle_alone(kept, file, forgets(bucket));
  say_where_they_disagree(kept, file);
  if (*read && **read == kept)
    return kept;
  auto written = storage::await<void>(
    deadline, [&](completion<void> done) { keep_placement(bucket, kept, std::move(done)); });
  if (written)
    return kept;
  auto bad = written.error().within("keeping the placement of provider " + file.name);
  // If the record could not be written, the next start with this file computes the same.
  if (*read && bad.code() != errc::no_space)
    return fail(bad);
  log().warn("{}", bad.to_string());
  return kept;
}

void keep_placement(storage::bucket& bucket, const kept_placement& what, completion<void> done) {
  auto bytes = encode(what);
  model_spec spec;
  spec.name = own_record;
  spec.metadata = {
    {metadata_key, std::string{reinterpret_cast<const char*>(bytes.data()), bytes.size()}}};
  spec.pinned = true;
  store_empty(bucket, std::move(spec), std::move(done));
}

void store_empty(storage::bucket& bucket, model_spec spec, completion<void> done) {
  using reserved = std::unique_ptr<storage::reservation>;
  bucket.reserve(std::move(spec), {}, [done = std::move(done)](result<reserved> r) {
    if (!r)
      return done(fail(r.error()));
    // The reservation lives until its outcome is known.
    std::shared_ptr<storage::reservation> kept = std::move(*r);
    kept->publish({}, [kept, done](const result<std::uint64_t>& version) {
      version ? done({}) : done(fail(version.error()));
    });
  });
}

namespace {

bool stands_for(const group_history& newer, const group_view& view) {
  auto& first = newer.views.front();
  return (first.members.empty() && view.number <= first.number) ||
    std::ranges::find(newer.views, view) != newer.views.end();
}

} // namespace

placement_keeper::placement_keeper(kept_placement kept, std::function<time_point()> now)
  : kept_(std::move(kept)), now_(std::move(now)) {
  random_bytes(&start_, sizeof start_);
  if (is_planted(defect::views_not_compared))
    return;
  for (auto& h : kept_.histories) {
    auto alone = !h.views.empty() && std::ranges::all_of(h.views, [this](auto& v) {
      return v.members.size() == 1 && v.members.front().id == kept_.id;
    });
    if (!alone)
      compared_[h.group] = {};
  }
  if (!find(kept_.group))
    compared_[kept_.group] = {};
}

std::uint64_t placement_keeper::kept_bytes() const {
  return kept_.file.empty() ? 0 : encode(kept_).size();
}

const group_history* placement_keeper::find(const std::string& group) const {
  for (auto& h : kept_.histories)
    if (h.group == group)
      return &h;
  return nullptr;
}

bool placement_keeper::has_settled(const group_history& h) {
  auto known = !h.views.empty() && !h.views.back().members.empty();
  return known && h.settled == h.number();
}

bool placement_keeper::is_settled(const group_history& h) const {
  auto waits = kept_.proposes && h.group == kept_.group;
  return has_settled(h) && !waits;
}

status placement_keeper::ask_others(const std::string& model, const std::string& group) const {
  return {
    errc::unsupported_version,
    "provider {} alone does not know where model {} is, since the providers of group {} have "
    "changed; a client of this version asks the other ones, too",
    kept_.id, model, group};
}

// Lets one request of each interval find out whether those can be asked now that could not before.
bool placement_keeper::must_compare(const std::string& group) {
  auto at = compared_.find(group);
  if (at == compared_.end() || at->second.with == views_compared::with_all)
    return false;
  auto now = now_();
  if (at->second.with == views_compared::with_some && now < at->second.next)
    return false;
  at->second.next = now + compares_every;
  at->second.under_way = true;
  return true;
}

status placement_keeper::may_answer(
  const std::string& model, const placement_claim& by, std::optional<std::uint64_t> stored_in) {
  auto* h = find(group_of(by));
  // A client that names the view has searched all providers and knows what this one proposes.
  auto may = by.number != 0 ? h && has_settled(*h) && by.number == h->number()
                            : h && is_settled(*h) &&
      rests_only_at(*h, model, kept_.id, stored_in.value_or(0)) && !must_compare(h->group);
  return may ? status{} : ask_others(model, group_of(by));
}

result<placement_claim> placement_keeper::may_store(
  const std::string& model, const placement_claim& by) {
  if (auto bad = may_answer(model, by); !bad.ok())
    return fail(bad);
  auto& h = *find(group_of(by));
  auto* home = home_of(model, h.views.back());
  if (home->id != kept_.id)
    return fail(ask_others(model, h.group));
  return placement_claim{h.group, h.number()};
}

status placement_keeper::still_holds(const std::string& model, const placement_claim& by) const {
  auto* h = find(by.group);
  return h && has_settled(*h) && h->number() == by.number ? status{} : ask_others(model, by.group);
}

location placement_keeper::describe(const std::string& group) const {
  location l;
  l.id = kept_.id;
  if (auto* h = find(group))
    l.history = *h;
  l.history.group = group;
  if (kept_.proposes && group == kept_.group)
    l.proposal = kept_.file;
  l.start = start_;
  if (auto at = compared_.find(group); at != compared_.end()) {
    auto& c = at->second;
    auto due = c.with == views_compared::with_none || c.under_way || now_() >= c.next;
    l.compared = due ? c.with : views_compared::with_all;
  }
  return l;
}

result<bool> placement_keeper::adopt(const adopt_request& told) {
  auto& history = told.history;
  if (auto bad = validate(history); !bad.ok())
    return fail(bad);
  auto all = members_of(history);
  if (std::ranges::find(all, kept_.id, &group_member::id) == all.end())
    return fail(
      errc::invalid_argument, "provider {} is in no view of group {}", kept_.id, history.group);
  auto* there = find(history.group);
  if (!there && kept_.histories.size() == groups_max)
    return fail(
      errc::no_space, "provider {} has been in {} groups, and cannot keep more", kept_.id,
      groups_max);
  auto known = there ? *there : group_history{history.group, {}, 0};
  auto was_settled = is_settled(known) && known.number() == history.number();
  for (auto& view : known.views)
    if (!stands_for(history, view))
      return fail(
        errc::busy, "provider {} knows another view of group {}; try again", kept_.id,
        history.group);
  if (known.number() > history.number())
    return fail(
      errc::busy, "provider {} knows a newer view of group {}; try again", kept_.id, history.group);
  auto before = known.number();
  auto next = kept_;
  auto& now = history_of(next, history.group);
  now = history;
  now.settled = std::max(known.settled, history.settled);
  if (history.group == kept_.group)
    for (auto& view : history.views)
      if (view.number > before || view.number == history.number())
        next.proposes = next.proposes && by_name(view.members) != next.file;
  if (auto size_bytes = encode(next).size(); size_bytes > kept_bytes_max)
    return fail(
      errc::no_space, "the views of the groups of provider {} would take {} bytes, and may take {}",
      kept_.id, size_bytes, kept_bytes_max);
  kept_ = std::move(next);
  // Those that a client asked before this start may have changed since.
  if (auto at = compared_.find(history.group);
      at != compared_.end() && told.start == start_ && has_settled(*find(history.group))) {
    if (!told.asked_all && at->second.with == views_compared::with_none)
      log().warn(
        "a provider answers by the views that it had before its start, since not all others of its "
        "group can be asked; if it was taken out meanwhile, models may be older, or erased ones "
        "provider={} group={}",
        kept_.id, history.group);
    if (told.asked_all)
      compared_.erase(at);
    else
      at->second = {views_compared::with_some, now_() + compares_every, false};
  }
  if (before != history.number()) {
    log().info(
      "the providers of a group have changed group={} view={} provider={}", history.group,
      history.number(), kept_.id);
    say_if_file_is_older(kept_, history, kept_.id);
  }
  return !was_settled;
}

void placement_keeper::end_change() {
  if (--changes_ > 0)
    return;
  for (auto& then : std::exchange(waiting_, {}))
    then();
}

void placement_keeper::when_idle(std::function<void()> then) {
  if (changes_ == 0)
    return then();
  waiting_.push_back(std::move(then));
}

} // namespace millrace::actors
