// Tests registrations, and what concerns all of them, with a store and a fabric that wait for the
// test.
#include "checkpoint_fixture.hpp"

#include <millrace/core/codec.hpp>
#include <millrace/tests/support/process.hpp>

#include <thread>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

struct manager_fixture : checkpoint_fixture {
  result<enroll_receipt> try_enroll(enroll_request r) {
    auto pending = ask(manager, std::move(r));
    return outcome<enroll_receipt>(pending);
  }

  void lose(const asker& who) {
    connections.erase(who);
    sched.run();
  }

  restore_request restoring(std::vector<tensor_desc> wanted) {
    restore_request r;
    r.model = "m";
    std::uint64_t bytes = 0;
    for (auto& t : wanted) {
      bytes += *size_bytes(t);
      r.selections.push_back({std::move(t), false, 0});
    }
    r.target.length_bytes = bytes;
    r.target.allows = access_mode::write;
    r.timeout_ms = 1000;
    return r;
  }

  template <class Pending>
  result<verify_receipt> verified(Pending& pending) {
    // Movers compare on a thread of their own.
    eventually([&] {
      sched.run();
      return answered();
    });
    return outcome<verify_receipt>(pending);
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(checkpoint_manager_tests, manager_fixture)

BOOST_AUTO_TEST_CASE(a_registration_reserves_its_slots_and_is_counted) {
  auto receipt = try_enroll(enrolling());
  BOOST_TEST_REQUIRE(receipt.has_value());
  BOOST_TEST(receipt->registration != 0u);
  BOOST_TEST(receipt->durable);
  BOOST_TEST(!receipt->resumed);
  BOOST_TEST(store->count("m", 0, slot_state::empty) == 2u);
  BOOST_TEST(status().registered == 1u);
}

BOOST_AUTO_TEST_CASE(
  memory_of_another_size_than_the_tensors_is_refused_before_anything_is_reserved) {
  auto request = enrolling();
  request.source.length_bytes = *request.source.length_bytes - 1;
  BOOST_TEST((try_enroll(request).error().code() == errc::invalid_argument));
  request = enrolling();
  request.shard.keep = 1;
  BOOST_TEST((try_enroll(request).error().code() == errc::invalid_argument));
  BOOST_TEST(store->shards.empty());
}

BOOST_AUTO_TEST_CASE(a_registration_is_refused_to_other_processes_as_if_it_were_not_there) {
  auto number = enroll(enrolling());
  auto stranger = asker{random_id<peer_id>(), 1};
  auto foreign = saving(number, 1);
  foreign.from = stranger;
  auto theirs = ask(manager, foreign);
  auto guessed = ask(manager, saving(number + 1, 1));
  auto a = outcome<save_receipt>(theirs), b = outcome<save_receipt>(guessed);
  BOOST_TEST((a.error().code() == errc::not_found));
  BOOST_TEST((a.error() == b.error()));
  auto leaving = ask(manager, leave_request{number, true, stranger});
  BOOST_TEST((outcome<done_reply>(leaving).error().code() == errc::not_found));
  auto waiting = ask(manager, durable_request{number, 1, 1000, stranger});
  BOOST_TEST((outcome<save_receipt>(waiting).error().code() == errc::not_found));
  BOOST_TEST(fabric->submitted == 0u);
  // Another connection of the same process may use it.
  trainer.connection = 2;
  save(number, 1);
}

BOOST_AUTO_TEST_CASE(a_lost_trainer_ends_its_pull_keeps_its_version_and_frees_its_registration) {
  auto number = enroll(enrolling());
  save(number, 1);
  auto staged = ask(manager, saving(number, 2));
  auto queued = ask(manager, saving(number, 3));
  lose(trainer);
  BOOST_TEST((outcome<save_receipt>(staged).error().code() == errc::peer_lost));
  BOOST_TEST((outcome<save_receipt>(queued).error().code() == errc::peer_lost));
  BOOST_TEST(store->count("m", 0, slot_state::active) == 0u);
  BOOST_TEST(store->find("m", 0, 1, slot_state::done));
  BOOST_TEST_REQUIRE(store->left.size() == 1u);
  BOOST_TEST(!store->left[0].second);
  BOOST_TEST(status().registered == 0u);
  BOOST_TEST(status().saves_in_flight == 0u);
  auto again = try_enroll(enrolling());
  BOOST_TEST_REQUIRE(again.has_value());
  BOOST_TEST(again->resumed);
  BOOST_TEST(again->registration != number);
}

BOOST_AUTO_TEST_CASE(a_lost_connection_takes_only_what_came_through_it) {
  auto mine = enroll(enrolling("mine"));
  auto others = enrolling("others");
  others.from = {random_id<peer_id>(), 1};
  enroll(others);
  lose({trainer.peer, trainer.connection + 1});
  BOOST_TEST(status().registered == 2u);
  lose(others.from);
  BOOST_TEST(status().registered == 1u);
  save(mine, 1);
}

BOOST_AUTO_TEST_CASE(a_trainer_lost_while_it_registers_leaves_no_registration) {
  store->hold_enroll = true;
  ask(manager, enrolling());
  lose(trainer);
  store->release();
  sched.run();
  BOOST_TEST(status().registered == 0u);
  BOOST_TEST(store->left.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_registration_that_takes_too_long_is_given_up_and_left_again) {
  store->hold_enroll = true;
  auto pending = ask(manager, enrolling());
  pass(1500ms);
  BOOST_TEST((outcome<enroll_receipt>(pending).error().code() == errc::deadline_exceeded));
  store->release();
  sched.run();
  BOOST_TEST(store->left.size() == 1u);
}

BOOST_AUTO_TEST_CASE(leaving_ends_a_registration_in_order) {
  auto number = enroll(enrolling());
  save(number, 1);
  auto leaving = ask(manager, leave_request{number, true, trainer});
  BOOST_TEST(outcome<done_reply>(leaving).has_value());
  BOOST_TEST_REQUIRE(store->left.size() == 1u);
  BOOST_TEST(store->left[0].second);
  auto after = ask(manager, saving(number, 2));
  BOOST_TEST((outcome<save_receipt>(after).error().code() == errc::not_found));
}

BOOST_AUTO_TEST_CASE(registrations_are_bounded) {
  deps.limits.registrations_max = 1;
  restart();
  enroll(enrolling("a"));
  BOOST_TEST((try_enroll(enrolling("b")).error().code() == errc::busy));
}

BOOST_AUTO_TEST_CASE(a_process_that_registers_without_end_leaves_registrations_to_others) {
  deps.limits.registrations_max = 8;
  restart();
  for (int i = 0; i < 4; ++i)
    enroll(enrolling("mine" + std::to_string(i)));
  auto refused = try_enroll(enrolling("more"));
  BOOST_TEST((refused.error().code() == errc::busy));
  BOOST_TEST(refused.error().detail().find("4 of them by this process") != std::string::npos);
  auto others = enrolling("others");
  others.from = process_of("user 2");
  BOOST_TEST(try_enroll(others).has_value());
  // Places come back with the connection.
  lose(trainer);
  BOOST_TEST(status().registered == 1u);
  BOOST_TEST(try_enroll(enrolling("mine0")).has_value());
}

BOOST_AUTO_TEST_CASE(without_room_a_registration_is_refused_or_tried_again_after_a_repack) {
  store->capacity_bytes = 100'000;
  store->freed_by_repack = 1 << 20;
  BOOST_TEST((try_enroll(enrolling()).error().code() == errc::no_space));
  BOOST_TEST(store->repacks == 0u);
  deps.repack.when_low = true;
  restart();
  BOOST_TEST(try_enroll(enrolling()).has_value());
  BOOST_TEST(store->repacks == 1u);
}

BOOST_AUTO_TEST_CASE(a_repack_begins_when_little_is_free_and_again_when_a_job_has_left) {
  deps.repack = {.when_low = true, .below_percent = 50};
  restart();
  store->capacity_bytes = 1'000'000;
  auto number = enroll(enrolling("a"));
  BOOST_TEST(store->repacks == 1u);
  auto leaving = ask(manager, leave_request{number, false, trainer});
  BOOST_TEST(outcome<done_reply>(leaving).has_value());
  sched.run();
  BOOST_TEST(store->repacks == 2u);
  // No shard was added since then, and no job has left.
  enroll(enrolling("a"));
  BOOST_TEST(store->repacks == 2u);
}

BOOST_AUTO_TEST_CASE(a_job_that_leaves_while_a_repack_runs_is_repacked_after_it) {
  deps.repack = {.when_low = true, .below_percent = 50};
  store->hold_repack = true;
  restart();
  store->capacity_bytes = 1'000'000;
  auto number = enroll(enrolling("a"));
  auto leaving = ask(manager, leave_request{number, false, trainer});
  BOOST_TEST(outcome<done_reply>(leaving).has_value());
  sched.run();
  BOOST_TEST(store->repacks == 1u);
  store->release();
  sched.run();
  BOOST_TEST(store->repacks == 2u);
  store->release();
  sched.run();
  BOOST_TEST(store->repacks == 2u);
}

BOOST_AUTO_TEST_CASE(repacks_asked_for_while_one_runs_share_its_report) {
  store->hold_repack = true;
  store->freed_by_repack = 7;
  auto a = ask(manager, repack_request{}), b = ask(manager, repack_request{});
  BOOST_TEST(store->repacks == 1u);
  store->release();
  sched.run();
  BOOST_TEST(outcome<repack_report>(a)->freed_bytes == 7u);
  BOOST_TEST(outcome<repack_report>(b)->freed_bytes == 7u);
}

BOOST_AUTO_TEST_CASE(a_repack_that_its_time_stopped_says_so) {
  store->hold_repack = true;
  store->freed_by_repack = 7;
  auto asked = ask(manager, repack_request{1000, 1});
  // It looks at the clock of the machine, for it runs in threads of the store.
  auto over = steady_clock::now() + std::chrono::milliseconds{5};
  while (steady_clock::now() < over)
    std::this_thread::yield();
  store->release();
  sched.run();
  auto receipt = outcome<repack_report>(asked);
  BOOST_TEST_REQUIRE(receipt.has_value());
  BOOST_TEST(receipt->stopped_early);
  BOOST_TEST(receipt->freed_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(a_repack_request_is_answered_in_its_time_whichever_repack_it_waits_for) {
  store->hold_repack = true;
  auto first = ask(manager, repack_request{2000, 0}),
       joined = ask(manager, repack_request{1000, 0});
  pass(1500ms);
  BOOST_TEST_REQUIRE(answered());
  BOOST_TEST((outcome<repack_report>(joined).error().code() == errc::deadline_exceeded));
  BOOST_TEST(!answered());
  pass(1s);
  BOOST_TEST_REQUIRE(answered());
  BOOST_TEST((outcome<repack_report>(first).error().code() == errc::deadline_exceeded));
  store->release();
  sched.run();
  BOOST_TEST(!answered());
  auto next = ask(manager, repack_request{});
  BOOST_TEST(store->repacks == 2u);
  store->release();
  sched.run();
  BOOST_TEST(outcome<repack_report>(next).has_value());
}

BOOST_AUTO_TEST_CASE(a_request_has_the_time_it_names_up_to_the_longest_allowed) {
  operation_limits bounds;
  bounds.request_timeout_ms = 100;
  bounds.request_timeout_max_ms = 1000;
  auto after = [&](std::uint32_t timeout_ms) {
    return deadline_of(timeout_ms, bounds, time_point{}) - time_point{};
  };
  BOOST_TEST((after(0) == std::chrono::milliseconds{100}));
  BOOST_TEST((after(500) == std::chrono::milliseconds{500}));
  BOOST_TEST((after(5000) == std::chrono::milliseconds{1000}));
}

BOOST_AUTO_TEST_CASE(a_page_of_a_listing_is_bounded_in_bytes) {
  // Each as large as a model of hundreds of ranks.
  constexpr int models = 10;
  for (int i = 0; i < models; ++i) {
    auto r = enrolling("m" + std::to_string(i));
    r.shard.axes.resize(10'000, {"tensor", "some of many words"});
    enroll(std::move(r));
  }
  std::vector<std::string> names;
  int pages = 0;
  for (bool more = true; more; ++pages) {
    auto asked = ask(manager, list_checkpoints_request{"", names.empty() ? "" : names.back()});
    auto page = outcome<checkpoint_list>(asked);
    BOOST_TEST_REQUIRE(page.has_value());
    BOOST_TEST_REQUIRE(!page->models.empty());
    BOOST_TEST(encode(*page).size() < 2u << 20);
    for (auto& m : page->models)
      names.push_back(m.model);
    more = page->more;
  }
  BOOST_TEST(names.size() == std::size_t{models});
  BOOST_TEST(pages > 1);
  // One model alone may have more.
  deps.page_bytes_max = 1;
  restart();
  auto asked = ask(manager, list_checkpoints_request{});
  auto page = outcome<checkpoint_list>(asked);
  BOOST_TEST_REQUIRE(page.has_value());
  BOOST_TEST(page->models.size() == 1u);
  BOOST_TEST(page->more);
}

BOOST_AUTO_TEST_CASE(a_restore_pushes_the_newest_version_into_the_callers_memory) {
  auto number = enroll(enrolling());
  save(number, 1, std::byte{1});
  save(number, 2, std::byte{2});
  auto pending =
    ask(manager, restoring({{"t0", dtype::u8, {10'000}}, {"t1", dtype::u8, {300'000}}}));
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 1u);
  BOOST_TEST((*fabric->waiting.front().what.ops.front().local == std::byte{2}));
  fabric->deliver();
  sched.run();
  auto receipt = outcome<load_reply>(pending);
  BOOST_TEST_REQUIRE(receipt.has_value());
  BOOST_TEST(receipt->version == 2u);
  BOOST_TEST(receipt->verified);
  BOOST_TEST(status().restores == 1u);
  auto older = restoring({{"t0", dtype::u8, {10'000}}});
  older.latest = false;
  older.step = 1;
  auto named = ask(manager, older);
  BOOST_TEST((*fabric->waiting.front().what.ops.front().local == std::byte{1}));
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<load_reply>(named)->version == 1u);
}

BOOST_AUTO_TEST_CASE(a_shape_that_differs_is_an_error_before_any_byte_moves) {
  auto number = enroll(enrolling());
  save(number, 1);
  auto before = fabric->submitted;
  for (auto& wrong :
       {tensor_desc{"t0", dtype::u8, {100, 100}}, tensor_desc{"t0", dtype::i8, {10'000}}}) {
    auto pending = ask(manager, restoring({wrong}));
    BOOST_TEST((outcome<load_reply>(pending).error().code() == errc::invalid_argument));
  }
  BOOST_TEST(fabric->submitted == before);
}

BOOST_AUTO_TEST_CASE(the_error_of_a_damaged_step_names_the_step) {
  auto number = enroll(enrolling());
  save(number, 7);
  auto pending = ask(manager, restoring({{"t0", dtype::u8, {10'000}}}));
  fabric->finish({}, {0});
  sched.run();
  auto why = outcome<load_reply>(pending).error();
  BOOST_TEST((why.code() == errc::corrupt_data), why.to_string());
  BOOST_TEST(why.detail().find("model m step 7, tensor t0") != std::string::npos, why.detail());
}

BOOST_AUTO_TEST_CASE(verifying_names_the_tensors_whose_bytes_changed_and_moves_none) {
  auto number = enroll(enrolling());
  save(number, 1);
  auto before = fabric->submitted;
  auto fine = ask(manager, verify_request{"m", 0, 1, 0});
  auto good = verified(fine);
  BOOST_TEST_REQUIRE(good.has_value());
  BOOST_TEST(good->corrupt.empty());
  BOOST_TEST(good->size_bytes == 310'000u);
  store->find("m", 0, 1, slot_state::done)->bytes[10'000 + 299'999] ^= std::byte{1};
  auto spoilt = ask(manager, verify_request{"m", 0, 1, 0});
  auto bad = verified(spoilt);
  BOOST_TEST_REQUIRE(bad.has_value());
  BOOST_TEST((bad->corrupt == std::vector<std::string>{"t1"}));
  BOOST_TEST(fabric->submitted == before);
}

BOOST_AUTO_TEST_CASE(a_restore_goes_before_a_verification_that_was_asked_for_first) {
  constexpr std::uint64_t page = 4096;
  deps.staging = std::make_shared<staging_lender>(std::make_shared<heap_memory_source>(page));
  store->window_bytes = page;
  restart();
  save(enroll(enrolling()), 1);
  memory_block all;
  deps.staging->ask({}, page, [&](result<memory_block> lent) { all = std::move(*lent); });
  auto verification = ask(manager, verify_request{"m", 0, 1, 0});
  auto restore = ask(manager, restoring({{"t0", dtype::u8, {10'000}}}));
  BOOST_TEST(fabric->waiting.empty());
  all = {};
  sched.run();
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 1u);
  BOOST_TEST(!answered());
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<load_reply>(restore).has_value());
  BOOST_TEST(verified(verification).has_value());
}

BOOST_AUTO_TEST_CASE(an_operation_that_gives_up_while_it_waits_for_staging_memory_asks_no_more) {
  // Nobody grants these lenders a budget.
  auto lent = std::make_shared<staging_memory>(memory);
  deps.staging = std::make_shared<staging_lender>(lent, "reads", ~0ull);
  deps.snapshots.lender = std::make_shared<staging_lender>(lent, "snapshots", ~0ull);
  deps.in_use = std::make_shared<bool>();
  std::weak_ptr<void> in_use = deps.in_use;
  store->window_bytes = 4096;
  restart();
  deps.in_use = nullptr;
  auto number = enroll(enrolling());
  save(number, 1);
  auto snapshot = saving(number, 2);
  snapshot.snapshot = true;
  auto staged = ask(manager, snapshot);
  auto reading = restoring({{"t0", dtype::u8, {10'000}}});
  reading.timeout_ms = 1000;
  auto restore = ask(manager, reading);
  for (auto& lender : lent->report())
    BOOST_TEST(lender.waiting == 1u, lender.name);
  pass(1500ms);
  BOOST_TEST((outcome<save_receipt>(staged).error().code() == errc::deadline_exceeded));
  BOOST_TEST((outcome<load_reply>(restore).error().code() == errc::deadline_exceeded));
  for (auto& lender : lent->report())
    BOOST_TEST(lender.waiting == 0u, lender.name);
  stop();
  manager = nullptr;
  BOOST_TEST(in_use.expired());
}

BOOST_AUTO_TEST_CASE(models_are_listed_described_and_erased) {
  auto number = enroll(enrolling());
  save(number, 1);
  auto listing = ask(manager, list_checkpoints_request{});
  auto all = outcome<checkpoint_list>(listing);
  BOOST_TEST_REQUIRE(all->models.size() == 1u);
  BOOST_TEST((all->models[0].complete_steps == std::vector<std::uint64_t>{1}));
  auto describing = ask(manager, describe_shard_request{"m", 0});
  BOOST_TEST((outcome<shard_spec>(describing)->tensors == enrolling().shard.tensors));
  auto busy = ask(manager, erase_checkpoint_request{"m", false, 0});
  BOOST_TEST((outcome<done_reply>(busy).error().code() == errc::busy));
  auto leaving = ask(manager, leave_request{number, true, trainer});
  BOOST_TEST(outcome<done_reply>(leaving).has_value());
  auto erasing = ask(manager, erase_checkpoint_request{"m", false, 0});
  BOOST_TEST(outcome<done_reply>(erasing).has_value());
  BOOST_TEST(store->shards.empty());
}

BOOST_AUTO_TEST_CASE(requests_of_this_process_need_name_no_peer) {
  trainer = {};
  auto number = enroll(enrolling());
  save(number, 1);
}

BOOST_AUTO_TEST_CASE(ending_the_actor_answers_everyone) {
  auto number = enroll(enrolling());
  auto staged = ask(manager, saving(number, 1));
  auto queued = ask(manager, saving(number, 2));
  store->hold_enroll = true;
  auto registering = ask(manager, enrolling("other"));
  stop();
  BOOST_TEST((outcome<save_receipt>(staged).error().code() == errc::unavailable));
  BOOST_TEST((outcome<save_receipt>(queued).error().code() == errc::unavailable));
  BOOST_TEST((outcome<enroll_receipt>(registering).error().code() == errc::unavailable));
  BOOST_TEST(store->count("m", 0, slot_state::active) == 0u);
}

BOOST_AUTO_TEST_CASE(ending_the_actor_answers_what_the_store_has_not_answered_yet) {
  store->hold_table = true;
  auto listing = ask(manager, list_checkpoints_request{});
  auto describing = ask(manager, describe_shard_request{"m", 0});
  auto erasing = ask(manager, erase_checkpoint_request{"m", false, 0});
  BOOST_TEST_REQUIRE(store->held.size() == 3u);
  stop();
  BOOST_TEST_REQUIRE(answered());
  BOOST_TEST((outcome<checkpoint_list>(listing).error().code() == errc::unavailable));
  BOOST_TEST_REQUIRE(answered());
  BOOST_TEST((outcome<shard_spec>(describing).error().code() == errc::unavailable));
  BOOST_TEST_REQUIRE(answered());
  BOOST_TEST((outcome<done_reply>(erasing).error().code() == errc::unavailable));
  while (!store->held.empty())
    store->release();
  sched.run();
  BOOST_TEST(!answered());
}

BOOST_AUTO_TEST_CASE(an_ended_actor_and_a_store_that_never_answers_let_go_of_each_other) {
  auto number = enroll(enrolling());
  store->hold_enroll = store->hold_begin = store->hold_table = store->hold_repack = true;
  auto staged = ask(manager, saving(number, 1));
  auto registering = ask(manager, enrolling("other"));
  auto describing = ask(manager, describe_shard_request{"m", 0});
  auto repacking = ask(manager, repack_request{});
  BOOST_TEST_REQUIRE(store->held.size() == 4u);
  stop();
  manager = nullptr;
  // A timer holds the actor that it wakes, and an answer holds the actor that gave it.
  pass(1s);
  BOOST_TEST(!outcome<save_receipt>(staged).has_value());
  BOOST_TEST(!outcome<enroll_receipt>(registering).has_value());
  BOOST_TEST(!outcome<shard_spec>(describing).has_value());
  BOOST_TEST(!outcome<repack_report>(repacking).has_value());
  // The fixture's own two.
  BOOST_TEST(store.use_count() == 2);
}

BOOST_AUTO_TEST_SUITE_END()
