// Tests transfers that are submitted together.
#include <millrace/tests/support/fake_fabric.hpp>
#include <millrace/transport/submit_all.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::transport;

namespace {

struct fixture {
  testing::fake_fabric f;
  std::vector<std::byte> memory = std::vector<std::byte>(64);
  std::vector<result<void>> ended;

  std::vector<transfer> batch(std::size_t count) {
    std::vector<transfer> out(count);
    for (std::size_t i = 0; i < count; ++i)
      out[i].ops.push_back({.remote_offset = i, .local = memory.data() + i, .length = 1});
    return out;
  }
  void submit(std::vector<transfer> batch) {
    submit_all(f, std::move(batch), [this](result<void> r) { ended.push_back(std::move(r)); });
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(transfers_submitted_together, fixture)

BOOST_AUTO_TEST_CASE(one_completion_comes_after_the_last_transfer) {
  submit(batch(3));
  BOOST_TEST(f.waiting.size() == 3u);
  f.finish();
  f.finish();
  BOOST_TEST(ended.empty());
  f.finish();
  BOOST_TEST_REQUIRE(ended.size() == 1u);
  BOOST_TEST(ended[0].has_value());
  BOOST_TEST((memory[2] == std::byte{7}));
}

// Else the memory would be in use after the report.
BOOST_AUTO_TEST_CASE(the_first_error_is_reported_when_nothing_is_in_flight) {
  submit(batch(3));
  f.finish();
  f.fail_oldest({errc::peer_lost, "first"});
  BOOST_TEST(ended.empty());
  f.fail_oldest({errc::corrupt_data, "second"});
  BOOST_TEST_REQUIRE(ended.size() == 1u);
  BOOST_TEST((ended[0].error().code() == errc::peer_lost));
}

BOOST_AUTO_TEST_CASE(nothing_to_move_is_done_at_once) {
  submit({});
  BOOST_TEST_REQUIRE(ended.size() == 1u);
  BOOST_TEST(ended[0].has_value());
}

BOOST_AUTO_TEST_CASE(ops_are_shared) {
  auto all = batch(1);
  auto* ops = all[0].ops.data();
  submit(std::move(all));
  BOOST_TEST(f.waiting[0].what.ops.data() == ops);
  f.finish();
}

BOOST_AUTO_TEST_SUITE_END()
