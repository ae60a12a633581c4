// Counts the questions that clients ask while providers start, stand still and come back. The
// providers decide with their real `placement_keeper`; what is around it is scripted.
#include <millrace/actors/store/placement_keeper.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/runtime/client/client.hpp>
#include <millrace/tests/support/scripted_service.hpp>

#include <boost/test/unit_test.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;
using actors::location;
using actors::placement_keeper;

namespace {

enum class state { answers, refuses, silent };

struct fake_provider {
  std::unique_ptr<placement_keeper> keeper;
  std::map<std::string, location> models;
  state now = state::answers;
  std::size_t located = 0; // how many `locate_request`s have come
  std::function<void()> when_located;
};

std::vector<provider_entry> entries_of(const std::vector<std::string>& names) {
  std::vector<provider_entry> out;
  for (auto& name : names)
    out.emplace_back(testing::listed(name)).id = name;
  return out;
}

config::settings impatient() {
  config::settings s;
  s.client.connect_timeout_ms = 300;
  return s;
}

/// Providers of one group, and a client that has asked nothing yet.
struct group {
  std::mutex mutex; // of what follows
  std::map<std::string, fake_provider> providers;
  time_point now{};
  testing::scripted_service service;
  std::optional<client> asks;

  explicit group(const std::vector<std::string>& names) : service(entries_of(names)) {
    script();
    forget();
  }
  ~group() { asks.reset(); }

  /// From now on a client asks that knows no view.
  void forget() { asks = client::connect(service.address(), impatient()); }

  group_view view(std::uint64_t number, const std::string& members) const {
    group_view v{number, {}};
    for (auto name : members) {
      millrace::group_member m;
      m.id = m.name = std::string{name};
      m.node = "n0";
      m.addresses = {service.address()};
      v.members.push_back(std::move(m));
    }
    return v;
  }

  /// The provider starts with what it keeps, these views.
  void start(const std::string& name, std::vector<group_view> views) {
    std::lock_guard guard{mutex};
    auto settled = views.back().number;
    actors::kept_placement kept{name, "default", views.back().members, false, "default", {}};
    kept.histories = {{"default", std::move(views), settled}};
    providers[name].keeper =
      std::make_unique<placement_keeper>(std::move(kept), [this] { return now; });
  }
  /// A client has compared its views with those of all others.
  void compared(const std::string& name) {
    std::lock_guard guard{mutex};
    auto& keeper = *providers[name].keeper;
    auto said = keeper.describe("default");
    BOOST_REQUIRE(keeper.adopt({said.history, true, said.start}).has_value());
  }
  void adopts(const std::string& name, const group_history& history) {
    BOOST_REQUIRE(providers[name].keeper->adopt({history, false, 0}).has_value());
  }
  void become(const std::string& name, state s) {
    std::lock_guard guard{mutex};
    providers[name].now = s;
  }
  void keep(const std::string& name, const std::string& model, std::uint64_t view, bool erased) {
    std::lock_guard guard{mutex};
    auto& one = providers[name].models[model];
    one.has_model = true;
    one.erased = erased;
    one.view = one.version = one.stored_at_ns = view;
  }
  void pass(steady_clock::duration time) {
    std::lock_guard guard{mutex};
    now += time;
  }
  std::size_t located(const std::string& name) {
    std::lock_guard guard{mutex};
    return providers[name].located;
  }
  std::size_t located() const { return service.asked<actors::locate_request>(); }

  errc look_up(const std::string& model) {
    auto found = asks->repository().describe(model).result();
    return found ? errc::ok : found.error().code();
  }

private:
  template <class Request, class Answer>
  void answer(Answer how) {
    service.on_for<Request>([this, how](auto& name, auto& request, auto reply) {
      std::lock_guard guard{mutex};
      auto& p = providers[name];
      if constexpr (std::is_same_v<Request, actors::locate_request>) {
        ++p.located;
        if (p.when_located)
          std::exchange(p.when_located, {})();
      }
      if (p.now == state::refuses)
        reply(fail(errc::unavailable, "provider {} is down", name));
      if (p.now == state::answers)
        reply(how(p, request));
    });
  }

  void script() {
    answer<actors::locate_request>([](auto& p, auto& request) -> result<location> {
      auto said = p.keeper->describe(request.group);
      if (auto at = p.models.find(request.model); at != p.models.end()) {
        auto& m = at->second;
        said.has_model = true;
        said.erased = m.erased;
        said.view = m.view;
        said.version = m.version;
        said.stored_at_ns = m.stored_at_ns;
      }
      return said;
    });
    answer<actors::adopt_request>([](auto& p, auto& request) -> result<actors::done_reply> {
      auto adopted = p.keeper->adopt(request);
      return adopted ? result<actors::done_reply>{actors::done_reply{}} : fail(adopted.error());
    });
    answer<actors::describe_request>([](auto& p, auto& request) -> result<model_record> {
      auto at = p.models.find(request.model);
      auto has = at != p.models.end();
      auto may = p.keeper->may_answer(
        request.model, request.by, has ? std::optional{at->second.view} : std::nullopt);
      if (!may.ok())
        return fail(may);
      if (!has || at->second.erased)
        return fail(errc::not_found, "no model named {}", request.model);
      model_record r;
      r.spec.name = request.model;
      r.spec.tensors.tensors = {{"t", dtype::u8, {1}}};
      r.version = at->second.version;
      return r;
    });
    answer<actors::load_request>([](auto& p, auto& request) -> result<actors::load_reply> {
      auto may = p.keeper->may_answer(request.model, request.by);
      return fail(may.ok() ? status{errc::not_found, "it keeps no bytes"} : may);
    });
    answer<actors::store_request>([](auto& p, auto& request) -> result<store_receipt> {
      auto may = p.keeper->may_store(request.spec.name, request.by);
      return fail(may ? status{errc::no_space, "it keeps no bytes"} : may.error());
    });
  }
};

/// Returns a name that each view places as the letters say.
std::string name_at(const std::vector<group_view>& views, const std::string& homes, int after = 0) {
  for (int i = after;; ++i) {
    auto name = "m" + std::to_string(i);
    bool fits = true;
    for (std::size_t v = 0; v < views.size(); ++v)
      fits = fits && home_of(name, views[v])->id == std::string{homes[v]};
    if (fits)
      return name;
  }
}

/// Two that were down at the same time.
struct two : group {
  std::vector<group_view> views{view(1, "ab")};
  std::string at_a = name_at(views, "a"), at_b = name_at(views, "b");

  two() : group({"a", "b"}) {
    for (auto name : {"a", "b"})
      start(name, views);
    keep("a", at_a, 1, false);
    keep("b", at_b, 1, false);
  }
};

/// Provider c was taken out while it was down, and comes back with its old file. Then a model was
/// erased that it has.
struct with_returned : group {
  std::vector<group_view> after{view(1, "abc"), view(2, "ab")};
  std::string erased = name_at(after, "ca");

  with_returned() : group({"a", "b", "c"}) {
    start("c", {view(1, "abc")});
    keep("c", erased, 1, false);
    keep("a", erased, 2, true);
    for (auto name : {"a", "b"})
      start(name, after), compared(name);
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(compared_views)

BOOST_FIXTURE_TEST_CASE(a_usual_look_up_is_one_message_again_after_all_have_started_anew, two) {
  BOOST_TEST((look_up(at_a) == errc::ok));
  BOOST_TEST(located() > 0u);
  BOOST_TEST((look_up(at_b) == errc::ok));
  for (int round = 0; round < 2; ++round) {
    auto before = located();
    auto described = service.asked<actors::describe_request>();
    for (int i = 0; i < 10; ++i) {
      BOOST_TEST((look_up(at_a) == errc::ok));
      BOOST_TEST((look_up(at_b) == errc::ok));
      pass(1min);
    }
    BOOST_TEST(located() == before);
    BOOST_TEST(service.asked<actors::describe_request>() == described + 20);
    forget(); // the providers know it, not the client
  }
}

BOOST_FIXTURE_TEST_CASE(two_that_start_at_once_are_compared_by_requests_to_both_at_once, two) {
  auto r = asks->repository();
  auto one = r.describe(at_a), other = r.describe(at_b);
  BOOST_TEST(one.result().has_value());
  BOOST_TEST(other.result().has_value());
  auto before = located();
  for (int i = 0; i < 10; ++i, pass(1min)) {
    BOOST_TEST((look_up(at_a) == errc::ok));
    BOOST_TEST((look_up(at_b) == errc::ok));
  }
  BOOST_TEST(located() == before);
}

// However long one waits for the other: the next try is counted from the end of the last.
BOOST_FIXTURE_TEST_CASE(one_that_is_stuck_holds_up_one_look_up_of_each_interval, two) {
  become("a", state::silent);
  auto began = steady_clock::now();
  for (std::size_t interval = 1; interval < 4; ++interval) {
    {
      std::lock_guard guard{mutex};
      providers["a"].when_located = [this] { now += 2 * placement_keeper::compares_every; };
    }
    for (int i = 0; i < 5; ++i)
      BOOST_TEST((look_up(at_b) == errc::ok));
    BOOST_TEST(located("a") == interval);
    pass(placement_keeper::compares_every);
  }
  // A client waits for it as long as for a connection, not for the time of a request, a minute.
  BOOST_TEST((steady_clock::now() - began < 30s));
  become("a", state::answers);
  BOOST_TEST((look_up(at_b) == errc::ok));
  auto before = located();
  for (int i = 0; i < 5; ++i, pass(1min))
    BOOST_TEST((look_up(at_b) == errc::ok));
  BOOST_TEST(located() == before);
}

// A request to it would have a minute.
BOOST_AUTO_TEST_CASE(an_operation_ends_at_its_deadline_while_one_that_may_have_the_name_is_stuck) {
  group g{{"a", "b"}};
  std::vector<group_view> views{g.view(1, "a"), g.view(2, "ab")};
  auto moved = name_at(views, "ab");
  for (auto name : {"a", "b"})
    g.start(name, views);
  g.become("a", state::silent);
  auto began = steady_clock::now();
  std::vector<std::byte> bytes(1);
  tensor_view one{{"t", dtype::u8, {1}}, bytes.data(), {}};
  auto r = g.asks->repository();
  auto loaded = r.load(moved, {{one, {}}}, {.timeout = 100ms}).result();
  BOOST_REQUIRE(!loaded);
  BOOST_TEST((loaded.error().code() == errc::deadline_exceeded), loaded.error().to_string());
  store_options options;
  options.timeout = 100ms;
  auto stored = r.store(moved, {one}, options).result();
  BOOST_REQUIRE(!stored);
  BOOST_TEST((stored.error().code() == errc::deadline_exceeded), stored.error().to_string());
  BOOST_TEST((steady_clock::now() - began < 30s));
}

BOOST_AUTO_TEST_CASE(a_search_for_another_reason_does_not_ask_one_that_cannot_have_the_name) {
  group g{{"a", "b", "c"}};
  std::vector<group_view> views{g.view(1, "ab"), g.view(2, "abc")};
  auto moved = name_at(views, "bc");
  for (auto name : {"a", "b", "c"})
    g.start(name, views);
  g.compared("b");
  g.keep("b", moved, 1, false);
  g.become("a", state::refuses);
  BOOST_TEST((g.look_up(moved) == errc::ok));
  auto asked = g.located("a"), searched = g.located("b");
  BOOST_TEST(asked > 0u);
  for (int i = 0; i < 5; ++i)
    BOOST_TEST((g.look_up(moved) == errc::ok));
  BOOST_TEST(g.located("a") == asked);
  BOOST_TEST(g.located("b") == searched + 5);
  g.pass(placement_keeper::compares_every);
  for (int i = 0; i < 5; ++i)
    BOOST_TEST((g.look_up(moved) == errc::ok));
  BOOST_TEST(g.located("a") == asked + 1);
}

// Decision 014, "Limits".
BOOST_FIXTURE_TEST_CASE(
  a_returned_provider_is_right_ten_seconds_after_others_are_back, with_returned) {
  for (auto name : {"a", "b"})
    become(name, state::refuses);
  BOOST_TEST((look_up(erased) == errc::ok)); // nobody can tell
  for (auto name : {"a", "b"})
    become(name, state::answers);
  pass(placement_keeper::compares_every);
  for (int i = 0; i < 3; ++i) {
    BOOST_TEST((look_up(erased) == errc::not_found));
    forget();
  }
}

// b has started, too, so that a and c are asked at once. The group changes after a has answered and
// before c starts.
BOOST_AUTO_TEST_CASE(answers_from_before_a_start_are_not_used_to_compare_views) {
  group g{{"a", "b", "c"}};
  std::vector<group_view> views{g.view(1, "c"), g.view(2, "abc")};
  auto erased = name_at(views, "cb");
  for (auto name : {"a", "b", "c"})
    g.start(name, views);
  g.compared("a");
  g.keep("c", erased, 1, false);
  {
    std::lock_guard guard{g.mutex};
    views.push_back(g.view(3, "a"));
    g.providers["c"].when_located = [&g, views] { g.adopts("a", {"default", views, 3}); };
  }
  g.keep("a", erased, 3, true);
  BOOST_TEST((g.look_up(erased) == errc::not_found));
}

BOOST_AUTO_TEST_SUITE_END()
