// Tests windows: sets that are larger than the memory of their data server. Files stand for what a
// window does not keep.
#include <millrace/tests/runtime/data_cluster.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

using ids_type = std::vector<std::uint64_t>;
constexpr auto sample_bytes = data_cluster::sample_bytes;
constexpr std::uint64_t samples = 4096; // four regions

preload_options in_window(std::uint64_t bytes = mib) {
  preload_options out;
  out.window_bytes = bytes;
  return out;
}

// A set of which a data server of two regions keeps one.
struct window_world {
  explicit window_world(bool maps = true) : c(at.connect(maps)) {
    set.preload({path}, in_window()).get();
  }

  data_cluster at{1, 2};
  std::string path = at.file("a.npy", samples);
  client c;
  working_set set = c.working_set("s");
};

loader load(
  const set_reader& reader, std::uint64_t rank = 0, std::uint64_t world = 1,
  std::uint64_t seed = 7) {
  loader_options options;
  options.batch_size = 32;
  options.rank = rank;
  options.world_size = world;
  options.seed = seed;
  return reader.load_batches(options).value();
}

// Adds the samples of a batch. Returns false at the end of an epoch.
bool add_next(const loader& from, ids_type& seen) {
  auto batch = from.next().get();
  for (std::size_t i = 0; batch && i < batch->ids().size(); ++i) {
    auto* bytes = batch->field(0).data + i * sample_bytes;
    BOOST_TEST_REQUIRE(is_sample({bytes, sample_bytes}, batch->ids()[i]));
    seen.push_back(batch->ids()[i]);
  }
  return batch.has_value();
}

// Reads to the end of an epoch, one batch of each rank after the other.
ids_type rest_of_epoch(const std::vector<loader>& ranks) {
  ids_type seen;
  for (auto over = false; !over;)
    for (auto& from : ranks)
      over = !add_next(from, seen);
  return seen;
}

ids_type order_of(const set_reader& reader, std::uint64_t seed, std::uint64_t epoch) {
  auto order = reader.order(seed, epoch);
  ids_type out;
  out.reserve(order.size());
  for (std::uint64_t i = 0; i < order.size(); ++i)
    out.push_back(order.at(i));
  return out;
}

std::uint64_t size_of(const set_reader& reader) { return reader.info().samples; }

// What is written returns a little later.
window_counts settled(const working_set& set) {
  auto until = std::chrono::steady_clock::now() + 20s;
  for (;;) {
    auto now = set.window().get();
    auto full = now.kept_bytes + 32 * sample_bytes > now.size_bytes * 15 / 16;
    if (full || std::chrono::steady_clock::now() > until)
      return now;
    std::this_thread::sleep_for(1ms);
  }
}

// A file of a folder whose files are samples.
void write_sample(const std::string& folder, std::uint64_t id, std::uint64_t bytes) {
  std::filesystem::create_directories(folder);
  auto what = pattern(bytes, id);
  std::ofstream{fmt::format("{}/{:03}", folder, id), std::ios::binary}.write(
    reinterpret_cast<const char*>(what.data()), static_cast<std::streamsize>(what.size()));
}

void check_file(const set_reader& reader, std::uint64_t id) {
  std::vector<std::byte> into(reader.sizes(0, {id}).get().front());
  reader.read(0, id, into).get();
  BOOST_TEST_REQUIRE((into == pattern(into.size(), id)));
}

// Writes over all regions of the nodes of this process, as one that has gone wrong does.
void damage_regions() {
  std::ifstream maps{"/proc/self/maps"};
  std::size_t damaged = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char rights[5] = {};
    auto is_one = std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) == 3 &&
      std::string_view{rights}.starts_with("rw") && line.find("memfd:") != std::string::npos &&
      line.find("data.") != std::string::npos && line.find("generations") == std::string::npos;
    if (!is_one)
      continue;
    std::memset(
      reinterpret_cast<void*>(begin), 0xa5, end - begin); // NOLINT(performance-no-int-to-ptr)
    ++damaged;
  }
  BOOST_TEST_REQUIRE(damaged > 0u);
}

} // namespace

BOOST_AUTO_TEST_SUITE(windows)

BOOST_AUTO_TEST_CASE(each_sample_comes_once_for_any_number_of_ranks) {
  for (bool maps : {true, false})
    for (std::uint64_t world : {1, 2, 3, 4}) {
      window_world of{maps};
      auto reader = of.set.open().get();
      BOOST_TEST(is_window(reader.info()));
      std::vector<loader> ranks;
      ranks.reserve(world);
      for (std::uint64_t rank = 0; rank < world; ++rank)
        ranks.push_back(load(reader, rank, world));
      for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        BOOST_TEST((rest_of_epoch(ranks) == order_of(reader, 7, epoch)));
        if (epoch == 0)
          BOOST_TEST(settled(of.set).kept_bytes > 0u);
      }
      auto from_window = reader.samples_from_window();
      // A quarter of the set is kept: a quarter of two epochs, and more.
      BOOST_TEST(from_window > samples / 4);
      // Batches of the next epoch are read ahead.
      BOOST_TEST(from_window + reader.samples_from_files() >= 3 * samples);
      BOOST_TEST(reader.samples_from_files() < 3 * samples);
      auto counts = of.set.window().get();
      BOOST_TEST(counts.size_bytes == mib);
      BOOST_TEST(counts.kept_bytes <= counts.size_bytes);
      BOOST_TEST(counts.given >= from_window);
      BOOST_TEST(counts.evicted + counts.refused > 0u);
      BOOST_TEST(counts.damaged == 0u);
    }
}

BOOST_AUTO_TEST_CASE(a_resume_goes_on_with_other_ranks) {
  window_world of;
  auto reader = of.set.open().get();
  ids_type seen;
  loader_state state;
  {
    std::vector<loader> ranks{load(reader, 0, 2), load(reader, 1, 2)};
    for (int step = 0; step < 20; ++step)
      for (auto& from : ranks)
        BOOST_TEST_REQUIRE(add_next(from, seen));
    state = ranks.front().state();
  }
  std::vector<loader> ranks{load(reader, 0, 3), load(reader, 1, 3), load(reader, 2, 3)};
  for (auto& from : ranks)
    BOOST_TEST_REQUIRE(from.seek(state).ok());
  auto rest = rest_of_epoch(ranks);
  seen.insert(seen.end(), rest.begin(), rest.end());
  BOOST_TEST((seen == order_of(reader, 7, 0)));
}

BOOST_AUTO_TEST_CASE(jobs_with_different_seeds_share_a_window) {
  window_world of;
  auto other = of.at.connect(false);
  auto theirs = other.working_set("s");
  theirs.preload({of.path}, in_window()).get();
  auto a = of.set.open().get(), b = theirs.open().get();
  auto first = load(a, 0, 1, 1), second = load(b, 0, 1, 2);
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    ids_type seen_a, seen_b;
    for (auto more_a = true, more_b = true; more_a || more_b;) {
      more_a = more_a && add_next(first, seen_a);
      more_b = more_b && add_next(second, seen_b);
    }
    BOOST_TEST((seen_a == order_of(a, 1, epoch)));
    BOOST_TEST((seen_b == order_of(b, 2, epoch)));
  }
  BOOST_TEST(a.samples_from_window() > 0u);
  BOOST_TEST(b.samples_from_window() > 0u);
}

BOOST_AUTO_TEST_CASE(the_files_stand_for_a_server_that_is_lost) {
  for (bool maps : {true, false}) {
    window_world of{maps};
    auto reader = of.set.open().get();
    auto from = load(reader);
    ids_type seen;
    for (int step = 0; step < 20; ++step)
      BOOST_TEST_REQUIRE(add_next(from, seen));
    of.at.stop("n0");
    auto rest = rest_of_epoch({from});
    seen.insert(seen.end(), rest.begin(), rest.end());
    BOOST_TEST((seen == order_of(reader, 7, 0)));
    // When the node is there again, one of the job preloads the window, and all read it.
    of.at.start("n0");
    auto again = of.at.connect(maps);
    again.working_set("s").preload({of.path}, in_window()).get();
    auto before = reader.samples_from_window();
    auto until = std::chrono::steady_clock::now() + 60s;
    for (std::uint64_t epoch = 1; reader.samples_from_window() == before; ++epoch) {
      BOOST_TEST_REQUIRE((std::chrono::steady_clock::now() < until));
      BOOST_TEST((rest_of_epoch({from}) == order_of(reader, 7, epoch)));
    }
  }
}

BOOST_AUTO_TEST_CASE(bytes_that_were_damaged_come_from_the_files) {
  window_world of;
  auto reader = of.set.open().get();
  auto from = load(reader);
  BOOST_TEST((rest_of_epoch({from}) == order_of(reader, 7, 0)));
  settled(of.set);
  damage_regions();
  BOOST_TEST((rest_of_epoch({from}) == order_of(reader, 7, 1)));
  BOOST_TEST(of.set.window().get().damaged > 0u);
  BOOST_TEST((rest_of_epoch({from}) == order_of(reader, 7, 2)));
}

BOOST_AUTO_TEST_CASE(samples_of_varying_sizes_are_kept) {
  data_cluster at{1, 2};
  auto folder = at.dir.path() + "/files";
  std::filesystem::create_directories(folder);
  ids_type all(200);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::byte> joined;
  for (auto i : all) {
    auto bytes = pattern(i * 3701 % 50'001, i);
    joined.insert(joined.end(), bytes.begin(), bytes.end());
    std::ofstream{fmt::format("{}/{:03}", folder, i), std::ios::binary}.write(
      reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  auto c = at.connect();
  auto set = c.working_set("files");
  set.preload({folder}, in_window()).get();
  auto reader = set.open().get();
  for (int i = 0; i < 4; ++i) {
    std::vector<std::byte> into(joined.size());
    reader.read_batch(0, all, into).get();
    BOOST_TEST_REQUIRE((into == joined));
    std::this_thread::sleep_for(20ms);
  }
  BOOST_TEST(reader.samples_from_window() > 0u);
  std::string name(3, '\0');
  reader.read(1, 33, std::as_writable_bytes(std::span{name})).get();
  BOOST_TEST(name == "033");
  std::vector<std::byte> whole(joined.size());
  reader.load(0, whole).get();
  BOOST_TEST((whole == joined));
}

BOOST_AUTO_TEST_CASE(large_samples_are_written_in_pieces) {
  for (bool maps : {true, false}) {
    data_cluster at{1, 2};
    auto folder = at.dir.path() + "/files";
    // The memory for writes has 1 MiB: the first three do not fit into it, and one not into the
    // window.
    const ids_type all{0, 1, 2, 3}, kept{0, 1, 3};
    for (auto i : all)
      write_sample(folder, i, (i == 2 ? 5 : 3) * mib / (i == 2 ? 2 : 5) + i);
    auto c = at.connect(maps);
    auto set = c.working_set("files");
    set.preload({folder}, in_window(2 * mib)).get();
    auto reader = set.open().get();
    auto until = std::chrono::steady_clock::now() + 20s;
    for (std::uint64_t i = 0; set.window().get().kept < kept.size(); i = (i + 1) % all.size()) {
      BOOST_TEST_REQUIRE((std::chrono::steady_clock::now() < until));
      check_file(reader, all[i]);
    }
    auto before = reader.samples_from_window();
    for (auto i : all)
      check_file(reader, i);
    BOOST_TEST(reader.samples_from_window() == before + kept.size());
    auto counts = set.window().get();
    BOOST_TEST(counts.kept == kept.size());
    BOOST_TEST(counts.evicted == 0u);
    BOOST_TEST(counts.damaged == 0u);
  }
}

BOOST_AUTO_TEST_CASE(reads_that_are_cancelled_keep_nothing_from_others) {
  for (bool maps : {true, false}) {
    window_world of{maps};
    auto reader = of.set.open().get();
    ids_type ids(64);
    std::iota(ids.begin(), ids.end(), 100);
    std::vector<std::byte> into(ids.size() * sample_bytes);
    for (int i = 0; i < 30; ++i) {
      auto read = reader.read_batch(0, ids, into);
      read.cancel();
      auto code = code_of(read);
      BOOST_TEST((code == errc::ok || code == errc::cancelled));
    }
    check_batch(reader, ids);
    auto until = std::chrono::steady_clock::now() + 20s;
    while (of.set.window().get().kept < ids.size() && std::chrono::steady_clock::now() < until)
      check_batch(reader, ids);
    BOOST_TEST(of.set.window().get().kept == ids.size());
  }
}

BOOST_AUTO_TEST_CASE(what_a_window_lacks_is_said) {
  window_world of;
  // Another client has not preloaded it, and has no files.
  auto other = of.at.connect();
  auto theirs = other.working_set("s");
  BOOST_TEST(words_of(theirs.open()).find("open it with its files") != std::string::npos);
  open_options options;
  options.files = {of.path};
  BOOST_TEST(size_of(theirs.open(options).get()) == samples);
  auto reader = of.set.open().get();
  BOOST_TEST((code_of(reader.verify()) == errc::unsupported));
  // The same window is left as it is; a set of the same files is something else.
  BOOST_TEST(theirs.preload({of.path}, in_window()).get().existed);
  BOOST_TEST((code_of(theirs.preload({of.path})) == errc::already_exists));
  BOOST_TEST((code_of(theirs.preload({of.path}, in_window(2 * mib))) == errc::already_exists));
  auto on_two = in_window();
  on_two.servers = 2;
  BOOST_TEST(
    (code_of(other.working_set("t").preload({of.path}, on_two)) == errc::invalid_argument));
  BOOST_TEST(
    (code_of(other.working_set("t").preload({of.path}, in_window(3 * mib))) == errc::no_space));
  BOOST_TEST((code_of(other.working_set("t").window()) == errc::not_found));
  auto small = other.working_set("small");
  small.preload({of.at.file("b.npy", 10)}).get();
  BOOST_TEST((code_of(small.window()) == errc::invalid_argument));
}

// A window of the name that another client has preloaded since is of other files.
BOOST_AUTO_TEST_CASE(the_files_of_a_window_are_forgotten_when_it_is_unloaded) {
  window_world of;
  of.set.open().get();
  of.set.unload().get();
  auto other = of.at.connect();
  other.working_set("s").preload({of.at.file("b.npy", samples, 2)}, in_window()).get();
  BOOST_TEST(words_of(of.set.open()).find("open it with its files") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(files_that_have_changed_are_noticed) {
  window_world of;
  auto other = of.at.connect();
  of.at.file("a.npy", samples, 2);
  BOOST_TEST(
    (code_of(other.working_set("s").preload({of.path}, in_window())) == errc::already_exists));
  open_options options;
  options.files = {of.path};
  auto reader = other.working_set("s").open(options).get();
  std::vector<std::byte> into(sample_bytes);
  auto read = reader.read(0, 3, into);
  BOOST_TEST((code_of(read) == errc::invalid_argument));
  BOOST_TEST(words_of(read).find("changed") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_unloaded_window_is_read_on_and_its_memory_returns) {
  window_world of;
  {
    auto reader = of.set.open().get();
    auto from = load(reader);
    ids_type seen;
    for (int step = 0; step < 5; ++step)
      BOOST_TEST_REQUIRE(add_next(from, seen));
    of.set.unload().get();
    auto rest = rest_of_epoch({from});
    seen.insert(seen.end(), rest.begin(), rest.end());
    BOOST_TEST((seen == order_of(reader, 7, 0)));
  }
  BOOST_TEST(of.at.frees_all());
}

BOOST_AUTO_TEST_SUITE_END()
