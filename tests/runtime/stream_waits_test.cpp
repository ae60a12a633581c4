// Tests readers of streams that wait briefly or give up often, and bounds of what they may ask for.
#include <millrace/net/network_options.hpp>
#include <millrace/tests/runtime/data_node.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

struct bytes_stream : data_node {
  explicit bytes_stream(std::uint64_t capacity = 64) {
    stream_options options;
    options.fields = {{"x", dtype::u8, {}}};
    options.capacity = capacity;
    direct->stream("s").create(options).get();
  }

  stream by_socket(config::settings s = {}) {
    return client::connect(settings.node.listen.front(), s).stream("s");
  }
};

void append(const stream_producer& to, unsigned char value) {
  auto view = tensor_view::dense("x", dtype::u8, {}, std::span{&value, 1});
  to.append({view}).get();
}

stream_reader reader_of(const stream& from, std::uint64_t batch_size, std::uint32_t batches = 4) {
  stream_reader_options options;
  options.batch_size = batch_size;
  options.batches = batches;
  return from.reader(options).get();
}

unsigned value_of(const batch& b) { return std::to_integer<unsigned>(*b.field(0).data); }

} // namespace

BOOST_AUTO_TEST_SUITE(stream_waits)

// A request that was given up waits at the node for a while. The next call has it.
BOOST_AUTO_TEST_CASE(a_reader_may_look_briefly_and_often) {
  bytes_stream at;
  auto from = reader_of(at.by_socket(), 1);
  for (int i = 0; i < 300; ++i) {
    auto next = from.next(0, 1ms);
    BOOST_TEST_REQUIRE((code_of(next) == errc::deadline_exceeded), words_of(next));
  }
  auto to = at.direct->stream("s").producer().get();
  append(to, 7);
  auto got = from.next(0, 20s).get();
  BOOST_TEST_REQUIRE(got.has_value());
  BOOST_TEST(value_of(*got) == 7u);
}

BOOST_AUTO_TEST_CASE(calls_may_be_cancelled_often) {
  bytes_stream at;
  auto from = reader_of(at.by_socket(), 3, 64);
  for (int i = 0; i < 300; ++i) {
    // Of several sizes, of which each waits by itself.
    auto next = from.next(1 + static_cast<std::uint64_t>(i) % 3);
    next.cancel();
    BOOST_TEST_REQUIRE((code_of(next) == errc::cancelled), words_of(next));
  }
  auto to = at.direct->stream("s").producer().get();
  for (unsigned char value : {1, 2, 3, 4})
    append(to, value);
  std::vector<unsigned> seen;
  while (seen.size() < 4) {
    auto got = from.next(1, 20s).get();
    BOOST_TEST_REQUIRE(got.has_value());
    seen.push_back(value_of(*got));
  }
  std::ranges::sort(seen);
  BOOST_TEST((seen == std::vector<unsigned>{1, 2, 3, 4}));
}

// Deadlines are kept in any order, also by calls that come while others wait longer.
BOOST_AUTO_TEST_CASE(each_call_ends_at_its_own_time) {
  bytes_stream at;
  auto from = reader_of(at.by_socket(), 1, 64);
  auto forever = from.next();
  auto late = from.next(0, 1h);
  for (auto timeout : {200ms, 5ms, 80ms, 1ms})
    BOOST_TEST((code_of(from.next(0, timeout)) == errc::deadline_exceeded));
  BOOST_TEST((!forever.ready() && !late.ready()));
  auto to = at.direct->stream("s").producer().get();
  append(to, 1);
  append(to, 2);
  BOOST_TEST(value_of(*forever.get()) + value_of(*late.get()) == 3u);
}

BOOST_AUTO_TEST_CASE(a_short_request_timeout_ends_no_wait_for_samples) {
  bytes_stream at;
  config::settings s;
  s.client.request_timeout_ms = 300;
  auto by = at.by_socket(s);
  // The machine may have so much to do that even this takes longer.
  auto until = std::chrono::steady_clock::now() + 20s;
  auto opened = by.reader();
  while (!opened.result() && std::chrono::steady_clock::now() < until)
    opened = by.reader();
  auto from = opened.get();
  auto next = from.next();
  std::this_thread::sleep_for(800ms);
  append(at.direct->stream("s").producer().get(), 9);
  auto got = next.result();
  BOOST_TEST_REQUIRE(got.has_value(), words_of(next));
  BOOST_TEST(value_of(**got) == 9u);
}

// The answer would not fit, and its samples would be lost.
BOOST_AUTO_TEST_CASE(batches_whose_names_do_not_fit_in_a_message_are_refused) {
  constexpr std::uint64_t capacity = 9000;
  bytes_stream at{capacity};
  config::settings s;
  s.options.edit<net::network_options>().channel.frame_bytes_max = 128u << 10;
  auto by = at.by_socket(s);
  stream_reader_options options;
  options.batch_size = capacity;
  auto refused = by.reader(options);
  BOOST_TEST((code_of(refused) == errc::invalid_argument), words_of(refused));
  BOOST_TEST(words_of(refused).find("channel.frame_max") != std::string::npos, words_of(refused));
  options.batch_size = 4000;
  auto from = by.reader(options).get();
  {
    producer_options many;
    many.in_flight = 1024;
    auto to = at.direct->stream("s").producer(many).get();
    for (std::uint64_t i = 0; i < options.batch_size; ++i)
      append(to, static_cast<unsigned char>(i));
  }
  BOOST_TEST(from.next(0, 20s).get()->rows() == options.batch_size);
  BOOST_TEST(at.direct->stream("s").status().get().counts.given == options.batch_size);
  auto counted = at.direct->status().get().front().value().data;
  BOOST_TEST(counted.streams == 1u);
  BOOST_TEST(counted.samples_appended == options.batch_size);
  BOOST_TEST(counted.samples_given == options.batch_size);
}

BOOST_AUTO_TEST_SUITE_END()
