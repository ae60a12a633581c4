// Tests streams from producers to readers: on this host, by a socket, and by tcp as from another
// host.
#include <millrace/actors/loader/stream_server.hpp>
#include <millrace/tests/runtime/data_node.hpp>
#include <millrace/tests/support/data_memory.hpp>
#include <millrace/transport/fabric_options.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

using ids_type = std::vector<std::uint64_t>;

enum class way { direct, socket, tcp };

struct stream_node : data_node {
  stream_node()
    : data_node(16 * mib, [](config::settings& s) {
        s.options.edit<transport::tcp_options>().listen = {"127.0.0.1:0"};
      }) {}

  client to(way how) {
    if (how == way::direct)
      return *direct;
    config::settings s;
    if (how == way::tcp) {
      auto& transport = s.options.edit<transport::fabric_options>();
      transport.prefer = {"tcp"};
      transport.prefer_is_explicit = true;
    }
    return client::connect(settings.node.listen.front(), s);
  }
};

// A sample has a number in both fields, many times over.
constexpr std::size_t values = 300;

stream_options some(
  stream_policy policy = stream_policy::fifo, std::uint64_t capacity = 32,
  full_policy when_full = full_policy::block) {
  stream_options out;
  out.fields = {{"label", dtype::u64, {}}, {"x", dtype::f32, {3, 100}}};
  out.capacity = capacity;
  out.policy = policy;
  out.when_full = when_full;
  return out;
}

struct made_sample {
  explicit made_sample(std::uint64_t number) : label{number}, x(values) {
    std::ranges::fill(x, static_cast<float>(number));
  }
  std::vector<tensor_view> views() {
    return {
      tensor_view::dense("label", dtype::u64, {}, std::span{label}),
      tensor_view::dense("x", dtype::f32, {3, 100}, std::span{x})};
  }
  std::vector<std::uint64_t> label;
  std::vector<float> x;
};

future<void> append(const stream_producer& to, std::uint64_t number) {
  made_sample one{number};
  return to.append(one.views()); // it has been copied when the call returns
}

// The labels of a batch. Every value of a sample is its label.
ids_type labels_of(const batch& b) {
  auto label = b.field(0), x = b.field(1);
  BOOST_TEST_REQUIRE((label.desc.shape == ids_type{b.rows()}));
  BOOST_TEST_REQUIRE((x.desc.shape == ids_type{b.rows(), 3, 100}));
  ids_type out;
  auto whole = true;
  for (std::size_t i = 0; i < b.rows(); ++i) {
    out.push_back(reinterpret_cast<const std::uint64_t*>(label.data)[i]);
    for (std::size_t j = 0; j < values; ++j)
      whole &=
        reinterpret_cast<const float*>(x.data)[i * values + j] == static_cast<float>(out.back());
  }
  BOOST_TEST_REQUIRE(whole);
  return out;
}

// The labels of all batches up to the end of the stream.
ids_type rest_of(const stream_reader& from, std::uint64_t samples = 0) {
  ids_type out;
  while (auto got = from.next(samples).get()) {
    auto some = labels_of(*got);
    out.insert(out.end(), some.begin(), some.end());
  }
  return out;
}

// Appends numbers, with as many under way as may be, and ends.
void produce(const stream_producer& to, std::uint64_t first, std::uint64_t count) {
  std::deque<future<void>> under_way;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (under_way.size() == 8) {
      under_way.front().get();
      under_way.pop_front();
    }
    under_way.push_back(append(to, first + i));
  }
  to.end().get();
  for (auto& one : under_way)
    one.get();
}

stream_reader reader_of(const stream& s, std::uint64_t batch_size) {
  stream_reader_options options;
  options.batch_size = batch_size;
  return s.reader(options).get();
}

ids_type counted(std::uint64_t count) {
  ids_type out(count);
  for (std::uint64_t i = 0; i < count; ++i)
    out[i] = i;
  return out;
}

// How many mappings of this process have the name.
std::ptrdiff_t mappings(std::string_view name) {
  std::ifstream maps{"/proc/self/maps"};
  std::ptrdiff_t out = 0;
  for (std::string line; std::getline(maps, line);)
    out += line.find(name) != std::string::npos;
  return out;
}

template <class Is>
bool comes_true(Is is) {
  auto until = std::chrono::steady_clock::now() + 20s;
  while (!is() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  return is();
}

} // namespace

BOOST_AUTO_TEST_SUITE(streams)

BOOST_AUTO_TEST_CASE(a_stream_gives_what_was_appended) {
  for (auto how : {way::direct, way::socket, way::tcp}) {
    stream_node at;
    auto c = at.to(how);
    auto s = c.stream("heat");
    auto told = s.create(some()).get();
    BOOST_TEST(told.owner.starts_with("user "));
    BOOST_TEST(told.size_bytes >= 32 * (8 + 4 * values));
    auto to = s.producer().get();
    auto from = reader_of(s, 4);
    for (std::uint64_t i = 0; i < 10; ++i)
      append(to, i).get();
    auto got = from.next().get();
    BOOST_TEST_REQUIRE(got.has_value());
    BOOST_TEST((labels_of(*got) == ids_type{0, 1, 2, 3}));
    BOOST_TEST((ids_type(got->ids().begin(), got->ids().end()) == ids_type{0, 1, 2, 3}));
    BOOST_TEST(got->field(1).desc.name == "x");
    BOOST_TEST((labels_of(*from.next(1).get()) == ids_type{4}));
    to.end().get();
    s.end().get();
    BOOST_TEST((rest_of(from) == ids_type{5, 6, 7, 8, 9}));
    BOOST_TEST(!from.next().get().has_value());
    auto now = s.status().get();
    BOOST_TEST(now.ended);
    BOOST_TEST(now.counts.appended == 10u);
    BOOST_TEST(now.counts.given == 10u);
    BOOST_TEST(now.producers_ended == 1u);
    BOOST_TEST(now.readers == 1u);
    s.remove().get();
    BOOST_TEST((code_of(s.status()) == errc::not_found));
    got.reset();
    BOOST_TEST(at.frees_all_but(0));
  }
}

// The reader's memory is registered: there need be no other for what comes.
BOOST_AUTO_TEST_CASE(samples_are_read_without_staging_memory) {
  for (auto how : {way::direct, way::socket, way::tcp}) {
    stream_node at;
    auto s = at.to(how).stream("s");
    s.create(some()).get();
    auto to = s.producer().get();
    auto from = reader_of(s, 1);
    auto before = mappings("millrace.reading");
    append(to, 7).get();
    BOOST_TEST((labels_of(*from.next().get()) == ids_type{7}));
    BOOST_TEST(mappings("millrace.reading") <= before);
  }
}

// Every sample once, whoever appends and reads.
BOOST_AUTO_TEST_CASE(producers_and_readers_share_a_stream) {
  constexpr std::uint64_t each = 300;
  for (auto how : {way::socket, way::tcp})
    for (auto policy : {stream_policy::fifo, stream_policy::firo})
      for (std::uint64_t producers : {1, 3})
        for (std::size_t readers : {1, 3}) {
          stream_node at;
          auto options = some(policy, 16);
          options.producers = producers;
          options.threshold = policy == stream_policy::firo ? 8 : 0;
          std::mutex mutex;
          ids_type all;
          std::vector<std::thread> threads;
          for (std::uint64_t p = 0; p < producers; ++p)
            threads.emplace_back([&, p] {
              auto s = at.to(how).stream("s");
              s.create(options).get(); // the first one makes it
              produce(s.producer().get(), p * each, each);
            });
          at.direct->stream("s").create(options).get();
          for (std::size_t r = 0; r < readers; ++r)
            threads.emplace_back([&, r] {
              auto got = rest_of(reader_of(at.to(how).stream("s"), 1 + 3 * r));
              std::lock_guard guard{mutex};
              all.insert(all.end(), got.begin(), got.end());
            });
          for (auto& t : threads)
            t.join();
          if (policy == stream_policy::fifo && producers == 1 && readers == 1)
            BOOST_TEST((all == counted(each)));
          std::ranges::sort(all);
          BOOST_TEST((all == counted(producers * each)));
          auto counts = at.direct->stream("s").status().get().counts;
          BOOST_TEST(counts.given == producers * each);
          BOOST_TEST(counts.present + counts.dropped + counts.repeated == 0u);
        }
}

BOOST_AUTO_TEST_CASE(a_reservoir_gives_every_sample_and_some_again) {
  stream_node at;
  auto options = some(stream_policy::reservoir, 16);
  options.producers = 1;
  options.threshold = 8;
  auto s = at.to(way::socket).stream("s");
  s.create(options).get();
  std::thread producing{[&] { produce(s.producer().get(), 0, 500); }};
  auto got = rest_of(reader_of(s, 8));
  producing.join();
  auto counts = s.status().get().counts;
  BOOST_TEST(counts.given == got.size());
  std::ranges::sort(got);
  auto different = got;
  different.erase(std::unique(different.begin(), different.end()), different.end());
  BOOST_TEST((different == counted(500)));
  BOOST_TEST(counts.repeated == got.size() - 500);
  BOOST_TEST(counts.dropped == 0u);
}

BOOST_AUTO_TEST_CASE(a_full_stream_blocks_its_producer_until_a_reader_takes_samples) {
  stream_node at;
  auto s = at.to(way::socket).stream("s");
  s.create(some(stream_policy::fifo, 4)).get();
  auto to = s.producer().get();
  auto from = reader_of(s, 2);
  for (std::uint64_t i = 0; i < 4; ++i)
    append(to, i).get();
  auto fifth = append(to, 4), sixth = append(to, 5);
  BOOST_TEST(comes_true([&] { return s.status().get().append_waits > 0; }));
  BOOST_TEST(!fifth.wait_for(50ms));
  BOOST_TEST((labels_of(*from.next().get()) == ids_type{0, 1}));
  fifth.get();
  sixth.get();
  s.end().get();
  BOOST_TEST((rest_of(from) == ids_type{2, 3, 4, 5}));
  BOOST_TEST((code_of(append(to, 6)) == errc::invalid_argument));
  BOOST_TEST((code_of(s.producer()) == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(a_full_stream_that_drops_keeps_the_newest_samples) {
  stream_node at;
  auto s = at.to(way::socket).stream("s");
  s.create(some(stream_policy::fifo, 4, full_policy::drop_oldest)).get();
  auto to = s.producer().get();
  for (std::uint64_t i = 0; i < 10; ++i)
    append(to, i).get();
  s.end().get();
  BOOST_TEST((rest_of(reader_of(s, 1)) == ids_type{6, 7, 8, 9}));
  BOOST_TEST(s.status().get().counts.dropped == 6u);
}

BOOST_AUTO_TEST_CASE(a_call_that_is_cancelled_or_late_has_taken_no_sample) {
  stream_node at;
  auto s = at.to(way::socket).stream("s");
  s.create(some()).get();
  auto from = reader_of(s, 2);
  BOOST_TEST((code_of(from.next(2, 30ms)) == errc::deadline_exceeded));
  auto waiting = from.next(2, std::chrono::milliseconds::max());
  BOOST_TEST(comes_true([&] { return s.status().get().take_waits > 1; }));
  BOOST_TEST(!waiting.wait_for(5ms));
  waiting.cancel();
  BOOST_TEST((code_of(waiting) == errc::cancelled));
  auto to = s.producer().get();
  for (std::uint64_t i = 0; i < 3; ++i)
    append(to, i).get(); // the call may take two of them, and puts them back
  s.end().get();
  BOOST_TEST(comes_true([&] {
    auto counts = s.status().get().counts;
    return counts.present == 3 && counts.reading == 0;
  }));
  BOOST_TEST((rest_of(from, 1) == ids_type{0, 1, 2}));
}

BOOST_AUTO_TEST_CASE(an_append_that_is_cancelled_while_it_waits_is_not_appended) {
  stream_node at;
  auto s = at.to(way::socket).stream("s");
  s.create(some(stream_policy::fifo, 1)).get();
  auto to = s.producer().get();
  append(to, 0).get();
  auto second = append(to, 1), third = append(to, 2);
  second.cancel();
  BOOST_TEST((code_of(second) == errc::cancelled));
  auto from = reader_of(s, 1);
  BOOST_TEST((labels_of(*from.next().get()) == ids_type{0}));
  third.get();
  to.end().get();
  s.end().get();
  BOOST_TEST((rest_of(from) == ids_type{2}));
}

BOOST_AUTO_TEST_CASE(as_many_samples_and_batches_as_were_asked_for_are_under_way) {
  stream_node at;
  auto s = at.to(way::socket).stream("s");
  s.create(some(stream_policy::fifo, 1)).get();
  producer_options few;
  few.in_flight = 2;
  auto to = s.producer(few).get();
  append(to, 0).get();
  auto second = append(to, 1), third = append(to, 2);
  BOOST_TEST((code_of(append(to, 3)) == errc::busy));
  stream_reader_options one;
  one.batches = 1;
  auto from = s.reader(one).get();
  std::optional<batch> held = from.next().get();
  BOOST_TEST((code_of(from.next()) == errc::no_space));
  auto bytes = labels_of(*held);
  second.get();
  BOOST_TEST((labels_of(*held) == bytes));
  held.reset();
  BOOST_TEST((labels_of(*from.next().get()) == ids_type{1}));
  third.get();
}

BOOST_AUTO_TEST_CASE(wrong_calls_are_refused_by_name) {
  stream_node at;
  auto c = at.to(way::socket);
  auto s = c.stream("s");
  BOOST_TEST((code_of(s.producer()) == errc::not_found));
  BOOST_TEST((code_of(s.reader()) == errc::not_found));
  BOOST_TEST((code_of(s.end()) == errc::not_found));
  BOOST_TEST((code_of(s.remove()) == errc::not_found));
  BOOST_TEST((code_of(c.stream("").create(some())) == errc::invalid_argument));
  auto twice = some(), none = some(), empty = some(), huge = some();
  twice.fields[1].name = "label";
  none.fields.clear();
  empty.fields[1].shape = {0};
  huge.capacity = 1 << 20;
  for (auto& bad : {twice, none, empty, some(stream_policy::fifo, 0)})
    BOOST_TEST((code_of(s.create(bad)) == errc::invalid_argument));
  BOOST_TEST((code_of(s.create(huge)) == errc::no_space));
  s.create(some()).get();
  s.create(some()).get();
  BOOST_TEST((code_of(s.create(some(stream_policy::firo))) == errc::already_exists));
  auto to = s.producer().get();
  made_sample one{1};
  auto views = one.views();
  std::swap(views[0], views[1]);
  BOOST_TEST(words_of(to.append(views)).find("field label is") != std::string::npos);
  views.pop_back();
  BOOST_TEST((code_of(to.append(views)) == errc::invalid_argument));
  for (auto bad : {0u, 1025u}) {
    producer_options options;
    options.in_flight = bad;
    BOOST_TEST((code_of(s.producer(options)) == errc::invalid_argument));
  }
  for (auto bad : {0u, 33u}) {
    stream_reader_options options;
    options.batch_size = bad;
    BOOST_TEST((code_of(s.reader(options)) == errc::invalid_argument));
  }
  BOOST_TEST((code_of(reader_of(s, 2).next(3)) == errc::invalid_argument));
  BOOST_TEST((code_of(reader_of(s, 2).next(1, -1ms)) == errc::invalid_argument));
  to.end().get();
  BOOST_TEST((code_of(to.end()) == errc::invalid_argument));
  BOOST_TEST((code_of(append(to, 1)) == errc::invalid_argument));
  // Those that were refused have left nothing open.
  BOOST_TEST(comes_true([&] {
    auto now = s.status().get();
    return now.producers == 0 && now.readers == 0;
  }));
}

BOOST_AUTO_TEST_CASE(strided_tensors_are_appended) {
  stream_node at;
  auto s = at.to(way::socket).stream("s");
  stream_options options;
  options.fields = {{"x", dtype::u64, {2, 2}}};
  s.create(options).get();
  auto to = s.producer().get();
  std::vector<std::uint64_t> memory{1, 2, 9, 3, 4, 9};
  auto view = tensor_view::dense("x", dtype::u64, {2, 2}, std::span{memory});
  view.strides_bytes = {24, 8};
  to.append({view}).get();
  auto got = reader_of(s, 1).next().get();
  auto* x = reinterpret_cast<const std::uint64_t*>(got->field(0).data);
  BOOST_TEST((ids_type(x, x + 4) == ids_type{1, 2, 3, 4}));
}

// The connection of a producer, or of a reader, is lost: its places return.
BOOST_AUTO_TEST_CASE(a_lost_connection_returns_its_places) {
  stream_node at;
  auto s = at.direct->stream("s");
  auto options = some(stream_policy::fifo, 4);
  options.producers = 1;
  s.create(options).get();
  auto from = reader_of(s, 1);
  {
    auto to = at.to(way::socket).stream("s").producer().get();
    BOOST_TEST((code_of(s.producer()) == errc::busy));
    for (std::uint64_t i = 0; i < 4; ++i)
      append(to, i).get();
    auto fifth = append(to, 4);
    BOOST_TEST(comes_true([&] { return s.status().get().append_waits > 0; }));
    at.cut_connections();
    BOOST_TEST((code_of(fifth) != errc::ok));
    BOOST_TEST((code_of(append(to, 5)) != errc::ok));
  }
  BOOST_TEST(comes_true([&] { return s.status().get().producers == 0; }));
  BOOST_TEST((labels_of(*from.next().get()) == ids_type{0}));
  // Another one goes on. The end counts those that have ended.
  auto to = s.producer().get();
  append(to, 10).get();
  {
    auto c = at.to(way::socket);
    auto other = reader_of(c.stream("s"), 1);
    auto got = other.next().get();
    BOOST_TEST((labels_of(*got) == ids_type{1}));
    auto lost = other.next(1, 1ms);
    at.cut_connections();
    static_cast<void>(lost.result());
    BOOST_TEST((labels_of(*got) == ids_type{1}));
  }
  BOOST_TEST(comes_true([&] { return s.status().get().readers == 1; }));
  to.end().get();
  auto rest = rest_of(from);
  // What the lost reader was given is not given again.
  BOOST_TEST((rest == ids_type{2, 3, 10} || rest == ids_type{3, 10}));
  auto counts = s.status().get().counts;
  BOOST_TEST(counts.writing + counts.reading + counts.present == 0u);
}

BOOST_AUTO_TEST_CASE(a_removed_stream_is_gone_for_all_who_have_it) {
  for (auto how : {way::direct, way::socket, way::tcp}) {
    stream_node at;
    auto s = at.to(how).stream("s");
    s.create(some(stream_policy::fifo, 1)).get();
    auto to = s.producer().get();
    auto from = reader_of(s, 1);
    append(to, 0).get();
    auto full = append(to, 1);
    auto held = from.next().get();
    BOOST_TEST((labels_of(*from.next().get()) == ids_type{1}));
    auto waiting = from.next();
    s.remove().get();
    BOOST_TEST((code_of(waiting) == errc::not_found));
    BOOST_TEST((code_of(append(to, 2)) == errc::not_found));
    BOOST_TEST((code_of(from.next()) == errc::not_found));
    BOOST_TEST((labels_of(*held) == ids_type{0}));
    BOOST_TEST(at.frees_all_but(0));
    s.create(some(stream_policy::firo)).get(); // another one has the name
  }
}

// A program that drops what it has ends what waits.
BOOST_AUTO_TEST_CASE(a_producer_and_a_reader_that_are_dropped_leave) {
  stream_node at;
  auto s = at.to(way::socket).stream("s");
  s.create(some(stream_policy::fifo, 1)).get();
  std::optional to{s.producer().get()};
  std::optional from{reader_of(s, 1)};
  append(*to, 0).get();
  auto appending = append(*to, 1);
  BOOST_TEST((labels_of(*from->next().get()) == ids_type{0}));
  appending.get();
  BOOST_TEST((labels_of(*from->next().get()) == ids_type{1}));
  auto waiting = from->next();
  from.reset();
  BOOST_TEST((code_of(waiting) == errc::cancelled));
  append(*to, 2).get();
  auto second = append(*to, 3);
  to.reset();
  BOOST_TEST((code_of(second) == errc::cancelled));
  BOOST_TEST(comes_true([&] {
    auto now = s.status().get();
    return now.readers == 0 && now.producers == 0 && now.counts.present == 1 &&
      now.counts.reading == 0;
  }));
  s.end().get();
  BOOST_TEST((rest_of(reader_of(s, 1)) == ids_type{2}));
}

// Another process writes to a place after its producer has described it.
BOOST_AUTO_TEST_CASE(damaged_samples_are_noticed_and_are_not_given) {
  stream_node at;
  auto s = at.to(way::socket).stream("s");
  s.create(some()).get();
  auto to = s.producer().get();
  for (std::uint64_t i = 1000; i < 1003; ++i)
    append(to, i).get();
  std::vector<float> pattern(values, 1001.f);
  auto* found = find_in_data_memory(std::as_bytes(std::span{pattern}));
  BOOST_TEST_REQUIRE(found);
  found[5] ^= 1;
  auto from = reader_of(s, 1);
  BOOST_TEST((labels_of(*from.next().get()) == ids_type{1000}));
  auto why = words_of(from.next());
  BOOST_TEST(why.find("sample 1 of stream s") != std::string::npos, why);
  BOOST_TEST((labels_of(*from.next().get()) == ids_type{1002}));
}

BOOST_AUTO_TEST_CASE(streams_are_listed) {
  stream_node at;
  auto c = at.to(way::socket);
  for (auto name : {"a1", "a2", "b"})
    c.stream(name).create(some()).get();
  auto found = c.streams("a").get();
  BOOST_TEST_REQUIRE(found.found.size() == 2u);
  BOOST_TEST(found.found[1].name == "a2");
  BOOST_TEST((found.found[1].options == some()));
  BOOST_TEST(c.streams().get().found.size() == 3u);
  BOOST_TEST(c.working_sets().get().found.empty());
  auto reader = reader_of(c.stream("b"), 1);
  auto data = c.status().get().front().value().data;
  BOOST_TEST(data.used_bytes == 3 * mib);
  BOOST_TEST(data.sets + data.filling + data.readers == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
