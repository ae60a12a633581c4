// Tests reading of working sets when a data server is lost: the files stand for it.
#include <millrace/tests/runtime/data_cluster.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

using ids_type = std::vector<std::uint64_t>;
constexpr auto sample_bytes = data_cluster::sample_bytes;

// Three nodes that have parts of a set, and a reader that maps none of them.
struct three_parts {
  explicit three_parts(std::uint32_t servers = 3) {
    nodes = set.preload({path}, among(servers)).get().set.division.nodes;
  }

  set_reader open(bool with_files = true) const {
    open_options options;
    if (with_files)
      options.files = {path};
    return set.open(options).get();
  }

  data_cluster at{3};
  std::string path = at.file("a.npy", 900);
  client c = at.connect(false);
  working_set set = c.working_set("s");
  std::vector<std::string> nodes;
};

ids_type some_ids() { return {899, 0, 450, 5, 600, 299, 300, 599, 450}; }

status read_some(const set_reader& reader) { return read_samples(reader, some_ids()); }

} // namespace

BOOST_AUTO_TEST_SUITE(lost_data_servers)

BOOST_AUTO_TEST_CASE(an_epoch_goes_on_when_a_server_is_lost) {
  for (std::size_t lost : {0, 1, 2}) {
    three_parts of;
    auto reader = of.open();
    std::vector<loader> ranks;
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      loader_options options;
      options.batch_size = 16;
      options.rank = rank;
      options.world_size = 2;
      ranks.push_back(reader.load_batches(options).value());
    }
    ids_type seen;
    for (int step = 0, over = 0; over == 0; ++step) {
      if (step == 10)
        of.at.stop(of.nodes[lost]);
      for (auto& from : ranks) {
        auto batch = from.next().get();
        over += !batch;
        for (std::size_t i = 0; batch && i < batch->ids().size(); ++i) {
          auto* bytes = batch->field(0).data + i * sample_bytes;
          BOOST_TEST_REQUIRE(is_sample({bytes, sample_bytes}, batch->ids()[i]));
          seen.push_back(batch->ids()[i]);
        }
      }
    }
    std::ranges::sort(seen);
    ids_type all(900);
    std::iota(all.begin(), all.end(), 0);
    BOOST_TEST((seen == all));
    auto from_files = reader.samples_from_files();
    BOOST_TEST(from_files > 0u);
    BOOST_TEST(from_files <= 300u + 12 * 32); // and what was read ahead twice
    std::vector<std::byte> whole(900 * sample_bytes);
    reader.load(0, whole).get();
    BOOST_TEST((whole == pattern(whole.size(), 1)));
    // There is nothing to compare with.
    BOOST_TEST((code_of(reader.verify()) != errc::ok));
  }
}

BOOST_AUTO_TEST_CASE(samples_of_varying_sizes_are_read_from_files) {
  data_cluster at{3};
  std::filesystem::create_directories(at.dir.path() + "/files");
  std::vector<std::byte> joined;
  for (std::uint64_t i = 0; i < 60; ++i) {
    auto bytes = pattern(i * 37 % 501, i);
    joined.insert(joined.end(), bytes.begin(), bytes.end());
    std::ofstream{fmt::format("{}/files/{:02}", at.dir.path(), i), std::ios::binary}.write(
      reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  auto c = at.connect(false);
  auto set = c.working_set("files");
  open_options options;
  options.files = {at.dir.path() + "/files"};
  auto nodes = set.preload(options.files, among(3)).get().set.division.nodes;
  auto reader = set.open(options).get();
  ids_type ids(60);
  std::iota(ids.begin(), ids.end(), 0);
  auto sizes = reader.sizes(0, ids).get();
  for (auto& node : {nodes[1], nodes[0]}) {
    at.stop(node);
    BOOST_TEST((reader.sizes(0, ids).get() == sizes));
    std::vector<std::byte> into(joined.size());
    reader.read_batch(0, ids, into).get();
    BOOST_TEST((into == joined));
  }
  std::string path(2, '\0');
  reader.read(1, 33, std::as_writable_bytes(std::span{path})).get();
  BOOST_TEST(path == "33");
}

BOOST_AUTO_TEST_CASE(without_files_the_lost_node_is_named) {
  three_parts of;
  auto reader = of.open(false);
  BOOST_TEST(read_some(reader).ok());
  of.at.stop(of.nodes[1]);
  auto why = read_some(reader);
  BOOST_TEST(!why.ok());
  BOOST_TEST(why.to_string().find(of.nodes[1]) != std::string::npos, why.to_string());
  // The other parts are read on.
  std::vector<std::byte> into(sample_bytes);
  reader.read(0, 0, into).get();
  BOOST_TEST(is_sample(into, 0));
}

BOOST_AUTO_TEST_CASE(files_that_have_changed_are_refused) {
  three_parts of;
  auto reader = of.open();
  of.at.stop(of.nodes[2]);
  std::filesystem::last_write_time(
    of.path, std::filesystem::last_write_time(of.path) + std::chrono::seconds{5});
  auto why = read_some(reader);
  BOOST_TEST((why.code() == errc::invalid_argument), why.to_string());
  BOOST_TEST(why.to_string().find("have changed") != std::string::npos, why.to_string());
  of.at.file("a.npy", 899);
  why = read_some(reader);
  BOOST_TEST(why.to_string().find("899 samples") != std::string::npos, why.to_string());
  BOOST_TEST(reader.samples_from_files() == 0u);
}

BOOST_AUTO_TEST_CASE(a_server_that_has_its_part_again_is_read_from) {
  for (std::size_t lost : {2, 0}) {
    three_parts of;
    auto reader = of.open();
    of.at.stop(of.nodes[lost]);
    BOOST_TEST(read_some(reader).ok());
    BOOST_TEST(reader.samples_from_files() > 0u);
    of.at.start(of.nodes[lost]);
    auto until = std::chrono::steady_clock::now() + 20s;
    auto preloads = [&] { return of.set.preload({of.path}, among(3)).result().has_value(); };
    while (!preloads() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(10ms);
    auto still_files = [&] {
      auto before = reader.samples_from_files();
      BOOST_TEST(read_some(reader).ok());
      return reader.samples_from_files() > before;
    };
    while (still_files() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(10ms);
    BOOST_TEST(!still_files());
  }
}

BOOST_AUTO_TEST_CASE(a_set_is_opened_without_a_part_if_there_are_files) {
  three_parts of;
  of.at.stop(of.nodes[1]);
  BOOST_TEST((code_of(of.set.open()) != errc::ok));
  auto reader = of.open();
  BOOST_TEST(read_some(reader).ok());
  BOOST_TEST(reader.samples_from_files() > 0u);
}

BOOST_AUTO_TEST_CASE(a_set_of_one_server_is_read_from_files) {
  three_parts of{1};
  auto reader = of.open();
  of.at.stop(of.set.node().value());
  BOOST_TEST(read_some(reader).ok());
  BOOST_TEST(reader.samples_from_files() == some_ids().size());
}

// Reads that were cancelled have given the memory back.
BOOST_AUTO_TEST_CASE(reads_from_files_can_be_cancelled) {
  three_parts of;
  auto reader = of.open();
  of.at.stop(of.nodes[1]);
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> into(900 * sample_bytes);
    auto loading = reader.load(0, into);
    loading.cancel();
    std::ranges::fill(into, std::byte{9});
    std::this_thread::sleep_for(1ms);
    BOOST_TEST_REQUIRE(std::ranges::all_of(into, [](auto b) { return b == std::byte{9}; }));
  }
  BOOST_TEST(read_some(reader).ok());
}

// Damage that was found while samples were read is left out by those who open the files again.
BOOST_AUTO_TEST_CASE(a_set_that_lacks_damaged_files_is_read_from_the_others_and_restored) {
  data_cluster at{3};
  std::vector<std::string> paths;
  for (auto* name : {"a", "b", "c"})
    paths.push_back(write_npz(at.dir.path() + "/" + name + ".npz", 90, *name == 'b'));
  auto c = at.connect(false);
  auto set = c.working_set("s");
  auto options = among(3);
  options.on_error = damage_policy::skip;
  auto nodes = set.preload(paths, options).get().set.division.nodes;
  open_options with;
  with.files = paths;
  with.on_error = damage_policy::skip;
  auto reader = set.open(with).get();
  BOOST_TEST(reader.info().samples == 180u);
  at.stop(nodes[1]);
  std::vector<std::byte> whole(180 * sample_bytes), half = pattern(90 * sample_bytes, 1);
  reader.load(0, whole).get();
  BOOST_TEST(std::equal(half.begin(), half.end(), whole.begin()));
  BOOST_TEST(std::equal(half.begin(), half.end(), whole.begin() + 90 * sample_bytes));
  BOOST_TEST(reader.samples_from_files() == 60u);
  at.start(nodes[1]);
  auto until = std::chrono::steady_clock::now() + 20s;
  while (!set.preload(paths, options).result() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(10ms);
  BOOST_TEST(set.open().get().verify().get().samples == 180u);
}

// A comparison opens a part again, as reads do.
BOOST_AUTO_TEST_CASE(samples_are_compared_again_once_the_server_has_its_part) {
  three_parts of;
  auto reader = of.open();
  of.at.stop(of.nodes[1]);
  BOOST_TEST(read_some(reader).ok());
  BOOST_TEST((code_of(reader.verify()) != errc::ok));
  of.at.start(of.nodes[1]);
  auto until = std::chrono::steady_clock::now() + 20s;
  while (!of.set.preload({of.path}, among(3)).result() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(10ms);
  auto compared = reader.verify().get();
  BOOST_TEST(compared.samples == 900u);
  BOOST_TEST(compared.damaged == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
