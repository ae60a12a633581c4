// Tests working sets with a client that cannot map the data server's memory, as on another host: it
// has the driver tcp alone.
#include <millrace/actors/loader/read_options.hpp>
#include <millrace/tests/runtime/data_node.hpp>
#include <millrace/tests/support/scripted_service.hpp>
#include <millrace/transport/fabric_options.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

constexpr auto sample_bytes = data_node::sample_bytes;

// Options of a process that has one driver.
config::settings over_tcp(config::settings s = {}) {
  auto& transport = s.options.edit<transport::fabric_options>();
  transport.prefer = {"tcp"};
  transport.prefer_is_explicit = true;
  return s;
}

struct data_node_with_tcp : data_node {
  explicit data_node_with_tcp(std::uint64_t regions = 8)
    : data_node(regions * mib, [](config::settings& s) {
        s.options.edit<transport::tcp_options>().listen = {"127.0.0.1:0"};
      }) {}

  client elsewhere(config::settings s = {}) {
    return client::connect(settings.node.listen.front(), over_tcp(std::move(s)));
  }
};

// Reads samples, and compares them with those of the file.
bool reads_right(
  const set_reader& reader, const std::vector<std::uint64_t>& ids, std::uint64_t salt = 1) {
  std::vector<std::byte> into(ids.size() * sample_bytes);
  reader.read_batch(0, ids, into).get();
  for (std::size_t i = 0; i < into.size(); ++i)
    if (into[i] != pattern_byte(ids[i / sample_bytes] * sample_bytes + i % sample_bytes, salt))
      return false;
  return true;
}

std::vector<std::uint64_t> random_ids(std::size_t count, std::uint64_t samples) {
  std::mt19937_64 random{5};
  std::vector<std::uint64_t> ids(count);
  std::ranges::generate(ids, [&] { return random() % samples; });
  return ids;
}

// Its only node has a data server.
struct scripted_data_server : scripted_service {
  scripted_data_server() : scripted_service({testing::listed("p")}) {
    on<actors::directory_request>([this](auto&, auto reply) {
      actors::directory where;
      where.node = "n0";
      where.nodes = {{"n0", {address()}, 1}};
      reply(where);
    });
  }
};

template <class T>
status outcome_of(const future<T>& f) {
  return f.result() ? status{} : f.result().error();
}
bool names(const status& why, std::string_view word) {
  return why.detail().find(word) != std::string::npos;
}

} // namespace

BOOST_AUTO_TEST_SUITE(remote_working_sets)

BOOST_AUTO_TEST_CASE(a_set_is_preloaded_and_read_from_another_host) {
  data_node_with_tcp at;
  auto c = at.elsewhere();
  auto set = c.working_set("digits");
  auto info = set.preload({at.file("a.npy", 3000)}).get().set;
  BOOST_TEST(info.samples == 3000u);
  auto reader = set.open().get();
  for (std::size_t size : {1, 7, 64, 300, 3000})
    BOOST_TEST(reads_right(reader, random_ids(size, 3000)));
  for (auto border : {mib, 2 * mib})
    BOOST_TEST(reads_right(reader, {border / 1000 - 1, border / 1000, border / 1000 + 1}));
  std::vector<std::byte> all(3'000'000);
  reader.load(0, all).get();
  BOOST_TEST((all == pattern(all.size(), 1)));
  auto compared = reader.verify().get();
  BOOST_TEST(compared.samples == 3000u);
  BOOST_TEST(compared.damaged == 0u);
  // Those on this host read the same.
  BOOST_TEST(reads_right(at.direct->working_set("digits").open().get(), random_ids(64, 3000)));
}

BOOST_AUTO_TEST_CASE(wrong_reads_are_refused_and_empty_ones_are_none) {
  data_node_with_tcp at;
  auto set = at.elsewhere().working_set("s");
  set.preload({at.file("a.npy", 10)}).get();
  auto reader = set.open().get();
  std::vector<std::byte> into(2000);
  BOOST_TEST((outcome_of(reader.read_batch(0, {1, 10}, into)).code() == errc::invalid_argument));
  BOOST_TEST(outcome_of(reader.read_batch(0, {}, {})).ok());
}

// More than the staging memory, in stages that are much smaller.
BOOST_AUTO_TEST_CASE(a_loader_gives_samples_that_vary) {
  data_node_with_tcp at;
  auto size_of = [](std::uint64_t id) { return id * id * 7; };
  std::vector<std::string> files;
  for (std::uint64_t i = 0; i < 50; ++i) {
    auto bytes = pattern(size_of(i), i);
    files.push_back(at.dir.path() + "/" + std::to_string(1000 + i) + ".bin");
    std::ofstream{files.back(), std::ios::binary}.write(
      reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  auto set = at.elsewhere().working_set("files");
  set.preload(files).get();
  auto from = set.open().get().load_batches({.batch_size = 8, .fields = {"x", "path"}}).value();
  std::vector<std::uint64_t> seen;
  while (auto got = from.next().get())
    for (std::size_t i = 0; i < got->ids().size(); ++i) {
      auto id = got->ids()[i];
      auto x = got->field(0), path = got->field(1);
      auto bytes = got->offsets(0), names = got->offsets(1);
      BOOST_TEST_REQUIRE(bytes[i + 1] - bytes[i] == size_of(id));
      BOOST_TEST_REQUIRE(
        std::ranges::equal(std::span{x.data + bytes[i], size_of(id)}, pattern(size_of(id), id)));
      std::string name{
        reinterpret_cast<const char*>(path.data) + names[i], names[i + 1] - names[i]};
      BOOST_TEST_REQUIRE(files[id].ends_with(name), name);
      seen.push_back(id);
    }
  std::ranges::sort(seen);
  BOOST_TEST_REQUIRE(seen.size() == files.size());
  for (std::uint64_t i = 0; i < seen.size(); ++i)
    BOOST_TEST(seen[i] == i);
  auto counts = from.counts(); // the next epoch is read ahead
  BOOST_TEST(counts.remote_stages > 0u);
  BOOST_TEST(counts.remote_limit_bytes > 0u);
  BOOST_TEST((counts.remote_inflight_stages > 0) == (counts.remote_inflight_bytes > 0));
}

BOOST_AUTO_TEST_CASE(reads_at_once_share_a_little_staging_memory) {
  data_node_with_tcp at{24};
  config::settings s;
  auto& reads = s.options.edit<actors::read_options>();
  reads.staging_bytes = 4 * mib;
  reads.inflight_bytes_min = 100'000;
  reads.inflight_bytes_max = 4 * mib;
  auto c = at.elsewhere(s);
  auto set = c.working_set("s");
  set.preload({at.file("a.npy", 20'000)}).get();
  auto reader = set.open().get();
  std::vector<std::vector<std::byte>> all(4, std::vector<std::byte>(20'000'000));
  std::vector<future<void>> loads;
  for (auto& one : all)
    loads.push_back(reader.load(0, one));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] { wrong += !reads_right(reader, random_ids(200, 20'000)); });
  for (auto& t : threads)
    t.join();
  BOOST_TEST(wrong == 0);
  auto expected = pattern(20'000'000, 1);
  for (std::size_t i = 0; i < all.size(); ++i) {
    loads[i].get();
    BOOST_TEST((all[i] == expected));
  }
}

BOOST_AUTO_TEST_CASE(who_cancels_has_the_memory_back) {
  data_node_with_tcp at{24};
  auto c = at.elsewhere();
  auto set = c.working_set("s");
  set.preload({at.file("a.npy", 20'000)}).get();
  auto reader = set.open().get();
  std::vector<std::byte> into(20'000'000);
  for (auto wait : {0us, 100us, 1000us, 5000us}) {
    auto loading = reader.load(0, into);
    std::this_thread::sleep_for(wait);
    loading.cancel();
    std::ranges::fill(into, std::byte{9});
    std::this_thread::sleep_for(2ms);
    BOOST_TEST_REQUIRE(std::ranges::all_of(into, [](auto b) { return b == std::byte{9}; }));
  }
  BOOST_TEST(reads_right(reader, random_ids(64, 20'000)));
}

BOOST_AUTO_TEST_CASE(a_reader_finishes_after_an_unload) {
  data_node_with_tcp at{4};
  auto set = at.elsewhere().working_set("s");
  set.preload({at.file("a.npy", 3000)}).get();
  std::optional<set_reader> reader = set.open().get();
  at.direct->working_set("s").unload().get();
  BOOST_TEST((outcome_of(set.open()).code() == errc::not_found));
  BOOST_TEST(reads_right(*reader, {0, 1500, 2999}));
  reader.reset();
  BOOST_TEST(at.frees_all_but(0));
}

// The data server takes the memory back from a reader whose connection is gone.
BOOST_AUTO_TEST_CASE(a_reader_never_gets_the_bytes_of_another_set) {
  data_node_with_tcp at{4};
  auto c = at.elsewhere();
  c.working_set("s").preload({at.file("a.npy", 3000)}).get();
  auto reader = c.working_set("s").open().get();
  BOOST_TEST(reads_right(reader, {0, 2999}));
  at.cut_connections();
  at.direct->working_set("s").unload().get();
  BOOST_TEST(at.frees_all_but(0));
  at.direct->working_set("t").preload({at.file("b.npy", 3000, 2)}).get();
  // Connected again, a little later.
  auto other = c.working_set("t");
  auto until = std::chrono::steady_clock::now() + 20s;
  while (!outcome_of(other.describe()).ok() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  BOOST_TEST(reads_right(other.open().get(), {1, 2}, 2));
  std::vector<std::byte> into(1000, std::byte{9});
  auto why = outcome_of(reader.read(0, 2999, into));
  BOOST_TEST((why.code() == errc::not_found), why.to_string());
  BOOST_TEST(names(why, "open it again"), why.to_string());
  BOOST_TEST(std::ranges::all_of(into, [](auto b) { return b == std::byte{9}; }));
  BOOST_TEST((outcome_of(reader.verify()).code() == errc::not_found));
}

// The lease has ended with the connection, and the same set is opened again.
BOOST_AUTO_TEST_CASE(a_reader_goes_on_after_its_connection_was_lost) {
  data_node_with_tcp at{4};
  auto c = at.elsewhere();
  auto set = c.working_set("s");
  auto loaded = set.preload({at.file("a.npy", 3000)}).get().set;
  auto reader = set.open().get();
  for (int i = 0; i < 2; ++i) {
    at.cut_connections();
    BOOST_TEST(reads_right(reader, random_ids(64, 3000)));
    {
      auto from = reader.load_batches({.batch_size = 300, .prefetch = 1}).value();
      from.next().get();
      at.cut_connections();
      for (int batches = 1; batches < 10; ++batches) {
        auto batch = from.next().get();
        for (std::size_t k = 0; k < batch->ids().size(); ++k)
          BOOST_TEST_REQUIRE(
            is_sample({batch->field(0).data + k * sample_bytes, sample_bytes}, batch->ids()[k]));
      }
    }
    // Who cancels meanwhile has the memory back.
    at.cut_connections();
    std::vector<std::byte> into(3'000'000);
    auto loading = reader.load(0, into);
    loading.cancel();
    std::ranges::fill(into, std::byte{9});
    std::this_thread::sleep_for(2ms);
    BOOST_TEST_REQUIRE(std::ranges::all_of(into, [](auto b) { return b == std::byte{9}; }));
    BOOST_TEST(reads_right(reader, random_ids(64, 3000)));
    at.cut_connections();
    BOOST_TEST(reader.verify().get().samples == 3000u);
  }
  // Another preload of the same files is another set.
  at.cut_connections();
  at.direct->working_set("s").unload().get();
  BOOST_TEST(at.frees_all_but(0));
  auto again = at.direct->working_set("s").preload({at.file("a.npy", 3000)}).get();
  BOOST_TEST((again.set.id != loaded.id));
  std::vector<std::byte> into(1000);
  BOOST_TEST(!outcome_of(reader.read(0, 7, into)).ok()); // the loss may be what it says
  auto why = outcome_of(reader.read(0, 7, into));
  BOOST_TEST((why.code() == errc::not_found), why.to_string());
}

BOOST_AUTO_TEST_CASE(samples_of_varying_sizes_are_read_on_after_a_loss) {
  data_node_with_tcp at{4};
  auto directory = at.dir.path() + "/files";
  std::filesystem::create_directories(directory);
  for (auto* name : {"a", "b"})
    std::ofstream{directory + "/" + name} << "bytes of " << name;
  auto c = at.elsewhere();
  c.working_set("s").preload({directory}).get();
  auto reader = c.working_set("s").open().get();
  for (int i = 0; i < 3; ++i) {
    at.cut_connections();
    std::string into(20, '\0');
    reader.read_batch(0, {1, 0}, std::as_writable_bytes(std::span{into})).get();
    BOOST_TEST(into == "bytes of bbytes of a");
  }
}

BOOST_AUTO_TEST_CASE(a_reader_whose_server_is_gone_says_which) {
  data_node_with_tcp at{24};
  auto c = at.elsewhere();
  c.working_set("s").preload({at.file("a.npy", 20'000)}).get();
  auto reader = c.working_set("s").open().get();
  std::vector<std::byte> into(20'000'000);
  auto loading = reader.load(0, into);
  at.stop();
  auto begun = std::chrono::steady_clock::now();
  static_cast<void>(loading.result()); // it may have been faster
  auto why = outcome_of(reader.load(0, into));
  BOOST_TEST((why.code() == errc::peer_lost), why.to_string());
  BOOST_TEST(names(why, "node n0"), why.to_string());
  BOOST_TEST((std::chrono::steady_clock::now() - begun < 20s));
}

// Threads read while sets come and go: every batch has the bytes of its set, or an error.
BOOST_AUTO_TEST_CASE(reads_beside_preloads_and_unloads) {
  data_node_with_tcp at{6};
  std::string paths[] = {at.file("a.npy", 1500, 1), at.file("b.npy", 1500, 2)};
  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> read = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t salt : {1, 2})
    threads.emplace_back([&, salt] {
      auto c = at.elsewhere();
      while (!over)
        if (auto opened = c.working_set("s" + std::to_string(salt)).open(); opened.result())
          for (int i = 0; i < 5; ++i, ++read)
            wrong += !reads_right(opened.get(), random_ids(20, 1500), salt);
    });
  for (int round = 0; round < 40 || read < 20; ++round) {
    auto salt = static_cast<std::size_t>(round % 2);
    auto set = at.direct->working_set("s" + std::to_string(1 + salt));
    static_cast<void>(set.preload({paths[salt]}).result());
    std::this_thread::sleep_for(2ms);
    static_cast<void>(set.unload().result());
  }
  over = true;
  for (auto& t : threads)
    t.join();
  BOOST_TEST(wrong == 0u);
}

BOOST_AUTO_TEST_CASE(a_set_whose_opening_is_answered_too_late_is_given_back) {
  scripted_data_server service;
  std::promise<set_id> opened, given_back;
  service.on<actors::open_set_request>( // without an answer
    [&](auto& request, auto&&) { opened.set_value(request.mark); });
  service.on<actors::close_set_request>([&](auto& request, auto reply) {
    BOOST_TEST(request.number == 0u);
    given_back.set_value(request.mark);
    reply(actors::done_reply{});
  });
  auto settings = over_tcp();
  settings.client.request_timeout_ms = 200;
  auto c = client::connect(service.address(), settings);
  auto why = outcome_of(c.working_set("s").open());
  BOOST_TEST((why.code() == errc::deadline_exceeded), why.to_string());
  auto left = given_back.get_future();
  BOOST_TEST_REQUIRE((left.wait_for(20s) == std::future_status::ready));
  auto mark = left.get();
  BOOST_TEST((!mark.is_nil() && mark == opened.get_future().get()));
}

BOOST_AUTO_TEST_CASE(a_lying_data_server_is_refused) {
  scripted_data_server service;
  set_info set;
  set.name = "s";
  set.samples = 3000;
  set.region_bytes = mib;
  set.fields.push_back({{"x", dtype::u8, {1000}}});
  BOOST_REQUIRE(place_fields(set).ok());
  actors::opened_set honest;
  honest.set = set;
  honest.generations.length_bytes = 8 * 8;
  auto left = set.size_bytes;
  for (std::uint64_t i = 0; i < region_count(set); ++i, left -= mib) {
    bulk_handle memory;
    memory.length_bytes = std::min(left, mib);
    honest.regions.push_back({memory, i, 1});
  }
  auto c = client::connect(service.address(), over_tcp());
  auto opens = [&](actors::opened_set answer) {
    service.on<actors::open_set_request>([answer](auto&, auto reply) { reply(answer); });
    return outcome_of(c.working_set("s").open());
  };
  auto fewer = honest, longer = honest, shorter = honest, beyond = honest, larger = honest;
  fewer.regions.pop_back();
  longer.regions.back().memory.length_bytes = mib + 1;
  shorter.regions.front().memory.length_bytes = 1;
  beyond.regions.front().slot = 8;
  larger.set.samples = UINT64_MAX;
  for (auto& lie : {fewer, longer, shorter, beyond, larger}) {
    auto why = opens(lie);
    BOOST_TEST((why.code() == errc::protocol_error), why.to_string());
  }
  // The memory of a process that is not there.
  auto why = opens(honest);
  BOOST_TEST((why.code() == errc::peer_lost), why.to_string());
}

BOOST_AUTO_TEST_SUITE_END()
