// Tests saves: their order, their two answers and their ways to fail, with a store and a fabric
// that wait for the test.
#include "checkpoint_fixture.hpp"

#include <thread>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;
using namespace std::chrono_literals;

BOOST_FIXTURE_TEST_SUITE(checkpoint_save_tests, checkpoint_fixture)

BOOST_AUTO_TEST_CASE(staged_is_answered_before_the_version_is_persistent_and_durable_after) {
  auto number = enroll(enrolling());
  store->hold_publish = true;
  auto staged = ask(manager, saving(number, 5));
  auto done = ask(manager, durable(number, 5));
  BOOST_TEST(!answered());
  BOOST_TEST(store->count("m", 0, slot_state::active) == 1u);
  fabric->deliver();
  sched.run();
  auto first = outcome<save_receipt>(staged);
  BOOST_TEST_REQUIRE(first.has_value());
  BOOST_TEST(!first->durable);
  BOOST_TEST(first->path == "direct");
  BOOST_TEST(!answered());
  BOOST_TEST(store->count("m", 0, slot_state::done) == 0u);
  store->release();
  sched.run();
  auto second = outcome<save_receipt>(done);
  BOOST_TEST_REQUIRE(second.has_value());
  BOOST_TEST(second->durable);
  BOOST_TEST(second->complete);
  BOOST_TEST(second->step == 5u);
  BOOST_TEST(second->size_bytes == 310'000u);
  auto* slot = store->find("m", 0, 5, slot_state::done);
  BOOST_TEST_REQUIRE(slot);
  BOOST_TEST((slot->bytes == std::vector<std::byte>(310'000, std::byte{7})));
  BOOST_TEST(slot->digests.size() == 3u);
}

BOOST_AUTO_TEST_CASE(a_save_asked_for_its_end_afterwards_gets_the_same_answer) {
  auto number = enroll(enrolling());
  auto staged = ask(manager, saving(number, 1));
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(staged).has_value());
  auto done = ask(manager, durable(number, 1));
  BOOST_TEST(outcome<save_receipt>(done)->durable);
  auto never = ask(manager, durable(number, 2));
  BOOST_TEST((outcome<save_receipt>(never).error().code() == errc::not_found));
}

BOOST_AUTO_TEST_CASE(lines_that_movers_wrote_back_are_not_flushed_again) {
  auto number = enroll(enrolling());
  auto staged = ask(manager, saving(number, 1));
  BOOST_TEST(fabric->waiting.front().what.write_back);
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(staged).has_value());
  BOOST_TEST(store->written_back == 1u);
  store->can.cpu_flush = false;
  auto plain = ask(manager, saving(number, 2));
  BOOST_TEST(!fabric->waiting.front().what.write_back);
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(plain).has_value());
  BOOST_TEST(store->written_back == 1u);
}

BOOST_AUTO_TEST_CASE(a_second_save_waits_for_the_first_and_a_third_is_refused) {
  auto number = enroll(enrolling());
  auto a = ask(manager, saving(number, 1)), b = ask(manager, saving(number, 2)),
       c = ask(manager, saving(number, 3));
  BOOST_TEST(fabric->submitted == 1u);
  BOOST_TEST(status().saves_in_flight == 1u);
  BOOST_TEST(status().saves_queued == 1u);
  BOOST_TEST((outcome<save_receipt>(c).error().code() == errc::busy));
  auto c_done = ask(manager, durable(number, 3));
  BOOST_TEST((outcome<save_receipt>(c_done).error().code() == errc::busy));
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(a).has_value());
  BOOST_TEST(fabric->submitted == 2u);
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(b)->step == 2u);
  BOOST_TEST(status().saves == 2u);
  BOOST_TEST(status().saves_failed == 1u);
  BOOST_TEST(status().saves_in_flight == 0u);
}

BOOST_AUTO_TEST_CASE(a_slot_is_free_again_though_a_thread_still_has_the_completion_that_filled_it) {
  fabric->keeps_spent = true;
  auto number = enroll(enrolling());
  for (std::uint64_t step = 1; step <= 4; ++step)
    save(number, step);
  BOOST_TEST(fabric->spent.size() == 4u);
  fabric->spent.clear();
  BOOST_TEST(store->count("m", 0, slot_state::done) == 2u);
}

BOOST_AUTO_TEST_CASE(a_registration_may_choose_to_be_refused_instead) {
  auto request = enrolling();
  request.busy = when_saving::refuse;
  auto number = enroll(std::move(request));
  auto a = ask(manager, saving(number, 1)), b = ask(manager, saving(number, 2));
  auto refused = outcome<save_receipt>(b);
  BOOST_TEST((refused.error().code() == errc::busy));
  BOOST_TEST(refused.error().detail().find("step 1") != std::string::npos);
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(a).has_value());
}

BOOST_AUTO_TEST_CASE(a_rank_that_went_back_tells_the_store_the_first_run_of_its_saves) {
  auto number = enroll(enrolling());
  save(number, 1);
  auto request = saving(number, 1);
  request.run_min = 8;
  auto again = ask(manager, request);
  fabric->deliver();
  sched.run();
  auto receipt = outcome<save_receipt>(again);
  BOOST_REQUIRE(receipt.has_value());
  BOOST_TEST(receipt->run == 7u); // as the store says
  BOOST_TEST((store->run_mins == std::vector<std::uint64_t>{0, 8}));
}

BOOST_AUTO_TEST_CASE(a_save_waits_for_the_reader_of_the_slot_it_fills) {
  auto number = enroll(enrolling());
  save(number, 1);
  save(number, 2);
  auto reader = read(1);
  auto waiting = ask(manager, saving(number, 3)), behind = ask(manager, saving(number, 4));
  BOOST_TEST(fabric->waiting.empty());
  BOOST_TEST(status().saves_queued == 1u);
  reader = nullptr;
  sched.run();
  for (auto* save : {&waiting, &behind}) {
    BOOST_TEST_REQUIRE(fabric->waiting.size() == 1u);
    fabric->deliver();
    sched.run();
    BOOST_TEST(outcome<save_receipt>(*save).has_value());
  }
}

BOOST_AUTO_TEST_CASE(a_slot_that_is_let_go_of_before_the_refusal_arrives_is_asked_for_again) {
  auto number = enroll(enrolling());
  save(number, 1);
  save(number, 2);
  auto reader = read(1);
  store->hold_answer = true;
  auto waiting = ask(manager, saving(number, 3));
  reader = nullptr;
  sched.run();
  store->hold_answer = false;
  store->release();
  sched.run();
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 1u);
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(waiting).has_value());
}

BOOST_AUTO_TEST_CASE(a_slot_that_is_read_for_too_long_is_named_when_the_save_is_late) {
  auto number = enroll(enrolling());
  save(number, 1);
  save(number, 2);
  auto reader = read(1);
  auto waiting = ask(manager, saving(number, 3));
  pass(1500ms);
  auto late = outcome<save_receipt>(waiting);
  BOOST_TEST((late.error().code() == errc::deadline_exceeded));
  BOOST_TEST(late.error().detail().find("in use") != std::string::npos);
  reader = nullptr;
  sched.run();
  BOOST_TEST(fabric->waiting.empty());
  save(number, 4);
}

BOOST_AUTO_TEST_CASE(a_save_waits_for_a_slot_as_long_as_is_set_and_says_for_what) {
  deps.limits.slot_wait_ms = 300;
  restart();
  auto number = enroll(enrolling());
  save(number, 1);
  save(number, 2);
  auto reader = read(1);
  auto next = saving(number, 4);
  next.timeout_ms = 10'000;
  auto waiting = ask(manager, saving(number, 3)), behind = ask(manager, next);
  pass(600ms);
  auto refused = outcome<save_receipt>(waiting);
  BOOST_TEST((refused.error().code() == errc::busy));
  for (auto part : {"checkpoints.slot_wait", "in use"})
    BOOST_TEST(refused.error().detail().find(part) != std::string::npos);
  // The one behind it has the whole time again.
  BOOST_TEST(!answered());
  reader = nullptr;
  sched.run();
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 1u);
  pass(600ms);
  BOOST_TEST(!answered());
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(behind).has_value());
}

BOOST_AUTO_TEST_CASE(the_receipt_says_how_long_a_save_waited_for_a_slot) {
  auto number = enroll(enrolling());
  save(number, 1);
  auto saved_at_once = ask(manager, saving(number, 2));
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(saved_at_once)->times.slot_us == 0u);
  auto reader = read(1);
  auto waiting = ask(manager, saving(number, 3));
  std::this_thread::sleep_for(5ms);
  reader = nullptr;
  sched.run();
  fabric->deliver();
  sched.run();
  auto receipt = outcome<save_receipt>(waiting);
  BOOST_TEST_REQUIRE(receipt.has_value());
  BOOST_TEST(receipt->times.slot_us >= 5000u);
  BOOST_TEST(receipt->times.begin_us >= receipt->times.slot_us);
}

BOOST_AUTO_TEST_CASE(a_registration_that_does_not_wait_is_refused_a_slot_that_is_read) {
  auto request = enrolling();
  request.busy = when_saving::refuse;
  auto number = enroll(std::move(request));
  save(number, 1);
  save(number, 2);
  auto reader = read(1);
  auto refused = ask(manager, saving(number, 3));
  BOOST_TEST((outcome<save_receipt>(refused).error().code() == errc::busy));
}

BOOST_AUTO_TEST_CASE(a_late_save_is_given_up_on_both_answers_and_its_slot_is_empty) {
  auto number = enroll(enrolling());
  save(number, 1);
  auto staged = ask(manager, saving(number, 2));
  auto done = ask(manager, durable(number, 2));
  pass(1500ms);
  BOOST_TEST((outcome<save_receipt>(staged).error().code() == errc::deadline_exceeded));
  BOOST_TEST((outcome<save_receipt>(done).error().code() == errc::deadline_exceeded));
  BOOST_TEST(store->count("m", 0, slot_state::active) == 0u);
  BOOST_TEST_REQUIRE(store->find("m", 0, 1, slot_state::done));
  // A mover may still be writing there: it is not lent again before that is over.
  auto waiting = ask(manager, saving(number, 3));
  BOOST_TEST(fabric->submitted == 2u);
  fabric->deliver();
  sched.run();
  BOOST_TEST(!store->find("m", 0, 2, slot_state::done));
  BOOST_TEST(fabric->submitted == 3u);
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(waiting).has_value());
  save(number, 4);
}

BOOST_AUTO_TEST_CASE(a_store_that_never_lends_a_slot_costs_no_more_than_the_deadline) {
  auto number = enroll(enrolling());
  store->hold_begin = true;
  auto staged = ask(manager, saving(number, 1));
  pass(1500ms);
  BOOST_TEST((outcome<save_receipt>(staged).error().code() == errc::deadline_exceeded));
  store->hold_begin = false;
  store->release();
  sched.run();
  BOOST_TEST(store->count("m", 0, slot_state::active) == 0u);
  save(number, 2);
}

BOOST_AUTO_TEST_CASE(a_failed_pull_fails_both_answers_and_the_next_save_works) {
  auto number = enroll(enrolling());
  auto staged = ask(manager, saving(number, 1));
  auto done = ask(manager, durable(number, 1));
  fabric->fail_oldest({errc::peer_lost, "client:7 is gone"});
  sched.run();
  for (auto* p : {&staged, &done}) {
    auto r = outcome<save_receipt>(*p);
    BOOST_TEST((r.error().code() == errc::peer_lost));
    BOOST_TEST(r.error().detail().find("step 1 of m") != std::string::npos);
  }
  BOOST_TEST(store->count("m", 0, slot_state::empty) == 2u);
  save(number, 2);
}

BOOST_AUTO_TEST_CASE(a_publish_that_fails_is_told_on_durable_after_staged_was_answered) {
  auto number = enroll(enrolling());
  store->publish_fails = {errc::io_error, "the device is gone"};
  auto staged = ask(manager, saving(number, 1));
  auto done = ask(manager, durable(number, 1));
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(staged).has_value());
  BOOST_TEST((outcome<save_receipt>(done).error().code() == errc::io_error));
  BOOST_TEST(store->count("m", 0, slot_state::done) == 0u);
}

BOOST_AUTO_TEST_CASE(where_slots_cannot_be_reached_saves_go_through_staging_from_then_on) {
  auto number = enroll(enrolling());
  auto staged = ask(manager, saving(number, 1));
  fabric->fail_oldest({errc::unsupported, "another user may not map the pool"});
  sched.run();
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 1u);
  auto* slot = store->find("m", 0, 1, slot_state::active);
  auto* into = fabric->waiting.front().what.ops.front().local;
  BOOST_TEST((into < slot->bytes.data() || into >= slot->bytes.data() + slot->bytes.size()));
  fabric->deliver();
  sched.run();
  auto receipt = outcome<save_receipt>(staged);
  BOOST_TEST_REQUIRE(receipt.has_value());
  BOOST_TEST(receipt->path == "staged");
  BOOST_TEST_REQUIRE(fabric->copying.size() == 1u);
  BOOST_TEST(fabric->copying.front().write_back);
  fabric->finish_copy();
  sched.run();
  BOOST_TEST((slot->bytes == std::vector<std::byte>(310'000, std::byte{7})));
  BOOST_TEST(slot->digests.size() == 3u);
  BOOST_TEST(store->written_back == 1u);
  auto before = fabric->submitted;
  auto next = ask(manager, saving(number, 2));
  BOOST_TEST(fabric->submitted == before + 1);
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(next)->path == "staged");
}

BOOST_AUTO_TEST_CASE(a_snapshot_that_fits_is_staged_after_one_copy_of_memory) {
  auto number = enroll(enrolling("m", {400'000, 100, 500'000}));
  auto request = saving(number, 1);
  request.snapshot = true;
  auto staged = ask(manager, request);
  BOOST_TEST(fabric->waiting.size() == 2u);
  fabric->deliver(std::byte{9});
  sched.run();
  BOOST_TEST(!answered());
  fabric->deliver(std::byte{9});
  sched.run();
  auto receipt = outcome<save_receipt>(staged);
  BOOST_TEST_REQUIRE(receipt.has_value());
  BOOST_TEST(receipt->path == "staged");
  auto done = ask(manager, durable(number, 1));
  BOOST_TEST(!answered());
  fabric->finish_copy();
  fabric->finish_copy();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(done)->durable);
  auto* slot = store->find("m", 0, 1, slot_state::done);
  BOOST_TEST((slot->bytes == std::vector<std::byte>(900'100, std::byte{9})));
  std::vector<std::byte> last(500'000 - digest_block_bytes, std::byte{9});
  BOOST_TEST(slot->digests.back() == digest(last.data(), last.size()));
}

BOOST_AUTO_TEST_CASE(a_snapshot_larger_than_staging_is_bounded_and_overlapped) {
  auto number = enroll(enrolling("m", {3 * block_bytes}));
  auto request = saving(number, 1);
  request.snapshot = true;
  auto staged = ask(manager, request);
  BOOST_TEST(fabric->waiting.size() == 2u);
  fabric->deliver();
  sched.run();
  BOOST_TEST(fabric->waiting.size() == 1u);
  BOOST_TEST(fabric->copying.size() == 1u);
  // The block is free again as soon as it has been copied on, while the other one is still being
  // read into.
  fabric->finish_copy();
  sched.run();
  BOOST_TEST(fabric->waiting.size() == 2u);
  BOOST_TEST(!answered());
  fabric->deliver();
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(staged).has_value());
  fabric->finish_copy();
  fabric->finish_copy();
  sched.run();
  BOOST_TEST(store->find("m", 0, 1, slot_state::done));
}

BOOST_AUTO_TEST_CASE(a_trainer_that_is_stopped_in_a_snapshot_leaves_staging_memory_to_others) {
  auto stuck = saving(enroll(enrolling("stuck", {8 * block_bytes})), 1);
  stuck.snapshot = true;
  ask(manager, stuck);
  BOOST_TEST(fabric->waiting.size() == 2u);
  trainer = process_of("user 2");
  auto request = saving(enroll(enrolling("m", {1000})), 1);
  request.snapshot = true;
  auto staged = ask(manager, request);
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 3u);
  std::swap(fabric->waiting.front(), fabric->waiting.back());
  fabric->deliver();
  sched.run();
  BOOST_TEST(outcome<save_receipt>(staged).has_value());
  fabric->finish_copy();
  sched.run();
  BOOST_TEST(store->find("m", 0, 1, slot_state::done));
}

BOOST_AUTO_TEST_CASE(a_shard_without_bytes_is_saved_without_a_transfer) {
  auto number = enroll(enrolling("m", {0}));
  auto staged = ask(manager, saving(number, 1));
  BOOST_TEST(outcome<save_receipt>(staged).has_value());
  auto done = ask(manager, durable(number, 1));
  BOOST_TEST(outcome<save_receipt>(done)->durable);
  BOOST_TEST(fabric->submitted == 0u);
}

BOOST_AUTO_TEST_CASE(a_step_is_complete_when_the_last_rank_has_it) {
  std::vector<std::uint64_t> numbers;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    auto request = enrolling();
    request.shard.rank = rank;
    request.shard.world_size = 2;
    numbers.push_back(enroll(std::move(request)));
  }
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    auto done = ask(manager, saving(numbers[rank], 8));
    fabric->deliver();
    sched.run();
    BOOST_TEST(outcome<save_receipt>(done).has_value());
    auto durably = ask(manager, durable(numbers[rank], 8));
    BOOST_TEST(outcome<save_receipt>(durably)->complete == (rank == 1));
  }
}

BOOST_AUTO_TEST_SUITE_END()
