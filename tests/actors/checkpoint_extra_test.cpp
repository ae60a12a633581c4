// The user's bytes of a save: pulled beside the tensors, bounded, and read back by a request of
// their own.
#include "checkpoint_fixture.hpp"

#include <millrace/core/checkpoint.hpp>
#include <millrace/tests/support/process.hpp>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;

namespace {

struct extra_fixture : checkpoint_fixture {
  save_request saving_with(
    std::uint64_t registration, std::uint64_t step, std::uint64_t extra_bytes) {
    auto r = saving(registration, step);
    r.extra.region = 77;
    r.extra.length_bytes = extra_bytes;
    return r;
  }

  /// A whole save whose tensors are of sevens and whose extra bytes are of nines.
  void save_with(std::uint64_t registration, std::uint64_t step, std::uint64_t extra_bytes) {
    auto staged = ask(manager, saving_with(registration, step, extra_bytes));
    fabric->deliver(std::byte{7});
    fabric->deliver(std::byte{9});
    sched.run();
    BOOST_TEST_REQUIRE(outcome<save_receipt>(staged).has_value());
    auto done = ask(manager, durable(registration, step));
    BOOST_TEST_REQUIRE(outcome<save_receipt>(done).has_value());
  }

  restore_request restoring(const tensor_desc& wanted) {
    restore_request r;
    r.model = "m";
    r.selections.push_back({wanted, false, 0});
    r.target.length_bytes = *size_bytes(wanted);
    r.target.allows = access_mode::write;
    r.timeout_ms = 1000;
    return r;
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(checkpoint_extra, extra_fixture)

BOOST_AUTO_TEST_CASE(a_registration_tells_how_many_bytes_a_save_may_bring) {
  deps.limits.extra_bytes_max = 1000;
  restart();
  auto pending = ask(manager, enrolling());
  auto receipt = outcome<enroll_receipt>(pending);
  BOOST_TEST_REQUIRE(receipt.has_value());
  BOOST_TEST(receipt->extra_bytes_max == 1000u);
}

BOOST_AUTO_TEST_CASE(the_save_is_staged_with_the_tensors_and_done_with_the_bytes) {
  auto number = enroll(enrolling());
  auto staged = ask(manager, saving_with(number, 1, 300'000));
  auto done = ask(manager, durable(number, 1));
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 2u);
  BOOST_TEST(fabric->waiting.front().what.remote.region != 77u);
  BOOST_TEST(fabric->waiting.back().what.remote.region == 77u);
  fabric->deliver(std::byte{7});
  sched.run();
  auto first = outcome<save_receipt>(staged);
  BOOST_TEST_REQUIRE(first.has_value());
  BOOST_TEST(!first->durable);
  BOOST_TEST(!store->find("m", 0, 1, slot_state::done));
  fabric->deliver(std::byte{9});
  sched.run();
  auto second = outcome<save_receipt>(done);
  BOOST_TEST_REQUIRE(second.has_value());
  BOOST_TEST(second->durable);
  BOOST_TEST(second->size_bytes == 310'000u); // of the tensors
  auto* slot = store->find("m", 0, 1, slot_state::done);
  BOOST_TEST_REQUIRE(slot);
  BOOST_TEST((slot->bytes == std::vector<std::byte>(310'000, std::byte{7})));
  BOOST_TEST((slot->extra == std::vector<std::byte>(300'000, std::byte{9})));
  BOOST_TEST(slot->digests.size() == 3u + 2u);
}

BOOST_AUTO_TEST_CASE(bytes_that_cannot_be_read_fail_the_save_and_leave_its_slot_empty) {
  auto number = enroll(enrolling());
  auto staged = ask(manager, saving_with(number, 1, 100));
  auto done = ask(manager, durable(number, 1));
  fabric->deliver(std::byte{7});
  sched.run();
  BOOST_TEST(outcome<save_receipt>(staged).has_value());
  fabric->fail_oldest({errc::permission_denied, "withdrawn"});
  sched.run();
  auto why = outcome<save_receipt>(done).error();
  BOOST_TEST((why.code() == errc::permission_denied), why.to_string());
  BOOST_TEST(why.detail().find("the user's bytes") != std::string::npos, why.detail());
  BOOST_TEST(!store->find("m", 0, 1, slot_state::done));
  save_with(number, 2, 10);
}

BOOST_AUTO_TEST_CASE(more_bytes_than_the_bound_are_refused_before_any_byte_moves) {
  deps.limits.extra_bytes_max = 1000;
  restart();
  auto number = enroll(enrolling());
  auto before = fabric->submitted;
  auto refused = ask(manager, saving_with(number, 1, 1001));
  auto why = outcome<save_receipt>(refused).error();
  BOOST_TEST((why.code() == errc::invalid_argument), why.to_string());
  BOOST_TEST(why.detail().find("checkpoints.extra_max") != std::string::npos, why.detail());
  BOOST_TEST(fabric->submitted == before);
  save_with(number, 2, 1000);
}

BOOST_AUTO_TEST_CASE(a_restore_tells_their_size_and_a_second_request_brings_them) {
  auto number = enroll(enrolling());
  save_with(number, 4, 5000);
  auto tensors = ask(manager, restoring({"t0", dtype::u8, {10'000}}));
  fabric->deliver();
  sched.run();
  auto loaded = outcome<load_reply>(tensors);
  BOOST_TEST_REQUIRE(loaded.has_value());
  BOOST_TEST(loaded->extra_bytes == 5000u);
  BOOST_TEST(loaded->extra.empty());
  auto request = restoring(extra_tensor(5000));
  request.latest = false;
  request.step = 4;
  request.saved_at_ns = loaded->stored_at_ns;
  request.extra = true;
  auto extra = ask(manager, request);
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 1u);
  BOOST_TEST((*fabric->waiting.front().what.ops.front().local == std::byte{9}));
  fabric->deliver();
  sched.run();
  auto read = outcome<load_reply>(extra);
  BOOST_TEST_REQUIRE(read.has_value());
  BOOST_TEST(read->size_bytes == 5000u);
  BOOST_TEST(read->verified);
  BOOST_TEST(status().restores == 1u); // the bytes belong to it
  request.saved_at_ns += 1;            // another version of the step
  auto replaced = ask(manager, request);
  BOOST_TEST((outcome<load_reply>(replaced).error().code() == errc::not_found));
}

BOOST_AUTO_TEST_CASE(verifying_reads_them_too) {
  auto number = enroll(enrolling());
  save_with(number, 1, 300'000);
  auto verified = [&] {
    auto pending = ask(manager, verify_request{"m", 0, 1, 0});
    // Movers compare on a thread of their own.
    eventually([&] {
      sched.run();
      return answered();
    });
    auto receipt = outcome<verify_receipt>(pending);
    BOOST_TEST_REQUIRE(receipt.has_value());
    return *receipt;
  };
  auto good = verified();
  BOOST_TEST(good.corrupt.empty());
  BOOST_TEST(good.size_bytes == 610'000u);
  store->find("m", 0, 1, slot_state::done)->extra[299'999] ^= std::byte{1};
  BOOST_TEST((verified().corrupt == std::vector<std::string>{"the user's bytes"}));
}

BOOST_AUTO_TEST_SUITE_END()
