// Tests a whole node whose actors fail, and whose I/O loop stands still: what clients, jobs and
// `status` see of it.
#include "three_providers.hpp"

#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/actors/staging/staging_manager.hpp>
#include <millrace/actors/store/store_messages.hpp>
#include <millrace/runtime/node/engine.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/runtime/node/stall_watch.hpp>
#include <millrace/tests/support/fault_in.hpp>
#include <millrace/tests/support/kept_log.hpp>
#include <millrace/tests/support/process.hpp>

#include <boost/test/unit_test.hpp>
#include <caf/actor_cast.hpp>
#include <caf/actor_control_block.hpp>
#include <caf/error.hpp>

#include <atomic>
#include <cstddef>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>

#if defined(MILLRACE_KILL_POINTS)

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

struct supervised_node : three_providers {
  kept_log logged;

  bool loads_back(repository from) const {
    std::vector<std::byte> loaded(bytes.size());
    tensor_view into{{"w", dtype::u8, {loaded.size()}}, loaded.data(), {}};
    from.load("net", {{into, {}}}).get();
    return loaded == bytes;
  }

  static provider_status status_of(const client& c, const std::string& name) {
    auto nodes = c.status().get();
    for (auto& p : nodes.at(0).value().providers)
      if (p.name == name)
        return p;
    return {};
  }

  /// Waits until the actor that failed has been replaced.
  static void await(const client& c, const std::string& name, std::uint64_t failures) {
    BOOST_TEST_REQUIRE(eventually([&] {
      auto s = status_of(c, name);
      return s.actor_failures == failures && s.down.empty();
    }));
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(supervised_nodes, supervised_node)

BOOST_AUTO_TEST_CASE(models_stay_when_the_actor_of_their_provider_fails) {
  auto n = node::embed(settings);
  // One asks by frames, the other one asks the actor in this process.
  for (bool by_frames : {true, false})
    for (auto& group : {"fast", "pool"}) {
      auto c = by_frames ? client::connect(n.address()) : n.client();
      auto before = status_of(c, group).actor_failures;
      auto repository = c.repository(group);
      repository.store("net", tensors()).get();
      {
        fault_in fault{typeid(actors::store_request), by_frames ? 1 : 0};
        auto failed = repository.store("net", tensors()).result();
        BOOST_TEST_REQUIRE(!failed.has_value());
        BOOST_TEST((failed.error().code() == errc::internal), failed.error().to_string());
        BOOST_TEST(failed.error().detail().find("a planted fault") != std::string::npos);
      }
      await(c, group, before + 1);
      auto s = status_of(c, group);
      BOOST_TEST(
        s.last_failure.find("tensor_store failed in ") != std::string::npos, s.last_failure);
      BOOST_TEST(s.store.models == 1u);
      BOOST_TEST(loads_back(repository));
      repository.store("net", tensors()).get();
    }
  BOOST_TEST(logged.count("an actor was started anew provider=pool") == 2u);
}

BOOST_AUTO_TEST_CASE(a_provider_comes_back_when_the_first_handling_of_its_end_fails) {
  static std::atomic<bool> store_fails, end_fails;
  store_fails = end_fails = true;
  auto n = node::embed(settings);
  auto c = n.client();
  planted_fault = [](const std::type_info& what) {
    auto& fails = what == typeid(actors::store_request) ? store_fails : end_fails;
    if (
      (what == typeid(actors::store_request) || what == typeid(caf::down_msg)) &&
      fails.exchange(false))
      throw std::runtime_error{"a planted fault"};
  };
  BOOST_TEST(!c.repository("fast").store("net", tensors()).result().has_value());
  await(c, "fast", 1);
  planted_fault = nullptr;
  BOOST_TEST(!end_fails);
  c.repository("fast").store("net", tensors()).get();
}

BOOST_AUTO_TEST_CASE(a_job_goes_on_when_the_actor_of_its_checkpoints_fails) {
  auto n = node::embed(settings);
  auto c = client::connect(n.address());
  checkpoint_options job;
  job.model = "net";
  auto saver = c.checkpointer(job, tensors()).get();
  saver.save(1).durable.get();
  {
    fault_in fault{typeid(actors::save_request), 1}; // after the client has made the frame
    BOOST_TEST(!saver.save(2).durable.result().has_value());
  }
  await(c, "pool", 1);
  static_cast<void>(saver.fence()); // reports the failed save
  saver.save(3).durable.get();
  {
    // The manager passes the request on to the puller, which fails.
    fault_in fault{typeid(actors::save_request), 2};
    BOOST_TEST(!saver.save(4).durable.result().has_value());
  }
  static_cast<void>(saver.fence());
  saver.save(5).durable.get();
  bytes.assign(bytes.size(), std::byte{0});
  BOOST_TEST(saver.restore().get().version == 5u);
  BOOST_TEST((bytes == std::vector<std::byte>(bytes.size(), std::byte{7})));
  BOOST_TEST(saver.close().ok());
}

BOOST_AUTO_TEST_CASE(a_provider_whose_actors_fail_too_often_is_down_and_the_others_serve) {
  settings.node.restarts_max = 1;
  auto n = node::embed(settings);
  auto c = client::connect(n.address());
  {
    fault_in fault{typeid(actors::store_request), 0, true};
    auto c = n.client();
    BOOST_TEST(!c.repository("fast").store("net", tensors()).result().has_value());
    await(c, "fast", 1);
    BOOST_TEST(!c.repository("fast").store("net", tensors()).result().has_value());
    BOOST_TEST(eventually([&] { return !status_of(c, "fast").down.empty(); }));
  }
  for (auto& who : {c, n.client()}) {
    auto refused = who.repository("fast").store("net", tensors()).result();
    BOOST_TEST_REQUIRE(!refused.has_value());
    BOOST_TEST((refused.error().code() == errc::unavailable));
    BOOST_TEST(refused.error().detail().find("node.restarts_max") != std::string::npos);
  }
  c.repository("pool").store("net", tensors()).get();
}

BOOST_AUTO_TEST_CASE(models_are_stored_while_the_staging_manager_is_started_anew) {
  auto n = node::embed(settings);
  auto c = client::connect(n.address());
  auto kept = c.repository("kept");
  {
    fault_in fault{typeid(actors::staging_call)};
    kept.store("net", tensors()).get();
    BOOST_TEST(fault.passed() > 1);
  }
  auto s = c.status().get().at(0).value();
  BOOST_TEST(s.actor_failures == 1u);
  BOOST_TEST(
    s.last_failure ==
    "the staging manager failed in millrace::actors::staging_call: a planted fault");
  BOOST_TEST(s.down.empty());
  BOOST_TEST(loads_back(kept));
  BOOST_TEST(logged.count("an actor was started anew part=\"the staging manager\"") == 1u);
}

BOOST_AUTO_TEST_CASE(a_node_whose_staging_manager_is_down_says_so_to_those_who_need_it) {
  settings.node.restarts_max = 1;
  auto n = node::embed(settings);
  auto c = client::connect(n.address());
  {
    fault_in fault{typeid(actors::staging_call), 0, true};
    auto refused = c.repository("kept").store("net", tensors()).result();
    BOOST_TEST_REQUIRE(!refused.has_value());
    BOOST_TEST((refused.error().code() == errc::unavailable), refused.error().to_string());
    BOOST_TEST(
      refused.error().detail().find("the staging manager is down") != std::string::npos,
      refused.error().to_string());
  }
  auto s = c.status().get().at(0).value();
  BOOST_TEST(s.down.starts_with("the staging manager is down: "), s.down);
  c.repository("fast").store("net", tensors()).get();
}

BOOST_AUTO_TEST_CASE(the_providers_files_are_closed_when_a_node_stops_whose_actors_failed) {
  for (int i = 0; i < 2; ++i) {
    auto n = node::embed(settings);
    auto c = n.client();
    auto repository = c.repository("pool");
    if (i == 1)
      BOOST_TEST(loads_back(repository));
    repository.store("net", tensors()).get();
    {
      fault_in fault{typeid(actors::store_request)};
      BOOST_TEST(!repository.store("net", tensors()).result().has_value());
    }
    await(c, "pool", 1);
    n.stop();
  }
}

BOOST_AUTO_TEST_CASE(a_status_request_under_way_does_not_see_a_node_that_has_stopped) {
  settings.providers.clear();
  settings.nodes.at(0).providers.clear();
  auto n = node::embed(settings);
  auto c = n.client();
  static std::atomic<bool> asked, stopped;
  asked = stopped = false;
  planted_fault = [](const std::type_info& message) {
    if (message != typeid(actors::node_status_request))
      return;
    asked = true;
    asked.notify_one();
    stopped.wait(false);
  };
  std::string down;
  std::thread asking{[&] { down = c.status().get().at(0).value().down; }};
  asked.wait(false);
  n.stop();
  stopped = true;
  stopped.notify_one();
  asking.join();
  planted_fault = nullptr;
  BOOST_TEST(down == "the node was stopped");
}

BOOST_AUTO_TEST_CASE(an_actor_that_is_started_anew_while_its_node_stops_ends_with_the_others) {
  auto engine = runtime::engine::start(settings, runtime::engine_role::node).value();
  engine->end_actors();
  auto late = actors::spawn_staging_manager(engine->system(), {}, {});
  auto ended = std::make_shared<std::promise<void>>();
  caf::actor_cast<caf::strong_actor_ptr>(late)->get()->attach_functor(
    [ended](const caf::error&) { ended->set_value(); });
  engine->adopt(late);
  BOOST_TEST((ended->get_future().wait_for(10s) == std::future_status::ready));
}

BOOST_AUTO_TEST_CASE(a_loop_that_stands_still_says_in_which_callback) {
  settings.node.stall_warning_ms = 40;
  auto n = node::embed(settings);
  auto c = client::connect(n.address());
  static std::atomic<int> passed = 0;
  planted_fault = [](const std::type_info& message) {
    // The first one is the client, on this thread.
    if (message == typeid(actors::describe_request) && ++passed == 2)
      std::this_thread::sleep_for(300ms);
  };
  BOOST_TEST(!c.repository("fast").describe("net").result().has_value());
  planted_fault = nullptr;
  BOOST_TEST(eventually([&] { return c.status().get().at(0).value().stalls > 0; }));
  n.stop();
  BOOST_TEST(logged.count("node n0: the I/O loop has stood still for") > 0u);
  BOOST_TEST(logged.count("describe_request") > 0u, logged.text());
}

BOOST_AUTO_TEST_CASE(a_stall_is_said_again_when_its_time_has_doubled_and_when_it_is_over) {
  runtime::stall_finder finder{1s};
  time_point start{};
  auto look =
    [&](std::uint64_t begun, const std::type_info* callback, std::chrono::milliseconds at) {
      return finder.look({begun, callback, nullptr}, start + at).has_value();
    };
  auto* some = &typeid(int);
  BOOST_TEST(!look(0, nullptr, 0s)); // idle for as long as it likes
  BOOST_TEST(!look(0, nullptr, 60s));
  BOOST_TEST(!look(1, some, 61s));
  BOOST_TEST(!look(2, some, 62s)); // busy
  BOOST_TEST(!look(3, some, 63s));
  BOOST_TEST(!look(3, some, 63'900ms));
  BOOST_TEST(look(3, some, 64s));
  BOOST_TEST(!look(3, some, 64'900ms));
  BOOST_TEST(look(3, some, 65s));
  BOOST_TEST(!look(3, some, 66s));
  BOOST_TEST(look(3, some, 67s));
  BOOST_TEST(look(3, nullptr, 68s));
  BOOST_TEST(!look(3, nullptr, 69s));
  BOOST_TEST(finder.stalls() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()

#endif
