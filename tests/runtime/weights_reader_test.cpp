// Readers of weights: the newest version in one of two buffers.
#include "weights_fixture.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

constexpr auto long_time = 60s;

std::vector<wanted_tensor> wanted() {
  return {{{"large", dtype::u8, {1000, 300}}}, {{"small", dtype::u8, {100}}}};
}

bool are_of(const weights_ptr& read, std::uint64_t version) {
  for (auto& tensor : read->tensors) {
    auto bytes = *size_bytes(tensor.desc);
    for (std::uint64_t i = 0; i < bytes; ++i)
      if (tensor.data[i] != static_cast<std::byte>(version))
        return false;
  }
  return read->version.version == version;
}

errc code_of(const future<weights_ptr>& f) {
  BOOST_TEST_REQUIRE(f.wait_for(30s));
  return f.result() ? errc::ok : f.result().error().code();
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(weights_in_buffers, weights_served)

BOOST_AUTO_TEST_CASE(each_version_is_loaded_beside_the_program) {
  auto reader = policy().read(wanted()).value();
  BOOST_TEST(!reader.current());
  auto publisher = policy().publisher(trained.views()).value();
  for (std::uint64_t version = 1; version <= 10; ++version) {
    auto next = reader.next(long_time);
    publish(publisher, version);
    auto read = next.get();
    BOOST_TEST(are_of(read, version));
    BOOST_TEST(reader.current() == read);
    BOOST_TEST(read->find("small")->desc.shape.front() == 100u);
    BOOST_TEST(!read->find("other"));
  }
}

BOOST_AUTO_TEST_CASE(what_the_program_holds_stays_as_it_is) {
  auto reader = policy().read(wanted()).value();
  auto publisher = policy().publisher(trained.views()).value();
  publish(publisher, 1);
  auto held = reader.next(long_time).get();
  publish(publisher, 2);
  auto second = reader.next(long_time).get();
  BOOST_TEST(are_of(held, 1));
  BOOST_TEST(are_of(second, 2));
  publish(publisher, 3);
  BOOST_TEST((code_of(reader.next(300ms)) == errc::deadline_exceeded));
  BOOST_TEST(are_of(held, 1));
  BOOST_TEST(reader.current() == second);
  auto next = reader.next(long_time);
  held.reset();
  BOOST_TEST(are_of(next.get(), 3));
  BOOST_TEST(are_of(second, 2));
}

BOOST_AUTO_TEST_CASE(weights_outlive_their_reader) {
  auto publisher = policy().publisher(trained.views()).value();
  publish(publisher, 7);
  std::optional reader{policy().read(wanted()).value()};
  auto held = reader->next(long_time).get();
  auto waiting = reader->next(long_time);
  reader.reset();
  BOOST_TEST((code_of(waiting) == errc::cancelled));
  BOOST_TEST(are_of(held, 7));
  BOOST_TEST(eventually([&] { return watches() == 0; }));
}

BOOST_AUTO_TEST_CASE(no_torn_version_is_visible_while_versions_come_quickly) {
  constexpr std::uint64_t last = 100;
  std::atomic<std::uint64_t> told = 0, torn = 0;
  weights_reader_options how;
  how.on_version = [&](const weights_ptr& read) {
    torn += !are_of(read, read->version.version);
    told = read->version.version;
  };
  auto reader = policy().read(wanted(), how).value();
  std::jthread looks{[&](const std::stop_token& ended) {
    while (!ended.stop_requested())
      if (auto now = reader.current())
        torn += !are_of(now, now->version.version);
  }};
  auto publisher = policy().publisher(trained.views()).value();
  for (std::uint64_t version = 1; version <= last; ++version) {
    trained.fill(version);
    auto pending = publisher.publish(version);
    BOOST_TEST_REQUIRE(pending.staged.result().has_value());
    if (version == last)
      pending.stored.get();
  }
  BOOST_TEST(eventually([&] { return told == last; }));
  looks.request_stop();
  looks.join();
  BOOST_TEST(torn == 0u);
}

BOOST_AUTO_TEST_CASE(a_version_that_does_not_fit_is_an_error_and_the_next_one_is_loaded) {
  std::vector<float> other(7);
  auto misfit =
    policy().publisher({tensor_view::dense("large", dtype::f32, {7}, std::span{other})}).value();
  auto reader = policy().read(wanted()).value();
  auto next = reader.next(long_time);
  misfit.publish(1).stored.get();
  BOOST_TEST((code_of(next) == errc::invalid_argument));
  BOOST_TEST((code_of(reader.next(long_time)) == errc::invalid_argument));
  auto publisher = policy().publisher(trained.views()).value();
  publish(publisher, 2);
  BOOST_TEST(eventually([&] {
    auto again = reader.next(long_time);
    return again.result().has_value() && are_of(*again.result(), 2);
  }));
}

BOOST_AUTO_TEST_CASE(a_tensor_that_the_weights_lack_is_an_error_at_once) {
  auto other = trained.views();
  other.pop_back();
  policy().publisher(other).value().publish(1).stored.get();
  auto reader = policy().read(wanted()).value();
  BOOST_TEST((code_of(reader.next(long_time)) == errc::not_found));
  publish(policy().publisher(trained.views()).value(), 2);
  BOOST_TEST(eventually([&] {
    auto again = reader.next(long_time);
    return again.result().has_value() && are_of(*again.result(), 2);
  }));
}

BOOST_AUTO_TEST_CASE(parts_of_tensors_are_read) {
  auto publisher = policy().publisher(trained.views()).value();
  for (std::size_t i = 0; i < trained.large.size(); ++i)
    trained.large[i] = static_cast<std::uint8_t>(i / 300 + i % 300);
  publisher.publish(1).stored.get();
  auto reader =
    policy()
      .read(
        {{{"large", dtype::u8, {2, 300}}, 7, {}}, {{"large", dtype::u8, {3, 4}}, {}, {20, 100}}})
      .value();
  auto read = reader.next(long_time).get();
  BOOST_TEST((read->tensors[0].data[305] == std::byte{8 + 5}));
  BOOST_TEST((read->tensors[1].data[11] == std::byte{22 + 103}));
}

BOOST_AUTO_TEST_CASE(a_reader_goes_on_after_the_node_has_started_anew) {
  auto reader = policy().read(wanted()).value();
  publish(policy().publisher(trained.views()).value(), 5);
  BOOST_TEST(are_of(reader.next(long_time).get(), 5));
  auto next = reader.next(long_time);
  restart();
  publish(direct->weights("policy", "fast").publisher(trained.views()).value(), 6);
  BOOST_TEST(are_of(next.get(), 6));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_read_is_refused_at_once) {
  BOOST_TEST((policy().read({}).error().code() == errc::invalid_argument));
  auto huge = policy().read({{{"x", dtype::u8, {std::uint64_t{1} << 45}}}});
  BOOST_TEST((huge.error().code() == errc::no_space), huge.error().to_string());
  auto overflows =
    policy().read({{{"x", dtype::f64, {std::uint64_t{1} << 62, std::uint64_t{1} << 62}}}});
  BOOST_TEST((overflows.error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()
