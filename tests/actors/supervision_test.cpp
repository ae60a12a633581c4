// Tests handlers that throw, one after the other: what the request gets, what the others get, and
// what becomes of the actor. Runs under the deterministic scheduler.
#include "checkpoint_fixture.hpp"
#include "counter_service.hpp"

#include <millrace/actors/broadcast/group_keeper.hpp>
#include <millrace/actors/loader/stream_server.hpp>
#include <millrace/actors/node/node_actor.hpp>
#include <millrace/actors/services.hpp>
#include <millrace/actors/staging/staging_manager.hpp>
#include <millrace/actors/store/tensor_store.hpp>
#include <millrace/storage/memory/memory_bucket.hpp>
#include <millrace/tests/support/fault_in.hpp>
#include <millrace/tests/support/heap_data_memory.hpp>
#include <millrace/tests/support/kept_log.hpp>
#include <millrace/tests/support/numbered_message.hpp>
#include <millrace/tests/support/wire_fixture.hpp>

#if defined(MILLRACE_KILL_POINTS)

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

// Its handlers throw after they have made the promise of their answer.
class careless : public provider_actor<counter_actor> {
public:
  using provider_actor::provider_actor;

  const char* name() const override { return "careless"; }

  behavior_type make_behavior() override {
    using self = careless;
    return handlers(&self::count, &self::echo, &self::report);
  }

private:
  caf::result<count_reply> count(const count_request&) {
    auto lost = make_response_promise<count_reply>();
    throw std::logic_error{"after the promise"};
  }
  caf::result<echo_reply> echo(const echo_request&) {
    return answer_from<echo_reply, echo_reply>(
      [](auto) { throw 7; }, [](auto& reply) { return std::move(reply); });
  }
  provider_status report(const provider_status_request&) { return common_status(); }
};

struct supervised : checkpoint_fixture {
  kept_log logged;
  std::shared_ptr<storage::bucket> bucket =
    storage::open_memory_bucket({1 << 20}, std::make_shared<heap_memory_source>(1 << 20)).value();

  tensor_store_actor make_store() {
    tensor_store_deps deps{"p", "default", bucket, fabric, {}, {}};
    auto actor = spawn_tensor_store(system, deps);
    sched.run();
    return actor;
  }

  template <class Handle>
  void kill(const Handle& actor) {
    caf::anon_send_exit(actor, caf::exit_reason::kill);
    sched.run();
  }

  template <class Request, class Reply, class Handle>
  millrace::status refusal(const Handle& actor, Request request) {
    auto pending = ask(actor, std::move(request));
    auto answer = outcome<Reply>(pending);
    return answer ? millrace::status{} : answer.error();
  }

  /// Sends every request of a service to an actor of its own, whose handler throws.
  template <class Service, class Make>
  void check_every_handler(Make make, const std::string& name) {
    Service::each_method([&]<class Method>() {
      using request = typename Method::request;
      auto actor = make();
      millrace::status why;
      {
        fault_in fault{typeid(request)};
        why = refusal<request, typename Method::reply>(actor, request{});
      }
      auto message = name_of(typeid(request));
      BOOST_TEST((why.code() == errc::internal), message << ": " << why.to_string());
      BOOST_TEST(why.detail().find(name + " failed in " + message) != std::string::npos);
      BOOST_TEST(why.detail().find("a planted fault") != std::string::npos);
      // It has ended.
      auto later = refusal<request, typename Method::reply>(actor, request{});
      BOOST_TEST((later.code() == errc::unavailable), message << ": " << later.to_string());
      BOOST_TEST(!answered());
    });
  }
};

/// Two lenders of a staging memory, whose manager a node's actor watches.
struct staging_of_node : supervised {
  std::shared_ptr<staging_memory> memory =
    std::make_shared<staging_memory>(std::make_shared<heap_memory_source>(32 << 10));
  std::shared_ptr<staging_lender> a = std::make_shared<staging_lender>(memory, "a", ~0ull);
  std::shared_ptr<staging_lender> b = std::make_shared<staging_lender>(memory, "b", ~0ull);
  std::vector<staging_manager_actor> managers;
  std::vector<memory_block> lent;
  std::vector<millrace::status> refused;
  node_actor node;

  staging_of_node() {
    auto start = [this] {
      managers.push_back(spawn_staging_manager(system, {memory}, {.block_bytes = 16 << 10}));
      return managers.back().address();
    };
    node_actor_deps parts;
    parts.own_state = [] { return node_status{}; };
    parts.restarts.restarts_max = 2;
    auto take_down = [this](auto& why) { memory->refuse_all(why); };
    parts.parts = {{"the staging manager", start(), start, take_down}};
    node = spawn_node_actor(system, std::move(parts));
    sched.run();
  }
  ~staging_of_node() {
    lent.clear();
    kill(node);
    kill(managers.back());
  }

  void ask_for_block(staging_lender& from) {
    from.ask({}, 4096, [this](result<memory_block> block) {
      if (block)
        lent.push_back(std::move(*block));
      else
        refused.push_back(block.error());
    });
    sched.run();
  }

  node_status told() {
    auto pending = ask(node, node_status_request{});
    return outcome<node_status>(pending).value();
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(supervision, supervised)

BOOST_AUTO_TEST_CASE(a_handler_that_throws_answers_its_request_and_ends_its_actor) {
  all_services::each([&]<class Service>() {
    if constexpr (std::is_same_v<Service, store_service>)
      check_every_handler<Service>([&] { return make_store(); }, "provider p: tensor_store");
    else if constexpr (std::is_same_v<Service, checkpoint_service>)
      check_every_handler<Service>(
        [&] {
          restart();
          return manager;
        },
        "provider pool: checkpoint_manager");
    else if constexpr (std::is_same_v<Service, data_service>)
      check_every_handler<Service>(
        [&] {
          data_server_deps deps{"n0/data", heap_data_memory{2}.memory, fabric, operation_limits{}};
          return spawn_data_server(system, deps);
        },
        "provider n0/data: data_server");
    else if constexpr (std::is_same_v<Service, stream_service>)
      check_every_handler<Service>(
        [&] {
          data_server_deps deps{
            "n0/streams", heap_data_memory{2}.memory, fabric, operation_limits{}};
          return spawn_stream_server(system, deps);
        },
        "provider n0/streams: stream_server");
    else if constexpr (std::is_same_v<Service, group_service>)
      check_every_handler<Service>(
        [&] {
          return spawn_group_keeper(
            system, {"n0/groups", {}, places_for_rings({}), fabric, operation_limits{}});
        },
        "provider n0/groups: group_keeper");
    else
      static_assert(
        std::is_same_v<Service, node_service>, "its actor ends as others do, or goes on as below");
  });
}

BOOST_AUTO_TEST_CASE(a_handler_that_throws_after_it_made_its_promise_answers_too) {
  auto first = system.spawn<careless>("p", fabric, operation_limits{});
  auto why = refusal<count_request, count_reply>(first, {"epochs", 1});
  BOOST_TEST((why.code() == errc::internal));
  BOOST_TEST(why.detail().find("after the promise") != std::string::npos);
  auto second = system.spawn<careless>("p", fabric, operation_limits{});
  why = refusal<echo_request, echo_reply>(second, {});
  BOOST_TEST(!why.ok());
  BOOST_TEST(why.detail().find("an exception of unknown type") != std::string::npos);
  sched.run();
}

BOOST_AUTO_TEST_CASE(the_requests_of_an_actor_that_fails_get_the_reason) {
  auto number = enroll(enrolling());
  auto saved = ask(manager, saving(number, 1));
  store->hold_enroll = true;
  ask(manager, enrolling("other"));
  {
    fault_in fault{typeid(list_checkpoints_request)};
    static_cast<void>(refusal<list_checkpoints_request, checkpoint_list>(manager, {}));
  }
  auto why = outcome<save_receipt>(saved);
  BOOST_TEST_REQUIRE(!why.has_value());
  BOOST_TEST((why.error().code() == errc::unavailable));
  // The pullers are gone with their manager, and the store knows.
  BOOST_TEST_REQUIRE(store->left.size() == 1u);
  store->release();
  sched.run();
}

BOOST_AUTO_TEST_CASE(the_requests_that_an_actor_has_not_read_get_the_reason) {
  auto actor = make_store();
  fault_in fault{typeid(describe_request)};
  auto read = self->request(actor, caf::infinite, describe_request{});
  auto unread = self->request(actor, caf::infinite, describe_request{});
  sched.run();
  BOOST_TEST((outcome<model_record>(read).error().code() == errc::internal));
  auto why = outcome<model_record>(unread).error();
  BOOST_TEST((why.code() == errc::unavailable));
  BOOST_TEST(why.detail().find("a planted fault") != std::string::npos, why.detail());
  BOOST_TEST(!answered());
}

BOOST_AUTO_TEST_CASE(a_puller_that_fails_ends_its_registration_alone) {
  auto failing = enroll(enrolling("failing"));
  auto other = enroll(enrolling("other"));
  {
    // The manager passes it on.
    fault_in fault{typeid(save_request), 1};
    auto why = refusal<save_request, save_receipt>(manager, saving(failing, 1));
    BOOST_TEST((why.code() == errc::internal));
    BOOST_TEST(why.detail().find("checkpoint_puller failed in ") != std::string::npos);
  }
  auto gone = refusal<save_request, save_receipt>(manager, saving(failing, 1));
  BOOST_TEST((gone.code() == errc::not_found));
  save(other, 1);
  auto pending = ask(manager, provider_status_request{});
  auto told = outcome<provider_status>(pending).value();
  BOOST_TEST(told.actor_failures == 1u);
  BOOST_TEST(told.last_failure.find("a planted fault") != std::string::npos);
  BOOST_TEST(told.checkpoints.registered == 1u);
  // Its shard may be registered again.
  enroll(enrolling("failing"));
}

BOOST_AUTO_TEST_CASE(a_puller_that_fails_is_counted_with_a_registration_and_when_that_has_ended) {
  auto first = enroll(enrolling("first"));
  {
    // The manager passes it on.
    fault_in fault{typeid(durable_request), 1};
    auto why = refusal<durable_request, save_receipt>(manager, durable(first, 1));
    BOOST_TEST((why.code() == errc::internal));
    BOOST_TEST(why.detail().find("checkpoint_puller failed in ") != std::string::npos);
  }
  auto second = enroll(enrolling("second"));
  {
    fault_in fault{typeid(end_registration)};
    auto why = refusal<leave_request, done_reply>(manager, {second, false, trainer});
    BOOST_TEST((why.code() == errc::internal));
  }
  BOOST_TEST(store->left.size() == 2u);
  auto pending = ask(manager, provider_status_request{});
  BOOST_TEST(outcome<provider_status>(pending).value().actor_failures == 2u);
}

BOOST_AUTO_TEST_CASE(work_that_throws_ends_the_actor_and_the_requests_get_the_reason) {
  auto number = enroll(enrolling());
  auto staged = ask(manager, saving(number, 1));
  {
    // The outcome of the transfer comes home to the puller.
    fault_in fault{typeid(own_work)};
    fabric->deliver();
    sched.run();
    BOOST_TEST(fault.passed() > 0);
  }
  auto why = outcome<save_receipt>(staged);
  BOOST_TEST_REQUIRE(!why.has_value());
  BOOST_TEST((why.error().code() == errc::unavailable));
  BOOST_TEST(why.error().detail().find("a planted fault") != std::string::npos);
  BOOST_TEST(status().registered == 0u);
}

BOOST_AUTO_TEST_CASE(the_news_that_another_actor_ended_may_throw_too) {
  enroll(enrolling());
  {
    fault_in fault{typeid(caf::down_msg)};
    connections.clear();
    sched.run();
    BOOST_TEST(fault.passed() == 1);
  }
  auto why = refusal<provider_status_request, provider_status>(manager, {});
  BOOST_TEST((why.code() == errc::unavailable));
  BOOST_TEST(store->left.size() == 1u);
}

BOOST_AUTO_TEST_CASE(the_nodes_own_actor_goes_on) {
  node_actor_deps deps;
  deps.own_state = [] { return node_status{}; };
  auto node = spawn_node_actor(system, std::move(deps));
  node_service::each_method([&]<class Method>() {
    using request = typename Method::request;
    using reply = typename Method::reply;
    {
      fault_in fault{typeid(request)};
      auto why = refusal<request, reply>(node, request{});
      BOOST_TEST((why.code() == errc::internal));
      BOOST_TEST(why.detail().find("a planted fault") != std::string::npos);
    }
    BOOST_TEST((refusal<request, reply>(node, request{}).ok()));
  });
  kill(node);
}

BOOST_AUTO_TEST_CASE(a_node_starts_an_actor_anew_once_nothing_of_the_former_one_is_under_way) {
  auto make = [&](std::shared_ptr<void> in_use) {
    auto fresh = deps;
    fresh.in_use = std::move(in_use);
    manager = spawn_checkpoint_manager(system, fresh);
    return manager;
  };
  stop();
  int started = 0;
  std::vector<std::string> down;
  auto start = [&] {
    ++started;
    auto in_use = std::make_shared<bool>();
    return started_actor{make(in_use), in_use};
  };
  node_actor_deps parts;
  parts.own_state = [] { return node_status{}; };
  parts.restarts.restarts_max = 2;
  parts.take_down = [&](auto&, auto& why) { down.push_back(why.to_string()); };
  parts.actors = {{"pool", start(), start}};
  auto node = spawn_node_actor(system, std::move(parts));
  sched.run();
  auto fail_once = [&] {
    fault_in fault{typeid(list_checkpoints_request)};
    static_cast<void>(refusal<list_checkpoints_request, checkpoint_list>(manager, {}));
  };
  auto told = [&] {
    auto pending = ask(node, node_status_request{});
    return outcome<node_status>(pending).value().providers.at(0);
  };

  // The store still has an enrolment.
  store->hold_enroll = true;
  ask(manager, enrolling());
  fail_once();
  pass(1s);
  BOOST_TEST(started == 1);
  BOOST_TEST(told().down.starts_with("it starts anew: "));
  {
    // The node's own work, which starts it anew, is done again.
    fault_in fault{typeid(own_work)};
    pass(250ms);
    BOOST_TEST(fault.passed() > 0);
  }
  store->release();
  store->hold_enroll = false;
  pass(2s);
  BOOST_TEST(started == 2);
  BOOST_TEST(told().down.empty());
  BOOST_TEST(told().actor_failures == 1u);
  BOOST_TEST(told().last_failure.find("checkpoint_manager failed in") != std::string::npos);
  enroll(enrolling("another"));

  fail_once();
  pass(250ms);
  BOOST_TEST(started == 3);
  BOOST_TEST(down.empty());
  fail_once();
  pass(250ms);
  BOOST_TEST(started == 3);
  BOOST_TEST_REQUIRE(down.size() == 1u);
  BOOST_TEST(down[0].find("node.restarts_max") != std::string::npos);
  BOOST_TEST(told().name == "pool");
  BOOST_TEST(told().down.find("a planted fault") != std::string::npos);
  BOOST_TEST(told().actor_failures == 3u);
  kill(node);
}

BOOST_AUTO_TEST_CASE(a_restart_that_throws_is_done_again) {
  auto memory = std::make_shared<staging_memory>(std::make_shared<heap_memory_source>(8 << 10));
  std::vector<staging_manager_actor> managers;
  auto start_manager = [&] {
    managers.push_back(spawn_staging_manager(system, {memory}, {}));
    return managers.back().address();
  };
  auto start = [&] {
    manager = spawn_checkpoint_manager(system, deps);
    return started_actor{manager, {}};
  };
  node_actor_deps parts;
  parts.own_state = [] { return node_status{}; };
  parts.actors = {{"pool", {manager, {}}, start}};
  parts.parts = {{"the staging manager", start_manager(), start_manager, [](auto&) {}}};
  auto node = spawn_node_actor(system, std::move(parts));
  sched.run();
  static const std::type_info* failing;
  static int restarts_thrown;
  for (auto* message : {&typeid(list_checkpoints_request), &typeid(staging_call)}) {
    failing = message;
    restarts_thrown = 0;
    planted_fault = [](const std::type_info& what) {
      if (what == typeid(own_work) && !failing && restarts_thrown++ == 0)
        throw std::runtime_error{"a planted fault"};
      if (failing && what == *failing) {
        failing = nullptr;
        throw std::runtime_error{"a planted fault"};
      }
    };
    caf::anon_send(managers.back(), staging_call{});
    static_cast<void>(refusal<list_checkpoints_request, checkpoint_list>(manager, {}));
    BOOST_TEST(restarts_thrown == 1);
    BOOST_TEST(managers.size() == 1u);
    pass(2s);
    planted_fault = nullptr;
    BOOST_TEST(restarts_thrown > 1);
    BOOST_TEST((refusal<list_checkpoints_request, checkpoint_list>(manager, {}).ok()));
  }
  BOOST_TEST(managers.size() == 2u);
  kill(node);
}

BOOST_FIXTURE_TEST_CASE(a_node_starts_its_staging_manager_anew, staging_of_node) {
  ask_for_block(*a);
  BOOST_TEST(lent.size() == 1u);
  BOOST_TEST(told().actor_failures == 0u);
  {
    // The next manager finds the request.
    fault_in fault{typeid(staging_call)};
    ask_for_block(*b);
    BOOST_TEST(fault.passed() > 1);
  }
  BOOST_TEST(lent.size() == 2u);
  BOOST_TEST(managers.size() == 2u);
  BOOST_TEST(told().actor_failures == 1u);
  BOOST_TEST(
    told().last_failure ==
    "the staging manager failed in millrace::actors::staging_call: a planted fault");
  BOOST_TEST(told().down.empty());
  // Blocks of before the failure come back, and so do their budgets.
  lent.clear();
  pass(30s);
  BOOST_TEST(memory->report().at(0).budget_bytes == 0u);
  ask_for_block(*a);
  BOOST_TEST(lent.size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(
  who_waits_for_a_staging_manager_that_fails_too_often_hears, staging_of_node) {
  ask_for_block(*a);
  {
    fault_in fault{typeid(staging_call), 0, true};
    ask_for_block(*b);
  }
  BOOST_TEST(managers.size() == 3u);
  BOOST_TEST_REQUIRE(refused.size() == 1u);
  BOOST_TEST((refused[0].code() == errc::unavailable));
  BOOST_TEST(refused[0].detail().starts_with("the staging manager is down: "));
  BOOST_TEST(refused[0].detail().find("node.restarts_max") != std::string::npos);
  BOOST_TEST(told().actor_failures == 3u);
  BOOST_TEST(told().down == refused[0].detail());
  // Providers still lend what they were granted.
  ask_for_block(*a);
  BOOST_TEST(lent.size() == 2u);
  ask_for_block(*b);
  BOOST_TEST(refused.size() == 2u);
}

BOOST_AUTO_TEST_CASE(an_actor_whose_work_never_ends_is_not_started_anew) {
  auto in_use = std::make_shared<bool>();
  std::vector<std::string> down;
  node_actor_deps parts;
  parts.own_state = [] { return node_status{}; };
  parts.take_down = [&](auto&, auto& why) { down.push_back(why.to_string()); };
  parts.restarts.work_max = 2s;
  parts.actors = {{"pool", {manager, in_use}, [&]() -> started_actor { throw 7; }}};
  auto node = spawn_node_actor(system, std::move(parts));
  sched.run();
  {
    fault_in fault{typeid(list_checkpoints_request)};
    static_cast<void>(refusal<list_checkpoints_request, checkpoint_list>(manager, {}));
  }
  pass(1s);
  BOOST_TEST(down.empty());
  pass(2s);
  BOOST_TEST(down.size() == 1u);
  kill(node);
}

BOOST_AUTO_TEST_CASE(an_actor_that_is_ended_in_order_is_not_started_anew) {
  node_actor_deps parts;
  parts.own_state = [] { return node_status{}; };
  int started = 0;
  parts.actors = {{"pool", {manager, {}}, [&] { return ++started, started_actor{manager, {}}; }}};
  auto node = spawn_node_actor(system, std::move(parts));
  sched.run();
  stop();
  pass(1s);
  BOOST_TEST(started == 0);
  kill(node);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(supervised_wire, wire_fixture)

BOOST_AUTO_TEST_CASE(a_request_that_a_connection_cannot_pass_on_is_answered_and_others_go_on) {
  kept_log logged;
  serve<counter_service>("here", system.spawn<counters>("here", fabric, operation_limits{}));
  {
    fault_in fault{typeid(reply_port)};
    auto why = ask_through_frames<counter_service>("here", count_request{"epochs", 1});
    BOOST_TEST_REQUIRE(!why.has_value());
    BOOST_TEST((why.error().code() == errc::internal));
  }
  BOOST_TEST(
    (ask_through_frames<counter_service>("here", count_request{"epochs", 1})->total == 1u));
}

BOOST_AUTO_TEST_CASE(a_request_that_cannot_be_made_a_frame_fails_alone) {
  serve<counter_service>("here", system.spawn<counters>("here", fabric, operation_limits{}));
  node_in_memory node{*this};
  {
    fault_in fault{typeid(count_request)};
    auto why = node.ask_for<counter_service>(count_request{"epochs", 1});
    BOOST_TEST_REQUIRE(!why.has_value());
    BOOST_TEST((why.error().code() == errc::internal));
    BOOST_TEST(why.error().detail().find("asking memory failed in ") != std::string::npos);
  }
  BOOST_TEST(node.ask_for<counter_service>(count_request{"epochs", 1})->total == 1u);
}

BOOST_AUTO_TEST_SUITE_END()

#endif
