// Models in a cluster whose nodes crash, stop, change their names and are cut off: what was
// acknowledged is found, whole; nothing that was replaced comes back.
#include <millrace/tests/sim/cluster.hpp>
#include <millrace/tests/sim/planted.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <string>

using namespace millrace;
using namespace millrace::sim;
using namespace millrace::testing;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {

constexpr int users = 3, names_each = 4;
constexpr std::size_t elements_max = 4'000; // below and above what goes with a request

std::vector<std::uint64_t> content(std::uint64_t value, std::size_t elements) {
  return std::vector<std::uint64_t>(elements, value);
}

std::vector<tensor_view> views_of(std::vector<std::uint64_t>& elements) {
  std::vector<tensor_view> views;
  views.push_back(tensor_view::dense("t", dtype::u64, {elements.size()}, std::span{elements}));
  return views;
}

/// What of a cluster a program must know.
struct circumstances {
  bool takes_out = false; // some files do not list all providers
  bool forgets = false;   // some provider says so of itself: it is in memory, as pools are here
  bool crowded = false;   // all do much to few models
};

/// A program that stores, looks at and erases models of its own, and knows what each must be.
class user {
public:
  user(cluster& c, int number, const circumstances& of)
    : c_(c), process_(c.in.start_process("client-" + std::to_string(number))), number_(number),
      of_(of) {}
  ~user() {
    c_.in.as(process_, [&] { client_.reset(); });
    c_.in.kill(process_);
    c_.in.bury(process_);
  }

  void use(const provider_list& file) {
    c_.in.as(process_, [&] {
      client_.reset();
      client_.emplace(client::of(c_.settings(file)).value());
    });
  }

  bool idle() const { return flow_.empty() || flow_.back().done(); }
  void begin(std::uint64_t count) {
    flow_.clear();
    c_.in.as(process_, [&] { flow_.push_back(run(count)); });
  }
  void check() const {
    for (auto& one : flow_)
      one.check();
  }

  /// A provider in memory has lost its models.
  void may_be_lost() {
    ++losses_;
    for (auto& [i, expected] : known_)
      expected.tried(0);
  }

  /// With all providers there, every name has an answer.
  void look_at_the_end() {
    flow_.clear();
    c_.in.as(process_, [&] { flow_.push_back(find_all()); });
  }

  process& in() { return process_; }
  std::uint64_t answers() const { return answers_; }

private:
  task run(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count && client_; ++i) {
      auto r = client_->repository();
      auto number = static_cast<int>(c_.random.below(of_.crowded ? 1 : names_each));
      auto what = c_.random.below(12);
      if (what > 9)
        co_await ask_about(r, number);
      else if (what < 4)
        co_await change(r, number);
      else if (what < 5)
        co_await erase(r, number);
      else if (what < (of_.crowded ? 9 : 7))
        co_await peek(r);
      else if (c_.random.percent(30))
        co_await look_by_version(r, number);
      else
        co_await look(r, number, false);
      co_await delay{c_.in, nanoseconds{c_.random.below(of_.crowded ? 500'000 : 20'000'000)}};
    }
  }

  task ask_about(repository r, int number) {
    switch (c_.random.below(3)) {
    case 0:
      co_return co_await list(r, false);
    case 1:
      co_return co_await describe(r, number);
    default:
      co_return co_await pin(r, number);
    }
  }

  task find_all() {
    for (auto& [i, expected] : known_) {
      auto r = client_->repository();
      co_await look(r, i, true);
    }
    co_await list(client_->repository(), true);
  }

  std::string name(int i) const { return name_of(number_, i); }
  static std::string name_of(int user, int i) { return fmt::format("client-{}/model-{}", user, i); }

  task change(repository r, int i) {
    auto value = ++value_;
    auto elements = content(value, c_.random.between(1, elements_max));
    auto views = views_of(elements);
    auto at = c_.in.now();
    auto losses = losses_;
    store_options options;
    options.metadata = {{"value", std::to_string(value)}};
    auto stored = co_await r.store(name(i), views, options);
    answered("store", at, stored);
    c_.in.say(fmt::format("{} stores {} {}: {}", process_.name, name(i), value, why(stored)));
    demand(known_[i].stored(value, stored), name(i) + " could not be stored: " + why(stored));
    if (stored)
      stored_[i] = {stored->version, value};
    if (losses != losses_)
      known_[i].tried(0);
  }

  task erase(repository r, int i) {
    auto at = c_.in.now();
    auto erased = co_await r.erase(name(i));
    c_.in.say(fmt::format("{} erases {}: {}", process_.name, name(i), why(erased)));
    answered("erase", at, erased);
    auto expected = known_[i].text();
    demand(
      known_[i].erased(erased),
      fmt::format("{} could not be erased; it was {}: {}", name(i), expected, why(erased)));
  }

  // Another user's model may be changing now. It is whole nevertheless.
  task peek(repository r) {
    auto other = name_of(
      static_cast<int>(c_.random.below(users)),
      static_cast<int>(c_.random.below(of_.crowded ? 1 : names_each)));
    std::vector<std::byte> buffer(elements_max * sizeof(std::uint64_t));
    auto at = c_.in.now();
    auto loaded = co_await r.load(other, std::vector<std::string>{}, std::span{buffer});
    answered("load", at, loaded);
    if (loaded)
      static_cast<void>(value_in(other, *loaded));
    else
      demand_may_fail(other, loaded.error());
  }

  task look(repository r, int i, bool all_there) {
    std::vector<std::byte> buffer(elements_max * sizeof(std::uint64_t));
    auto at = c_.in.now();
    auto loaded = co_await r.load(name(i), std::vector<std::string>{}, std::span{buffer});
    answered("load", at, loaded);
    auto value = loaded.map([&](auto& found) { return value_in(name(i), found); });
    c_.in.say(fmt::format("{} loads {}: {}", process_.name, name(i), why(value)));
    demand_is(i, value, all_there);
  }

  // `value`: of the model, or why it has none. At the end a model may be missing since a provider
  // that forgets may have had a newer version.
  void demand_is(int i, const result<std::uint64_t>& value, bool all_there = false) {
    auto taken_out = !value && says_taken_out(value.error());
    demand(!taken_out || of_.takes_out, name(i) + " was not taken out: " + why(value));
    auto may_be_missing = taken_out && of_.forgets;
    if (may_be_missing && all_there)
      missing_.insert(i);
    demand(
      all_there && !may_be_missing ? known_[i].is_found(value) : known_[i].loaded(value),
      fmt::format("{} must be {}, but is {}", name(i), known_[i].text(), why(value)));
  }

  task describe(repository r, int i) {
    auto at = c_.in.now();
    auto described = co_await r.describe(name(i));
    answered("description", at, described);
    c_.in.say(fmt::format("{} describes {}: {}", process_.name, name(i), why(described)));
    demand_is(i, described.map([](auto& found) -> std::uint64_t {
      return std::stoull(found.record.spec.metadata.at(0).second);
    }));
    if (described && known_[i].certain())
      demand(
        described->record.version == stored_.at(i).first,
        fmt::format("{} has version {}", name(i), stored_.at(i).first));
  }

  task pin(repository r, int i) {
    auto at = c_.in.now();
    auto pinned = co_await r.pin(name(i), c_.random.percent(50));
    answered("pin", at, pinned);
    c_.in.say(fmt::format("{} pins {}: {}", process_.name, name(i), why(pinned)));
    if (!pinned)
      demand_is(i, fail(pinned.error()));
    else
      demand(known_[i].certain() != 0u, name(i) + " was erased, and is pinned");
  }

  // The models of this program.
  task list(repository r, bool all_there) {
    auto at = c_.in.now();
    auto listed = co_await r.list(process_.name + "/");
    answered("listing", at, listed);
    c_.in.say(fmt::format("{} lists: {}", process_.name, why(listed)));
    if (!listed) {
      demand_may_fail("a list", listed.error());
      demand(!all_there, "models are listed when all are there: " + why(listed));
      co_return;
    }
    for (auto& one : listed->silent)
      demand_may_fail("the list of " + one.name, one.why);
    if (listed->silent.empty())
      demand_lists(*listed, all_there);
    else
      demand(!all_there, "all answer: " + listed->silent[0].why.to_string());
    auto swept = co_await listed->swept;
    answered("sweep", at, swept);
    c_.in.say(fmt::format("{} has swept: {}", process_.name, why(swept)));
  }

  // Every provider has answered.
  void demand_lists(const listed<model_summary>& all, bool all_there) {
    for (auto& [i, expected] : known_) {
      auto count = std::ranges::count(all.found, name(i), &model_summary::name);
      demand(count <= 1, name(i) + " is listed once");
      auto value = expected.certain();
      if (!value)
        continue;
      demand(*value != 0 || count == 0, name(i) + " was erased, and is listed");
      if (*value == 0)
        continue;
      auto must = all_there ? !missing_.contains(i) : !of_.takes_out;
      demand(!must || count == 1, name(i) + " is listed");
      auto found = std::ranges::find(all.found, name(i), &model_summary::name);
      demand(
        count == 0 || found->version == stored_.at(i).first,
        fmt::format("{} is listed with version {}", name(i), stored_.at(i).first));
    }
  }

  // The version of the last store that was acknowledged, which may have been replaced.
  task look_by_version(repository r, int i) {
    auto known = stored_.find(i);
    if (known == stored_.end())
      co_return;
    auto [version, value] = known->second;
    std::vector<std::byte> buffer(elements_max * sizeof(std::uint64_t));
    load_options options;
    options.version = version;
    auto at = c_.in.now();
    auto loaded = co_await r.load(name(i), std::vector<std::string>{}, std::span{buffer}, options);
    answered("load", at, loaded);
    c_.in.say(
      fmt::format("{} loads {} version {}: {}", process_.name, name(i), version, why(loaded)));
    if (loaded)
      demand(
        value_in(name(i), *loaded) == value,
        fmt::format("version {} of {} is {}", version, name(i), value));
    else
      demand_may_fail(name(i), loaded.error());
  }

  static void demand_may_fail(const std::string& what, const status& bad) {
    demand(
      bad.code() == errc::not_found || may_fail(bad),
      fmt::format("{} can be there or not, but: {}", what, bad.to_string()));
  }

  // All elements are the same number.
  static std::uint64_t value_in(const std::string& name, const loaded_tensors& loaded) {
    auto& one = loaded.tensors.at(0);
    auto* first = reinterpret_cast<const std::uint64_t*>(one.data);
    std::span elements{first, one.desc.shape.at(0)};
    demand(
      std::ranges::count(elements, elements[0]) == std::ssize(elements),
      name + " is a mixture of two versions");
    return elements[0];
  }

  template <class T>
  void answered(const char* what, nanoseconds since, const result<T>& outcome) {
    auto took = c_.in.now() - since;
    demand(
      took <= request_timeout + 5s,
      fmt::format("a {} took {} s", what, std::chrono::duration<double>(took).count()));
    answers_ += outcome.has_value();
  }

  template <class T>
  static std::string why(const result<T>& r) {
    if constexpr (std::is_same_v<T, std::uint64_t>)
      if (r)
        return std::to_string(*r);
    return r ? "done" : r.error().to_string();
  }

  static bool says_taken_out(const status& why) {
    return why.detail().find("taken out") != std::string::npos;
  }

  static constexpr nanoseconds request_timeout = 60s;

  cluster& c_;
  process& process_;
  const int number_;
  const circumstances of_;
  std::optional<client> client_;
  std::vector<task> flow_;
  std::map<int, expected_number> known_;
  std::map<int, std::pair<std::uint64_t, std::uint64_t>> stored_; // version and value, as last told
  std::set<int> missing_; // at the end, since a provider that forgets may have had a newer version
  std::uint64_t value_ = 0;
  std::uint64_t losses_ = 0;
  std::uint64_t answers_ = 0;
};

const std::vector<std::string> buckets = buckets_of_each_cluster(3);

// Every file lists the providers beyond the third.
std::vector<provider_list> with_further(std::vector<provider_list> files) {
  for (auto& file : files)
    file.insert(file.end(), buckets.begin() + 3, buckets.end());
  return files;
}
const std::vector<provider_list> any_providers = with_further(beliefs);
// Files of the same providers, which are called or weighed otherwise.
const std::vector<provider_list> same_providers =
  with_further({beliefs[1], beliefs[3], beliefs[4]});

/// What happens to the cluster of one seed.
class run {
public:
  explicit run(std::uint64_t seed)
    : c_(seed, kinds_of(seed)),
      files_(c_.random.percent(50) && durable().size() >= 2 ? any_providers : same_providers) {
    c_.net->latency_max = nanoseconds{c_.random.between(20'000, 2'000'000)};
    c_.net->stalls_per_mille = c_.random.percent(50) ? 0 : 20;
    for (auto& rests : buckets)
      start(any_providers[1], rests);
    auto forgets =
      std::ranges::any_of(buckets, [&](auto& rests) { return c_.kind_of(rests) != "rocksdb"; });
    circumstances all{&files_ == &any_providers, forgets, crowded_};
    for (int i = 0; i < users; ++i)
      users_.push_back(std::make_unique<user>(c_, i, all));
  }

  /// Returns what the run did, as a number.
  std::uint64_t operator()() {
    for (int round = 0; round < 4; ++round) {
      for (auto& one : users_) {
        one->use(any_file());
        one->begin(c_.random.between(4, 12) * (crowded_ ? 5 : 1));
      }
      auto changes = c_.random.between(0, 5);
      run_users([&] {
        if (changes > 0 && changes--)
          change();
      });
      repair();
      if (takes_out_ && round == 1)
        take_out_and_back();
    }
    c_.in.run_for(120s);
    c_.demand_settled();
    c_.net->stalls_per_mille = 0;
    look_at_the_end();
    for (auto& one : users_)
      answers_ += one->answers();
    users_.clear();
    c_.demand_rest();
    return c_.in.trace();
  }

  std::uint64_t answers() const { return answers_; }

private:
  static std::map<std::string, std::string> kinds_of(std::uint64_t seed) {
    dice random{seed ^ 0x5eed};
    std::map<std::string, std::string> kinds;
    // A provider in memory that gets another name is another one.
    for (auto& rests : buckets)
      kinds[rests] = rests != "b" && random.percent(40) ? "memory"
        : random.percent(50)                            ? "pmem"
                                                        : "rocksdb";
    return kinds;
  }

  // Those of a, b and c that know after a start who was in the group. If only one does, and it is
  // taken out, nobody may know of that when it comes back (docs/configuration.md).
  std::vector<std::string> durable() const {
    std::vector<std::string> out{buckets.begin(), buckets.begin() + 3};
    std::erase_if(out, [&](auto& rests) { return c_.kind_of(rests) == "memory"; });
    return out;
  }

  template <class Meanwhile>
  void run_users(Meanwhile meanwhile) {
    while (std::ranges::any_of(users_, [](auto& one) { return !one->idle(); })) {
      c_.in.run_for(nanoseconds{c_.random.below(60'000'000)});
      meanwhile();
      check();
      demand(c_.in.now() < 3600s, "every request ends");
    }
  }

  void start(const provider_list& file, const std::string& rests) {
    auto bad = c_.start(file, rests);
    demand(bad.ok(), "node on-" + rests + " starts: " + bad.to_string());
  }

  const provider_list& any_file() { return files_[c_.random.below(files_.size())]; }

  // The file of a node lists its provider.
  const provider_list& file_with(const std::string& rests) {
    for (;;) {
      auto& file = any_file();
      if (std::ranges::count(file, rests, &listed_provider::rests) > 0)
        return file;
    }
  }

  void end(const std::string& rests) {
    if (c_.random.percent(50))
      c_.crash(rests);
    else
      c_.stop(rests);
    for (auto& one : users_)
      if (c_.kind_of(rests) == "memory")
        one->may_be_lost();
  }

  void change() {
    auto& rests = c_.random.one_of(buckets);
    switch (c_.random.below(5)) {
    case 0:
      return end(rests);
    case 1:
      return restart(file_with(rests), rests);
    case 2:
      if (c_.runs(rests))
        c_.net->cut(c_.process_of(rests), c_.random.one_of(users_)->in());
      return;
    case 3:
      return stand_still(rests);
    default:
      return c_.net->heal_all();
    }
  }

  // For some minutes, while its connections stay alive.
  void stand_still(const std::string& rests) {
    if (!c_.runs(rests))
      return;
    auto& stands = c_.process_of(rests);
    c_.in.say(stands.name + " stands still");
    c_.net->stand_still(stands);
    c_.in.after(c_.in.current(), std::chrono::seconds{c_.random.between(20, 200)}, [this, &stands] {
      c_.in.say(stands.name + " goes on");
      c_.net->go_on(stands);
    });
  }

  // Models are erased and stored anew without a provider, which then comes back with the file that
  // it had. Clients that have asked nothing yet still have that file, too. Of those that stay, one
  // keeps what it knows of the group.
  void take_out_and_back() {
    auto& all = any_providers[1];
    auto staying = durable();
    if (staying.size() < 2)
      return;
    auto out = c_.random.one_of(staying);
    auto& without = any_providers[out == "a" ? 6 : out == "b" ? 2 : 0];
    for (auto& rests : buckets)
      restart(all, rests);
    run_users_with(all);
    end(out);
    for (auto& rests : buckets)
      if (rests != out)
        restart(without, rests);
    run_users_with(without);
    start(all, out);
    run_users_with(all);
  }

  void restart(const provider_list& file, const std::string& rests) {
    if (c_.runs(rests))
      end(rests);
    start(file, rests);
  }

  void run_users_with(const provider_list& file) {
    for (auto& one : users_) {
      one->use(file);
      one->begin(c_.random.between(4, 12));
    }
    run_users([] {});
  }

  void check() const {
    for (auto& one : users_)
      one->check();
  }

  void repair() {
    c_.net->heal_all();
    for (auto& rests : buckets)
      if (!c_.runs(rests))
        start(file_with(rests), rests);
  }

  void look_at_the_end() {
    for (auto& rests : buckets)
      restart(any_providers[1], rests);
    for (auto& one : users_) {
      one->use(any_providers[1]);
      one->look_at_the_end();
    }
    c_.in.run_for(120s);
    check();
    for (auto& one : users_)
      demand(one->idle(), "every request ends");
  }

  cluster c_;
  const std::vector<provider_list>& files_;
  const bool crowded_ = c_.random.percent(30);
  const bool takes_out_ = &files_ == &any_providers && c_.random.percent(40);
  std::vector<std::unique_ptr<user>> users_;
  std::uint64_t answers_ = 0;
};

} // namespace

BOOST_AUTO_TEST_SUITE(sim)

BOOST_AUTO_TEST_CASE(models_are_found_in_a_changing_cluster) {
  std::uint64_t answers = 0;
  run_seeds(60, [&](std::uint64_t seed) {
    auto once = [&] {
      run one{seed};
      auto did = one();
      answers += one.answers();
      return did;
    };
    auto did = once();
    if (seed % 16 == 0)
      demand(once() == did, "a seed repeats");
  });
  BOOST_TEST((answers > 0u || is_single_seed()));
}

// Proves that the simulator finds defects of these kinds.
BOOST_DATA_TEST_CASE(
  a_planted_defect_of_models_is_found,
  data::make(
    {defect::lost_withdrawal, defect::deadline_not_armed, defect::older_version_kept,
     defect::published_before_durable, defect::segment_not_synced, defect::index_not_synced,
     defect::tick_never_rests, defect::views_not_compared}),
  planted) {
  find_planted(planted, [](std::uint64_t seed) { run{seed}(); });
}

BOOST_AUTO_TEST_SUITE_END()
