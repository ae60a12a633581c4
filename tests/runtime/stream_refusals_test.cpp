// Tests what producers and readers of streams do when the server refuses what must not get lost: by
// a service that is scripted.
#include <millrace/runtime/client/client.hpp>
#include <millrace/tests/support/scripted_service.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

// It has a stream of four places, which nobody can reach. Leases that are given back are counted.
struct refusing_streams {
  scripted_service service{{testing::listed("p")}};
  std::atomic<errc> end_fails = errc::ok, take_fails = errc::ok;
  std::atomic<int> ended = 0, left = 0;
  std::optional<client> asks;

  refusing_streams() {
    auto provider = testing::listed("p");
    provider.node = "n0";
    provider.address = service.address();
    actors::directory where{"n0", 4096, {provider}, {{"n0", {service.address()}, 1 << 20}}};
    service.on<actors::directory_request>([where](auto&, auto reply) { reply(where); });
    stream_options options;
    options.fields = {{"x", dtype::u8, {8}}};
    options.capacity = 4;
    actors::opened_stream opened;
    opened.lease = 1;
    opened.stream.name = "s";
    opened.stream.options = options;
    opened.places = places_of("s", options);
    opened.places.id = opened.stream.id = random_id<set_id>();
    opened.places.region_bytes = 1 << 20;
    BOOST_TEST_REQUIRE(place_fields(opened.places).ok());
    opened.regions.resize(1);
    opened.regions[0].length_bytes = opened.places.size_bytes;
    service.on<actors::open_stream_request>([opened](auto&, auto reply) { reply(opened); });
    service.on<actors::take_samples_request>([this](auto&, auto reply) {
      take_fails == errc::ok ? reply(actors::taken_samples{}) : reply(fail(take_fails.load(), "x"));
    });
    service.on<actors::leave_stream_request>([this](auto& request, auto reply) {
      if (request.ends && end_fails != errc::ok)
        return reply(fail(end_fails.load(), "not now"));
      ++(request.ends ? ended : left);
      reply(actors::done_reply{});
    });
    asks = client::connect(service.address(), {});
  }

  template <class Is>
  static bool comes_true(Is is) {
    auto until = std::chrono::steady_clock::now() + 20s;
    while (!is() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(1ms);
    return is();
  }
};

template <class T>
errc code_of(const future<T>& one) {
  auto& outcome = one.result();
  return outcome ? errc::ok : outcome.error().code();
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(stream_refusals, refusing_streams)

BOOST_AUTO_TEST_CASE(a_producer_whose_end_was_refused_can_end_again_or_leave) {
  std::optional first{asks->stream("s").producer().get()};
  std::optional second{asks->stream("s").producer().get()};
  for (auto why : {errc::busy, errc::unavailable}) {
    end_fails = why;
    BOOST_TEST((code_of(first->end()) == why));
    BOOST_TEST((code_of(second->end()) == why));
  }
  end_fails = errc::ok;
  first->end().get();
  BOOST_TEST((code_of(first->end()) == errc::invalid_argument));
  first.reset();
  BOOST_TEST(left == 0);
  second.reset();
  BOOST_TEST(comes_true([&] { return left == 1; }));
  BOOST_TEST(ended == 1);
}

BOOST_AUTO_TEST_CASE(a_reader_whose_answer_is_lost_gives_its_lease_back) {
  auto from = asks->stream("s").reader().get();
  for (auto why : {errc::busy, errc::not_found}) {
    take_fails = why;
    BOOST_TEST((code_of(from.next()) == why));
    BOOST_TEST(left == 0); // nothing was lent, or there is no lease
  }
  take_fails = errc::internal;
  BOOST_TEST((code_of(from.next()) == errc::internal));
  BOOST_TEST(comes_true([&] { return left == 1; }));
}

BOOST_AUTO_TEST_CASE(a_reader_whose_release_fails_gives_its_lease_back) {
  std::atomic<bool> asked = false;
  scripted_service::answer<actors::take_samples_request> later;
  service.on<actors::take_samples_request>([&](auto&, auto reply) {
    later = reply;
    asked = true;
  });
  service.on<actors::release_samples_request>(
    [](auto&, auto reply) { reply(fail(errc::busy, "not now")); });
  auto from = asks->stream("s").reader().get();
  auto waiting = from.next();
  BOOST_TEST_REQUIRE(comes_true([&] { return asked.load(); }));
  waiting.cancel();
  later(actors::taken_samples{{{0, 0, 0}}, false});
  BOOST_TEST(comes_true([&] { return left == 1; }));
  BOOST_TEST(service.asked<actors::release_samples_request>() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
