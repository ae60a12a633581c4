// Tests working sets that are divided among several data servers: what readers see is one set.
#include <millrace/actors/loader/data_messages.hpp>
#include <millrace/tests/runtime/data_cluster.hpp>
#include <millrace/tests/support/fault_in.hpp>
#include <millrace/tests/support/process.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

using ids_type = std::vector<std::uint64_t>;

bool reads_right(const set_reader& reader, const ids_type& ids, std::uint64_t salt = 1) {
  std::vector<std::byte> into(ids.size() * data_cluster::sample_bytes);
  reader.read_batch(0, ids, into).get();
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (!is_sample(
          std::span{into}.subspan(i * data_cluster::sample_bytes, data_cluster::sample_bytes),
          ids[i], salt))
      return false;
  return true;
}

// The samples of one rank in an epoch; their bytes are checked.
ids_type epoch_of(const set_reader& reader, std::uint64_t rank, std::uint64_t world) {
  loader_options options;
  options.batch_size = 7;
  options.rank = rank;
  options.world_size = world;
  options.seed = 3;
  auto from = reader.load_batches(options).value();
  ids_type out;
  while (auto batch = from.next().get())
    for (std::size_t i = 0; i < batch->ids().size(); ++i) {
      auto* bytes = batch->field(0).data + i * data_cluster::sample_bytes;
      BOOST_TEST_REQUIRE(is_sample({bytes, data_cluster::sample_bytes}, batch->ids()[i]));
      out.push_back(batch->ids()[i]);
    }
  return out;
}

// The orders of all ranks, put together batch by batch, are that of the epoch.
void check_epoch(const set_reader& reader, std::uint64_t world) {
  ids_type seen;
  for (std::uint64_t rank = 0; rank < world; ++rank) {
    auto part = epoch_of(reader, rank, world);
    seen.insert(seen.end(), part.begin(), part.end());
  }
  std::ranges::sort(seen);
  BOOST_TEST((seen == all_ids(reader.info().samples)));
}

// Waits until clients have connected to a node again, and opening says this.
bool opens_with(const working_set& set, errc code) {
  auto until = std::chrono::steady_clock::now() + 20s;
  while (code_of(set.open()) != code && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  return code_of(set.open()) == code;
}

// Files of many sizes, each a sample. Returns their bytes.
std::vector<std::vector<std::byte>> write_files(const std::string& directory) {
  std::filesystem::create_directories(directory);
  std::vector<std::vector<std::byte>> out;
  for (std::uint64_t size : {0, 1, 63, 64, 65, 3000, 1'100'000, 7, 0, 12, 900}) {
    out.push_back(pattern(size, out.size()));
    std::ofstream{fmt::format("{}/{:02}", directory, out.size() - 1), std::ios::binary}.write(
      reinterpret_cast<const char*>(out.back().data()), static_cast<std::streamsize>(size));
  }
  return out;
}

} // namespace

BOOST_AUTO_TEST_SUITE(divided_working_sets)

BOOST_AUTO_TEST_CASE(readers_see_one_set) {
  data_cluster at{7};
  auto path = at.file("a.npy", 1003);
  auto c = at.connect();
  std::optional<set_info> first;
  std::optional<ids_type> order;
  for (std::uint32_t servers : {1, 2, 3, 4, 5, 6, 7, 0}) {
    auto set = c.working_set("digits");
    auto loaded = set.preload({path}, among(servers)).get();
    BOOST_TEST(!loaded.existed);
    auto info = loaded.set;
    auto parts = servers == 0 ? 7u : servers;
    BOOST_TEST(info.division.nodes.size() == (parts == 1 ? 0u : parts));
    BOOST_TEST((set.describe().get() == info));
    if (!first)
      first = info;
    BOOST_TEST(info.samples == 1003u);
    BOOST_TEST(info.identity == first->identity);
    BOOST_TEST((info.fields == first->fields));
    for (bool maps : {true, false}) {
      auto reader = at.connect(maps).working_set("digits").open().get();
      BOOST_TEST((reader.info() == info));
      ids_type ids;
      auto of = reader.order(7, 2);
      for (std::uint64_t i = 0; i < 1003; ++i)
        ids.push_back(of.at(i));
      if (!order)
        order = ids;
      BOOST_TEST((ids == *order));
      BOOST_TEST(reads_right(reader, ids));
      BOOST_TEST(reads_right(reader, {5, 5, 1002, 0, 501, 5}));
      BOOST_TEST((code_of(reader.read_batch(0, {1003}, {})) == errc::invalid_argument));
      std::vector<std::byte> all(1'003'000);
      reader.load(0, all).get();
      BOOST_TEST((all == pattern(all.size(), 1)));
      auto compared = reader.verify().get();
      BOOST_TEST(compared.samples == 1003u);
      BOOST_TEST(compared.damaged == 0u);
    }
    BOOST_TEST(set.preload({path}, among(2)).get().existed);
    auto listed = c.working_sets().get();
    BOOST_TEST_REQUIRE(listed.found.size() == 1u);
    BOOST_TEST((static_cast<const set_info&>(listed.found.front()) == info));
    set.unload().get();
    BOOST_TEST(at.frees_all());
  }
}

BOOST_AUTO_TEST_CASE(ranks_read_every_sample_of_an_epoch_once) {
  data_cluster at{7};
  auto path = at.file("a.npy", 300);
  auto c = at.connect();
  for (std::uint32_t servers = 1; servers <= 7; ++servers) {
    auto set = c.working_set("digits");
    set.preload({path}, among(servers)).get();
    auto reader = at.connect(servers % 2 == 0).working_set("digits").open().get();
    for (std::uint64_t world = 1; world <= 7; ++world)
      check_epoch(reader, world);
    set.unload().get();
  }
}

BOOST_AUTO_TEST_CASE(samples_of_varying_sizes_are_those_of_the_files) {
  data_cluster at{4};
  auto wanted = write_files(at.dir.path() + "/files");
  for (std::uint32_t servers : {2, 4}) {
    auto set = at.connect().working_set("files");
    auto info = set.preload({at.dir.path() + "/files"}, among(servers)).get().set;
    BOOST_TEST(info.samples == wanted.size());
    for (bool maps : {true, false}) {
      auto reader = at.connect(maps).working_set("files").open().get();
      ids_type ids = {7, 0, 2, 2, 6, 10, 4, 5, 9, 1, 3, 8};
      auto lengths = reader.sizes(0, ids).get();
      std::vector<std::byte> expected;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        BOOST_TEST(lengths[i] == wanted[ids[i]].size());
        expected.insert(expected.end(), wanted[ids[i]].begin(), wanted[ids[i]].end());
      }
      std::vector<std::byte> into(expected.size());
      reader.read_batch(0, ids, into).get();
      BOOST_TEST((into == expected));
      std::vector<std::byte> all(info.fields[0].data_bytes), joined;
      for (auto& one : wanted)
        joined.insert(joined.end(), one.begin(), one.end());
      reader.load(0, all).get();
      BOOST_TEST((all == joined));
      auto compared = reader.verify().get();
      BOOST_TEST(compared.samples == wanted.size());
      BOOST_TEST(compared.damaged == 0u);
      into.pop_back();
      BOOST_TEST((code_of(reader.read_batch(0, ids, into)) == errc::invalid_argument));
    }
    set.unload().get();
  }
}

BOOST_AUTO_TEST_CASE(no_set_has_more_parts_than_samples) {
  data_cluster at{4};
  auto c = at.connect();
  for (std::uint64_t samples : {0, 1, 2, 3}) {
    auto set = c.working_set("s" + std::to_string(samples));
    auto name = std::to_string(samples) + ".npy";
    auto info = set.preload({at.file(name, samples)}, among(4)).get().set;
    BOOST_TEST(info.division.nodes.size() == (samples < 2 ? 0 : samples));
    BOOST_TEST(reads_right(set.open().get(), all_ids(samples)));
  }
  auto none = c.working_set("t").preload({at.file("t.npy", 9)}, among(5));
  BOOST_TEST((code_of(none) == errc::invalid_argument));
  BOOST_TEST(words_of(none).find("that there are (4)") != std::string::npos, words_of(none));
}

// One server has too little room for its part, since another set fills it.
BOOST_AUTO_TEST_CASE(a_server_without_room_is_named_and_nothing_is_left) {
  data_cluster at{3, 2};
  auto c = at.connect();
  auto path = at.file("a.npy", 3000);
  auto probe = c.working_set("s").preload({path}, among(3)).get().set;
  c.working_set("s").unload().get();
  BOOST_TEST(at.frees_all());
  for (std::size_t full = 0; full < 3; ++full) {
    // A set whose home is that node.
    auto& node = probe.division.nodes[full];
    auto name = std::string{"filler"};
    while (c.working_set(name).node().value() != node)
      name += "+";
    c.working_set(name).preload({at.file("b.npy", 1900)}).get();
    auto before = at.used_bytes();
    auto failed = c.working_set("s").preload({path}, among(3));
    BOOST_TEST((code_of(failed) == errc::no_space), words_of(failed));
    BOOST_TEST((full == 0 || words_of(failed).find(node) != std::string::npos), words_of(failed));
    BOOST_TEST((code_of(c.working_set("s").open()) == errc::not_found));
    BOOST_TEST(at.used_bytes() == before);
    c.working_set(name).unload().get();
    BOOST_TEST(at.frees_all());
  }
  BOOST_TEST(!c.working_set("s").preload({path}, among(3)).get().existed);
}

BOOST_AUTO_TEST_CASE(a_preload_that_ends_early_leaves_nothing) {
  data_cluster at{3};
  auto c = at.connect();
  auto options = among(3);
  options.progress = [](auto, auto) { return false; };
  auto path = at.file("a.npy", 3000);
  BOOST_TEST((code_of(c.working_set("s").preload({path}, options)) == errc::cancelled));
  BOOST_TEST(at.frees_all());
  for (auto wait : {0ms, 1ms, 3ms, 10ms, 30ms}) {
    auto loading = c.working_set("s").preload({path}, among(3));
    std::this_thread::sleep_for(wait);
    loading.cancel();
    if (loading.result()) // it was faster
      c.working_set("s").unload().get();
    BOOST_TEST(at.frees_all());
  }
  // A client that is gone.
  {
    std::optional<client> gone = at.connect();
    std::atomic<bool> reported = false;
    auto held = among(3);
    held.progress = [&](auto, auto) {
      reported = true;
      return false;
    };
    static_cast<void>(gone->working_set("s").preload({path}, held).result());
    BOOST_TEST(reported);
  }
  BOOST_TEST(at.frees_all());
  BOOST_TEST(!c.working_set("s").preload({path}, among(2)).get().existed);
}

// As the ranks of a job do.
BOOST_AUTO_TEST_CASE(concurrent_preloads_of_a_name_succeed_and_read_the_files_once) {
  data_cluster at{3};
  auto path = at.file("a.npy", 2000);
  std::atomic<int> made = 0, done = 0;
  std::atomic<std::uint64_t> read = 0;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (std::uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      auto c = at.connect();
      auto outcome = c.working_set("s").preload({path}, among(1 + t % 3));
      if (outcome.result()) {
        ++done;
        made += !outcome.get().existed;
        read += outcome.get().read_bytes;
      }
    });
  for (auto& t : threads)
    t.join();
  BOOST_TEST(done == 4);
  BOOST_TEST(made == 1);
  BOOST_TEST(read == 2000 * at.sample_bytes);
  BOOST_TEST(reads_right(at.connect().working_set("s").open().get(), all_ids(2000)));
}

BOOST_AUTO_TEST_CASE(a_preload_that_waits_fills_the_set_if_the_first_one_fails) {
  data_cluster at{3};
  auto path = at.file("a.npy", 2000);
  auto c = at.connect(), others = at.connect();
  std::atomic<bool> fills = false, ends = false;
  auto held = among(3);
  held.progress = [&](auto, auto) {
    fills = true;
    while (!ends)
      std::this_thread::sleep_for(1ms);
    return false;
  };
  auto first = c.working_set("s").preload({path}, held);
  BOOST_TEST_REQUIRE(eventually([&] { return fills.load(); }));
  std::vector<future<preloaded_set>> waiting;
  waiting.reserve(4);
  for (std::uint32_t servers = 0; servers < 4; ++servers)
    waiting.push_back(others.working_set("s").preload({path}, among(servers)));
  waiting.back().cancel();
  BOOST_TEST((code_of(waiting.back()) == errc::cancelled));
  waiting.pop_back();
  std::this_thread::sleep_for(100ms);
  for (auto& one : waiting)
    BOOST_TEST(!one.ready());
  ends = true;
  BOOST_TEST((code_of(first) == errc::cancelled));
  int made = 0;
  for (auto& one : waiting) {
    BOOST_TEST_REQUIRE(one.result().has_value(), words_of(one));
    made += !one.get().existed;
  }
  BOOST_TEST(made == 1);
  BOOST_TEST(reads_right(c.working_set("s").open().get(), all_ids(2000)));
}

// The program has closed its client, and nobody holds it any more.
BOOST_AUTO_TEST_CASE(a_preload_that_waits_ends_with_its_client) {
  data_cluster at{1};
  auto path = at.file("a.npy", 100);
  auto c = at.connect();
  std::atomic<bool> fills = false, ends = false;
  preload_options held;
  held.progress = [&](auto, auto) {
    fills = true;
    while (!ends)
      std::this_thread::sleep_for(1ms);
    return true;
  };
  auto first = c.working_set("s").preload({path}, held);
  BOOST_TEST_REQUIRE(eventually([&] { return fills.load(); }));
  auto second = [&] { return at.connect().working_set("s").preload({path}); }();
  BOOST_TEST((code_of(second) == errc::cancelled));
  ends = true;
  BOOST_TEST(!first.get().existed);
}

BOOST_AUTO_TEST_CASE(readers_finish_after_an_unload) {
  data_cluster at{3};
  auto c = at.connect();
  auto set = c.working_set("s");
  set.preload({at.file("a.npy", 900)}, among(3)).get();
  for (bool maps : {true, false}) {
    std::optional<set_reader> reader = at.connect(maps).working_set("s").open().get();
    set.unload().get();
    BOOST_TEST((code_of(set.open()) == errc::not_found));
    BOOST_TEST((code_of(set.unload()) == errc::not_found));
    BOOST_TEST(reads_right(*reader, all_ids(900)));
    reader.reset();
    BOOST_TEST(at.frees_all());
    set.preload({at.file("a.npy", 900)}, among(3)).get();
  }
}

BOOST_AUTO_TEST_CASE(parts_that_a_server_has_lost_are_preloaded_again) {
  data_cluster at{3};
  auto path = at.file("a.npy", 900);
  auto c = at.connect();
  auto set = c.working_set("s");
  auto info = set.preload({path}, among(3)).get().set;
  // The home last.
  for (auto node : {info.division.nodes[2], info.division.nodes[1], info.division.nodes[0]}) {
    at.stop(node);
    at.start(node);
    BOOST_TEST(opens_with(set, errc::not_found));
    auto again = set.preload({path}, among(3));
    BOOST_TEST_REQUIRE(again.result().has_value(), words_of(again));
    BOOST_TEST(again.get().existed == (node != info.division.nodes[0]));
    BOOST_TEST((again.get().set.id == info.id));
    BOOST_TEST(reads_right(set.open().get(), all_ids(900)));
  }
  set.unload().get();
  BOOST_TEST(at.frees_all());
}

// The home has lost its part, and what the others have is of no use any more.
BOOST_AUTO_TEST_CASE(parts_that_are_left_of_a_set_go_with_the_next_one) {
  data_cluster at{3};
  auto c = at.connect();
  auto set = c.working_set("s");
  for (bool unloads : {true, false}) {
    auto home = set.node().value();
    set.preload({at.file("a.npy", 900)}, among(3)).get();
    at.stop(home);
    at.start(home);
    BOOST_TEST(opens_with(set, errc::not_found));
    BOOST_TEST(at.used_bytes() == 2 * mib);
    if (unloads) {
      set.unload().get();
    } else {
      set.preload({at.file("b.npy", 900, 2)}, among(1)).get();
      BOOST_TEST(reads_right(set.open().get(), all_ids(900), 2));
      BOOST_TEST(at.used_bytes() == mib);
      set.unload().get();
    }
    BOOST_TEST(at.frees_all());
  }
}

// The description of a set comes from a node, whose file may list others than that of the client.
BOOST_AUTO_TEST_CASE(nodes_that_a_client_does_not_know_are_named) {
  data_cluster at{3};
  auto path = at.file("a.npy", 30);
  auto nodes = at.connect().working_set("s").preload({path}, among(3)).get().set.division.nodes;
  auto knows_less = at.settings;
  std::erase_if(knows_less.nodes, [&](auto& one) { return one.name == nodes[2]; });
  auto set = client::of(knows_less).value().working_set("s");
  for (auto& why :
       {words_of(set.open()), words_of(set.describe()), words_of(set.preload({path})),
        words_of(set.unload())}) {
    BOOST_TEST(why.find("node " + nodes[2]) != std::string::npos, why);
    BOOST_TEST(why.find("cluster.nodes") != std::string::npos, why);
  }
  at.connect().working_set("s").unload().get();
}

#if defined(MILLRACE_KILL_POINTS)

// Only who makes a set anew looks for what is left of its name. Each question is counted where it
// is asked, and where it is answered.
BOOST_AUTO_TEST_CASE(a_preload_of_a_set_that_is_there_asks_its_home_alone) {
  data_cluster at{3};
  auto set = at.connect().working_set("s");
  auto path = at.file("a.npy", 30);
  auto questions = [&](std::uint32_t servers) {
    fault_in counts{typeid(actors::list_sets_request), 1 << 20};
    set.preload({path}, among(servers)).get();
    return fault_in::passed() / 2;
  };
  BOOST_TEST(questions(1) == 3);
  BOOST_TEST(questions(1) == 1);
  set.unload().get();
  BOOST_TEST(questions(3) == 3);
  BOOST_TEST(questions(0) == 1);
}

#endif

BOOST_AUTO_TEST_SUITE_END()
