// The staging manager and its lenders, under the deterministic scheduler: budgets, shares, quotas,
// turns, priorities, and what ends.
#include <millrace/actors/delivery.hpp>
#include <millrace/actors/staging/staging_manager.hpp>
#include <millrace/tests/support/actor_fixture.hpp>
#include <millrace/tests/support/dice.hpp>
#include <millrace/tests/support/fault_in.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/kept_log.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t page = 4096;

/// The operations of one provider.
struct borrower {
  std::string name;
  std::shared_ptr<staging_lender> from;
  std::deque<memory_block> lent = {};
  std::vector<millrace::status> refused = {};
};

struct managed : actor_fixture {
  std::shared_ptr<staging_memory> memory;
  staging_rules rules{.block_bytes = 4 * page, .turn_count = 8, .lease = 10s};
  staging_manager_actor manager;
  std::map<std::string, borrower> borrowers;
  std::string order; // the names of those that got a block

  managed() { open(8 * page); }

  void open(std::uint64_t capacity_bytes) {
    memory = std::make_shared<staging_memory>(std::make_shared<heap_memory_source>(capacity_bytes));
    spawn();
  }

  ~managed() {
    end_manager();
    for (auto& [name, b] : borrowers)
      end(b);
    borrowers.clear();
    sched.run();
  }

  void spawn() {
    end_manager();
    manager = spawn_staging_manager(system, {memory}, rules);
    sched.run();
  }

  void end_manager() {
    if (manager)
      caf::anon_send_exit(manager, caf::exit_reason::kill);
    sched.run();
  }

  borrower& add(const std::string& name, std::uint64_t quota_bytes = ~0ull) {
    auto lender = std::make_shared<staging_lender>(memory, name, quota_bytes);
    return borrowers.insert_or_assign(name, borrower{name, std::move(lender)}).first->second;
  }

  /// Asks for blocks, and returns how many there are now.
  std::size_t ask(
    borrower& b, int times, std::uint64_t bytes = page, staging_use use = staging_use::save,
    time_point deadline = time_point::max(), const party& who = {}) {
    for (int i = 0; i < times; ++i)
      b.from->ask({who, use, deadline}, bytes, [this, &b](result<memory_block> block) {
        if (!block)
          return b.refused.push_back(block.error());
        order += b.name;
        b.lent.push_back(std::move(*block));
      });
    sched.run();
    return b.lent.size();
  }

  // What comes back goes to the next request, which may stand in `lent` again.
  void give_back(borrower& b, int times = 1) {
    for (; times > 0; --times)
      drop_oldest(b);
    pass(250ms);
  }

  void drop_oldest(borrower& b) {
    auto block = std::move(b.lent.front());
    b.lent.pop_front();
    block = {};
    sched.run();
  }

  void end(borrower& b) {
    while (!b.lent.empty())
      drop_oldest(b);
  }

  staging_status report(const std::string& name) {
    for (auto& one : memory->report())
      if (one.name == name)
        return one;
    return {};
  }

  time_point now() { return system.clock().now(); }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(staging_manager, managed)

BOOST_AUTO_TEST_CASE(a_lender_gets_its_memory_in_blocks_and_asks_once_for_each) {
  auto& a = add("a");
  BOOST_TEST(ask(a, 4) == 4u);
  BOOST_TEST(report("a").calls == 1u);
  BOOST_TEST(report("a").budget_bytes == 4 * page);
  BOOST_TEST(ask(a, 4) == 8u);
  BOOST_TEST(report("a").calls == 2u);
  BOOST_TEST(ask(a, 1) == 8u);
  give_back(a);
  BOOST_TEST(a.lent.size() == 8u);
  BOOST_TEST(report("a").waits == 9u);
}

BOOST_AUTO_TEST_CASE(a_thousand_small_operations_ask_once) {
  rules = {};
  open(64 << 20);
  auto& a = add("a");
  for (int i = 0; i < 1000; ++i) {
    ask(a, 1);
    end(a);
  }
  BOOST_TEST(report("a").lent_count == 1000u);
  BOOST_TEST(report("a").calls == 1u);
}

BOOST_AUTO_TEST_CASE(large_operations_of_two_providers_ask_once_for_64_mib_at_most) {
  constexpr std::uint64_t window = 8 << 20;
  rules = {};
  open(96 << 20);
  auto &a = add("a"), &b = add("b");
  for (int i = 0; i < 8; ++i) {
    ask(a, 1, window);
    ask(b, 1, window);
  }
  for (int i = 0; i < 1000; ++i)
    for (auto* one : {&a, &b})
      if (!one->lent.empty()) {
        drop_oldest(*one);
        ask(*one, 1, window);
        if (i % 10 == 0)
          pass(250ms);
      }
  for (auto* name : {"a", "b"}) {
    auto said = report(name);
    BOOST_TEST(said.lent_bytes > 500 * window);
    BOOST_TEST(said.calls <= 1 + said.lent_bytes / (64 << 20));
    BOOST_TEST(said.budget_bytes == 6 * window);
  }
}

BOOST_AUTO_TEST_CASE(a_restore_goes_before_a_save_and_a_save_before_what_nobody_waits_for) {
  auto& holder = add("h");
  BOOST_TEST(ask(holder, 8) == 8u);
  ask(add("l"), 1, page, staging_use::load_ahead);
  ask(add("s"), 1, page, staging_use::save);
  ask(add("r"), 1, page, staging_use::restore);
  order.clear();
  give_back(holder, 1);
  give_back(holder, 1);
  give_back(holder, 1);
  BOOST_TEST(order == "rsl");
}

BOOST_AUTO_TEST_CASE(within_a_provider_restores_go_first_but_saves_do_not_wait_for_ever) {
  auto lender = std::make_shared<staging_lender>(std::make_shared<heap_memory_source>(page));
  memory_block held;
  std::string served;
  auto wait = [&](char name, staging_use use) {
    lender->ask({{}, use}, page, [&, name](result<memory_block> b) {
      served += name;
      held = std::move(*b);
    });
  };
  wait('-', staging_use::save);
  for (int i = 0; i < 2; ++i) {
    wait('l', staging_use::load_ahead);
    wait('s', staging_use::save);
  }
  for (int i = 0; i < 20; ++i)
    wait('r', staging_use::restore);
  for (int i = 0; i < 24; ++i)
    std::exchange(held, {}).owner.reset();
  BOOST_TEST(served == "-rrrrrrsrrrrrrrlrrrrrrrsl");
}

BOOST_AUTO_TEST_CASE(a_provider_holds_no_more_than_its_quota) {
  auto& a = add("a", 2 * page);
  BOOST_TEST(ask(a, 4) == 2u);
  BOOST_TEST(report("a").quota_bytes == 2 * page);
  ask(a, 1, 3 * page);
  BOOST_TEST_REQUIRE(a.refused.size() == 1u);
  BOOST_TEST((a.refused[0].code() == errc::no_space));
  BOOST_TEST(a.refused[0].detail().find("staging_percent") != std::string::npos);
  give_back(a);
  BOOST_TEST(a.lent.size() == 2u);
}

BOOST_AUTO_TEST_CASE(what_one_provider_may_not_hold_others_may) {
  auto &a = add("a", 2 * page), &b = add("b");
  BOOST_TEST(ask(a, 8) == 2u);
  BOOST_TEST(ask(b, 8) == 6u);
}

BOOST_AUTO_TEST_CASE(who_has_more_than_its_share_gives_it_back_as_its_blocks_come_back) {
  auto &a = add("a"), &b = add("b");
  BOOST_TEST(ask(a, 20) == 8u);
  BOOST_TEST(ask(b, 20) == 0u);
  give_back(a, 4);
  BOOST_TEST(a.lent.size() == 4u);
  BOOST_TEST(b.lent.size() == 4u);
  // From now on each goes on with its own.
  auto calls = report("a").calls + report("b").calls;
  give_back(a, 4);
  give_back(b, 4);
  BOOST_TEST(a.lent.size() == 4u);
  BOOST_TEST(b.lent.size() == 4u);
  BOOST_TEST(report("a").calls + report("b").calls <= calls + 2);
}

BOOST_AUTO_TEST_CASE(a_process_has_one_share_through_all_providers) {
  auto &a = add("a"), &b = add("b");
  auto who = process_of("user 1").holder;
  ask(a, 8, page, staging_use::save, time_point::max(), who);
  ask(b, 8, page, staging_use::save, time_point::max(), who);
  pass(5s);
  BOOST_TEST(a.lent.size() + b.lent.size() == 4u);
  auto other = process_of("user 2").holder;
  ask(b, 1, page, staging_use::save, time_point::max(), other);
  pass(20s);
  BOOST_TEST(a.lent.size() + b.lent.size() == 5u);
}

BOOST_AUTO_TEST_CASE(a_stopped_process_leaves_some_of_a_quota_to_the_next_one) {
  auto& a = add("a", 4 * page);
  auto stopped = process_of("user 1").holder, next = process_of("user 1").holder;
  BOOST_TEST(ask(a, 4, page, staging_use::save, time_point::max(), stopped) == 2u);
  BOOST_TEST(ask(a, 1, page, staging_use::save, time_point::max(), next) == 3u);
}

BOOST_AUTO_TEST_CASE(requests_that_wait_when_the_node_ends_are_answered) {
  auto& a = add("a", 2 * page);
  BOOST_TEST(ask(a, 3) == 2u);
  end_manager();
  memory->refuse_all({errc::unavailable, "the node was stopped"});
  BOOST_TEST_REQUIRE(a.refused.size() == 1u);
  BOOST_TEST((a.refused.front().code() == errc::unavailable));
  BOOST_TEST(report("a").waiting == 0u);
}

BOOST_AUTO_TEST_CASE(budget_that_is_not_used_returns_by_itself) {
  auto& a = add("a");
  ask(a, 4);
  end(a);
  pass(5s);
  BOOST_TEST(report("a").budget_bytes == 4 * page);
  pass(10s);
  BOOST_TEST(report("a").budget_bytes == 0u);
  // And the manager rests.
  BOOST_TEST(!sched.clock().has_pending_timeout());
  BOOST_TEST(ask(a, 1) == 1u);
}

BOOST_AUTO_TEST_CASE(budget_that_is_not_used_goes_to_those_that_are_short) {
  auto &a = add("a"), &b = add("b");
  ask(a, 8);
  end(a);
  BOOST_TEST(ask(b, 8) == 4u); // its share, at once
  pass(2s);
  BOOST_TEST(b.lent.size() == 8u);
}

BOOST_AUTO_TEST_CASE(where_a_share_is_less_than_a_request_providers_take_turns) {
  constexpr std::uint64_t window = 4 * page;
  std::vector<borrower*> all{&add("a"), &add("b"), &add("c"), &add("d"), &add("e")};
  for (auto* b : all)
    ask(*b, 100, window);
  for (int i = 0; i < 100; ++i) {
    pass(250ms);
    for (auto* b : all)
      if (!b->lent.empty())
        give_back(*b);
  }
  for (auto* b : all) {
    auto said = report(b->name);
    BOOST_TEST(said.lent_count > 10u, b->name);
    BOOST_TEST(said.calls <= 2 + said.lent_bytes / rules.block_bytes, b->name);
  }
}

BOOST_AUTO_TEST_CASE(a_request_larger_than_a_share_is_granted_in_the_end) {
  auto &a = add("a"), &b = add("b"), &c = add("c");
  ask(a, 200);
  ask(b, 200);
  ask(c, 1, 7 * page);
  for (int i = 0; i < 60 && c.lent.empty(); ++i) {
    pass(250ms);
    for (auto* one : {&a, &b})
      if (!one->lent.empty())
        give_back(*one);
  }
  BOOST_TEST_REQUIRE(c.lent.size() == 1u);
  give_back(c);
  pass(10s);
  BOOST_TEST(a.lent.size() + b.lent.size() == 8u);
}

BOOST_AUTO_TEST_CASE(a_request_ends_at_its_deadline) {
  auto &a = add("a"), &b = add("b");
  ask(a, 8);
  ask(b, 1, 8 * page, staging_use::restore, now() + 2s);
  ask(b, 1);
  pass(1s);
  BOOST_TEST(b.refused.empty());
  pass(2s);
  BOOST_TEST_REQUIRE(b.refused.size() == 1u);
  BOOST_TEST((b.refused[0].code() == errc::deadline_exceeded));
  give_back(a, 4);
  BOOST_TEST(b.lent.size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_is_not_needed_any_more_keeps_nobody_waiting_and_takes_no_budget) {
  auto &a = add("a"), &b = add("b");
  BOOST_TEST(ask(a, 8) == 8u);
  staging_need first, second;
  auto wait = [&](staging_need& need, std::uint64_t bytes) {
    b.from->ask({{}, staging_use::save, time_point::max(), &need}, bytes, [&b](auto block) {
      b.lent.push_back(std::move(*block));
    });
    sched.run();
  };
  wait(first, 8 * page);
  wait(second, page);
  BOOST_TEST(report("b").waiting == 2u);
  first.end();
  give_back(a);
  BOOST_TEST(b.lent.size() == 1u);
  wait(first, 2 * page);
  wait(second, 2 * page);
  first.end();
  second.end();
  BOOST_TEST(report("b").waiting == 0u);
  pass(250ms);
  // What comes back is lent to the same one again.
  give_back(a, 4);
  BOOST_TEST(ask(a, 4) == 7u);
  BOOST_TEST(a.refused.empty());
}

BOOST_AUTO_TEST_CASE(what_a_provider_held_is_free_when_it_ends) {
  auto &a = add("a"), &b = add("b");
  ask(a, 20);
  ask(b, 8);
  a.from.reset();
  end(a);
  pass(1s);
  BOOST_TEST(report("a").name.empty());
  BOOST_TEST(b.lent.size() == 8u);
}

BOOST_AUTO_TEST_CASE(a_new_manager_goes_on_with_what_lenders_hold) {
  auto &a = add("a"), &b = add("b");
  ask(a, 6);
  end_manager();
  BOOST_TEST(ask(b, 4) == 0u);
  spawn();
  give_back(a, 6);
  pass(2s);
  BOOST_TEST(b.lent.size() == 4u);
  BOOST_TEST(report("a").budget_bytes + report("b").budget_bytes <= 8 * page);
  end(b);
  pass(20s);
  BOOST_TEST(report("a").budget_bytes == 0u);
  BOOST_TEST(report("b").budget_bytes == 0u);
}

#if defined(MILLRACE_KILL_POINTS)
BOOST_AUTO_TEST_CASE(what_waits_and_what_is_lent_outlives_a_manager_whose_handler_throws) {
  kept_log logged;
  auto &a = add("a"), &b = add("b");
  BOOST_TEST(ask(a, 4) == 4u);
  {
    fault_in fault{typeid(staging_call)};
    BOOST_TEST(ask(b, 1) == 0u);
  }
  BOOST_TEST(
    logged.count("the staging manager failed in millrace::actors::staging_call: a planted fault") ==
    1u);
  // Budgets last without it.
  give_back(a);
  BOOST_TEST(ask(a, 1) == 4u);
  BOOST_TEST(b.refused.empty());
  spawn();
  BOOST_TEST(b.lent.size() == 1u);
  end(a), end(b);
  pass(20s);
  BOOST_TEST(report("a").budget_bytes + report("b").budget_bytes == 0u);
}
#endif

BOOST_AUTO_TEST_CASE(requests_that_would_wait_for_ever_are_refused) {
  auto& a = add("a", 4 * page);
  BOOST_TEST(ask(a, 4) == 4u);
  end_manager();
  memory->refuse_all({errc::unavailable, "no manager"});
  BOOST_TEST(ask(a, 1) == 4u);
  BOOST_TEST_REQUIRE(a.refused.size() == 1u);
  BOOST_TEST(a.refused.front().detail() == "no manager");
  // What was granted is lent again.
  give_back(a);
  BOOST_TEST(ask(a, 1) == 4u);
  spawn();
  BOOST_TEST(ask(a, 1) == 4u);
  BOOST_TEST(a.refused.size() == 1u);
}

BOOST_AUTO_TEST_CASE(an_operation_that_fails_with_its_block_does_not_keep_others_from_theirs) {
  kept_log logged;
  auto& a = add("a", 4 * page);
  BOOST_TEST(ask(a, 1) == 1u);
  end_manager();
  a.from->ask({}, 4 * page, [](result<memory_block>) { throw std::runtime_error{"no time"}; });
  a.from->ask(
    {}, 4 * page, [&](result<memory_block> block) { a.refused.push_back(block.error()); });
  memory->refuse_all({errc::unavailable, "no manager"});
  BOOST_TEST(a.refused.size() == 1u);
  BOOST_TEST(logged.count("could not be answered: no time") == 1u);
}

// Sizes, uses, processes and lenders are drawn. Nobody keeps a block while it waits for another one
// without end, so every request is served.
BOOST_AUTO_TEST_CASE(every_request_is_served_in_the_end_and_no_budget_is_lost) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    dice random{seed};
    auto pages = random.between(4, 32);
    rules.block_bytes = random.between(1, 8) * page;
    rules.turn_count = static_cast<std::uint32_t>(random.between(1, 50));
    open(pages * page);
    std::vector<borrower*> all;
    for (auto left = random.between(1, 6); left > 0; --left)
      all.push_back(&add("p" + std::to_string(left)));
    std::vector<party> parties{{}, process_of("user 1").holder, process_of("user 2").holder};
    std::uint64_t asked = 0;
    for (int i = 0; i < 300; ++i) {
      auto& b = *random.one_of(all);
      if (random.percent(50)) {
        ++asked;
        ask(
          b, 1, random.between(1, random.percent(10) ? pages : 4) * page,
          static_cast<staging_use>(random.below(3)), time_point::max(), random.one_of(parties));
      } else if (!b.lent.empty()) {
        give_back(b);
      }
      auto said = memory->report();
      auto held =
        std::accumulate(said.begin(), said.end(), std::uint64_t{0}, [](auto sum, auto& one) {
          return sum + one.budget_bytes;
        });
      BOOST_REQUIRE_MESSAGE(held <= pages * page, "seed " << seed);
    }
    for (int i = 0; i < 2000 && order.size() < 2 * asked; ++i) {
      for (auto* b : all)
        if (!b->lent.empty())
          give_back(*b);
      pass(250ms);
    }
    BOOST_REQUIRE_MESSAGE(
      order.size() == 2 * asked, "seed " << seed << ": " << order.size() / 2 << " of " << asked);
    for (auto* b : all)
      give_back(*b, static_cast<int>(b->lent.size()));
    pass(20s);
    for (auto& one : memory->report())
      BOOST_REQUIRE_MESSAGE(one.budget_bytes == 0u && one.used_bytes == 0u, "seed " << seed);
    order.clear();
    borrowers.clear();
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(staging_threads)

// Blocks go and come on threads of their own, as those of movers and buckets do.
BOOST_AUTO_TEST_CASE(threads_of_several_providers_get_memory_that_nobody_else_has) {
  constexpr int threads = 4, rounds = 500;
  auto memory = std::make_shared<staging_memory>(std::make_shared<heap_memory_source>(8 * page));
  std::atomic<int> wrong = 0;
  {
    caf::actor_system_config config;
    config.set("scheduler.policy", caf::atom("sharing")); // as a node has it
    auto system = std::make_unique<caf::actor_system>(config);
    auto manager = caf::actor_cast<caf::strong_actor_ptr>(
      spawn_staging_manager(*system, {memory}, {.block_bytes = page, .turn_count = 8}));
    std::vector<std::thread> all;
    for (int number = 1; number <= threads; ++number)
      all.emplace_back([&, number] {
        auto lender = std::make_shared<staging_lender>(memory, std::to_string(number), ~0ull);
        for (int i = 0; i < rounds; ++i) {
          held_completion<memory_block> got;
          lender->ask({}, (1 + i % 3) * page, got.callback());
          auto block = got.take();
          if (!block) {
            ++wrong;
            continue;
          }
          auto mark = static_cast<std::byte>(number);
          std::fill_n(block->data, block->size_bytes, mark);
          wrong += std::count(block->data, block->data + block->size_bytes, mark) !=
            static_cast<std::ptrdiff_t>(block->size_bytes);
        }
      });
    for (auto& t : all)
      t.join();
    actors::end_actor(*system, manager);
    manager.reset();
    actors::end_system(std::move(system));
  }
  BOOST_TEST(wrong == 0);
  BOOST_TEST(memory->used_bytes() == 0u);
  BOOST_TEST(memory->report().empty());
}

BOOST_AUTO_TEST_SUITE_END()
