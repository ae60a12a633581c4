// Tests working sets from a client to the bytes: in the process of the node, and through its
// socket.
#include <millrace/core/batch_plan.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/tests/runtime/data_node.hpp>
#include <millrace/tests/support/data_memory.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(working_sets)

BOOST_AUTO_TEST_CASE(samples_are_those_of_the_files) {
  for (bool over_socket : {false, true}) {
    data_node at;
    auto c = at.by(over_socket);
    auto set = c.working_set("digits");
    std::atomic<std::uint64_t> reported = 0;
    preload_options options;
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
      BOOST_TEST(total == 3'000'000u);
      reported = done;
      return true;
    };
    auto info = set.preload({at.file("a.npy", 3000)}, options).get().set;
    BOOST_TEST(info.samples == 3000u);
    BOOST_TEST(reported == 3'000'000u);
    BOOST_TEST_REQUIRE(info.fields.size() == 1u);
    BOOST_TEST(info.fields[0].sample.name == "x");
    BOOST_TEST((info.fields[0].sample.shape == std::vector<std::uint64_t>{10, 100}));
    BOOST_TEST((set.describe().get() == info));
    auto reader = set.open().get();
    BOOST_TEST((reader.info() == info));
    std::mt19937_64 random{5};
    for (std::size_t size : {1, 7, 64, 300}) {
      std::vector<std::uint64_t> ids(size);
      std::ranges::generate(ids, [&] { return random() % 3000; });
      check_batch(reader, ids);
    }
    // Across the borders of regions.
    for (auto border : {mib, 2 * mib})
      check_batch(reader, {border / 1000 - 1, border / 1000, border / 1000 + 1});
    std::vector<std::byte> all(3'000'000);
    reader.load(0, all).get();
    BOOST_TEST((all == pattern(all.size(), 1)));
    auto compared = reader.verify().get();
    BOOST_TEST(compared.samples == 3000u);
    BOOST_TEST(compared.damaged == 0u);
  }
}

BOOST_AUTO_TEST_CASE(several_files_follow_each_other) {
  data_node at;
  auto first = at.file("a.npy", 5);
  auto rest = pattern(12'000, 1);
  auto second = write_npy(
    at.dir.path() + "/b.npy", {"x", dtype::u8, {7, 10, 100}}, std::span{rest}.subspan(5000));
  auto set = at.direct->working_set("both");
  BOOST_TEST(set.preload({first, second}).get().set.samples == 12u);
  std::vector<std::uint64_t> ids(12);
  std::iota(ids.begin(), ids.end(), 0);
  check_batch(set.open().get(), ids);
}

BOOST_AUTO_TEST_CASE(ranks_read_every_sample_of_an_epoch_once) {
  data_node at;
  auto set = at.connect().working_set("digits");
  set.preload({at.file("a.npy", 1003)}).get();
  std::vector<std::uint64_t> one_rank;
  for (std::uint64_t world : {1, 3, 5}) {
    std::vector<set_reader> readers;
    for (std::uint64_t rank = 0; rank < world; ++rank)
      readers.push_back(at.connect().working_set("digits").open().get());
    batch_plan plan{1003, 16, world};
    std::vector<std::uint64_t> seen;
    for (std::uint64_t at = 0; plan.batches_from(at) > 0; at = plan.after(at))
      for (std::uint64_t rank = 0; rank < world; ++rank) {
        auto order = readers[rank].order(7, 2);
        auto part = plan.slice(at, rank);
        std::vector<std::uint64_t> ids;
        for (std::uint64_t i = 0; i < part.count; ++i)
          ids.push_back(order.at(part.first + i));
        check_batch(readers[rank], ids);
        seen.insert(seen.end(), ids.begin(), ids.end());
      }
    if (world == 1)
      one_rank = seen;
    BOOST_TEST(seen == one_rank);
  }
  std::ranges::sort(one_rank);
  for (std::uint64_t i = 0; i < one_rank.size(); ++i)
    BOOST_TEST_REQUIRE(one_rank[i] == i);
}

// Nobody is left to answer a message.
BOOST_AUTO_TEST_CASE(a_batch_costs_no_message) {
  data_node at;
  auto c = at.connect();
  c.working_set("digits").preload({at.file("a.npy", 500)}).get();
  auto reader = c.working_set("digits").open().get();
  at.stop();
  check_batch(reader, {1, 499, 250, 7});
  BOOST_TEST(reader.verify().get().damaged == 0u);
  BOOST_TEST((code_of(c.working_set("digits").open()) != errc::ok));
}

BOOST_AUTO_TEST_CASE(readers_finish_after_an_unload) {
  for (bool over_socket : {false, true}) {
    data_node at{4 * mib};
    auto c = at.by(over_socket);
    auto set = c.working_set("s");
    set.preload({at.file("a.npy", 3000)}).get();
    std::optional<set_reader> reader = set.open().get();
    set.unload().get();
    BOOST_TEST((code_of(set.unload()) == errc::not_found));
    BOOST_TEST((code_of(set.describe()) == errc::not_found));
    BOOST_TEST((code_of(set.open()) == errc::not_found));
    BOOST_TEST(at.used_bytes() == 3 * mib);
    auto full = c.working_set("t").preload({at.file("b.npy", 3000, 2)});
    BOOST_TEST((code_of(full) == errc::no_space), words_of(full));
    check_batch(*reader, {0, 1500, 2999});
    reader.reset();
    BOOST_TEST(at.frees_all_but(0));
    c.working_set("t").preload({at.file("b.npy", 3000, 2)}).get();
  }
}

// The data server takes the memory back from a reader whose connection is gone, and that reader
// still has its mapping.
BOOST_AUTO_TEST_CASE(a_reader_never_gets_the_bytes_of_another_set) {
  data_node at{4 * mib};
  auto c = at.connect();
  c.working_set("s").preload({at.file("a.npy", 3000)}).get();
  auto reader = c.working_set("s").open().get();
  at.cut_connections();
  check_batch(reader, {0, 2999}); // the memory is still the set's
  at.direct->working_set("s").unload().get();
  BOOST_TEST(at.frees_all_but(0));
  at.direct->working_set("t").preload({at.file("b.npy", 3000, 2)}).get();
  std::vector<std::byte> into(1000);
  auto other = reader.read(0, 2999, into);
  BOOST_TEST((code_of(other) == errc::not_found), words_of(other));
  BOOST_TEST((code_of(reader.verify()) == errc::not_found));
}

BOOST_AUTO_TEST_CASE(readers_go_on_when_the_node_starts_anew) {
  data_node at{4 * mib};
  auto c = at.connect();
  c.working_set("s").preload({at.file("a.npy", 3000)}).get();
  auto reader = c.working_set("s").open().get();
  at.stop();
  at.start();
  at.direct->working_set("t").preload({at.file("b.npy", 3000, 2)}).get();
  check_batch(reader, {0, 2999});
}

BOOST_AUTO_TEST_CASE(wrong_reads_are_refused_before_a_byte_is_copied) {
  data_node at;
  auto set = at.direct->working_set("s");
  set.preload({at.file("a.npy", 10)}).get();
  auto reader = set.open().get();
  std::vector<std::byte> into(2000, std::byte{9});
  BOOST_TEST((code_of(reader.read_batch(0, {1, 10}, into)) == errc::invalid_argument));
  BOOST_TEST((code_of(reader.read_batch(1, {1, 2}, into)) == errc::invalid_argument));
  BOOST_TEST((code_of(reader.read_batch(0, {1}, into)) == errc::invalid_argument));
  BOOST_TEST((code_of(reader.load(0, into)) == errc::invalid_argument));
  BOOST_TEST(
    (code_of(reader.read(0, UINT64_MAX, std::span{into}.first(1000))) == errc::invalid_argument));
  BOOST_TEST(std::ranges::all_of(into, [](auto b) { return b == std::byte{9}; }));
  BOOST_TEST((code_of(reader.read_batch(0, {}, {})) == errc::ok));
  reader.read(0, 9, std::span{into}.first(1000)).get();
  BOOST_TEST(is_sample(std::span{into}.first(1000), 9));
}

BOOST_AUTO_TEST_CASE(sets_without_samples_can_be_opened) {
  data_node at;
  auto set = at.connect().working_set("none");
  BOOST_TEST(set.preload({at.file("a.npy", 0)}).get().set.samples == 0u);
  auto reader = set.open().get();
  BOOST_TEST(reader.verify().get().samples == 0u);
  BOOST_TEST((code_of(reader.load(0, {})) == errc::ok));
}

BOOST_AUTO_TEST_CASE(a_cluster_without_a_data_server_says_so) {
  data_node at{0};
  auto c = at.connect();
  for (auto words :
       {words_of(c.working_set("s").open()), words_of(c.working_set("s").describe()),
        words_of(c.working_set("s").preload({at.file("a.npy", 1)})),
        words_of(c.working_set("s").unload()), words_of(c.working_sets())})
    BOOST_TEST(words.find("data.capacity") != std::string::npos, words);
  BOOST_TEST((code_of(c.working_set("").open()) == errc::invalid_argument));
}

// Files of many sizes: without bytes, around the alignment, beyond a block, beyond a region.
BOOST_AUTO_TEST_CASE(samples_of_varying_sizes_are_those_of_the_files) {
  const std::uint64_t sizes[] = {0, 1, 63, 64, 65, 3000, 2 * mib + 5, 9 * mib + 1, 7, 0};
  for (bool over_socket : {false, true}) {
    data_node at{16 * mib};
    std::filesystem::create_directories(at.dir.path() + "/files/a");
    std::vector<std::vector<std::byte>> wanted;
    for (std::uint64_t size : sizes) {
      auto path = at.dir.path() + "/files/a/" + std::to_string(wanted.size());
      wanted.push_back(pattern(size, wanted.size()));
      std::ofstream{path, std::ios::binary}.write(
        reinterpret_cast<const char*>(wanted.back().data()), static_cast<std::streamsize>(size));
    }
    auto c = at.by(over_socket);
    auto set = c.working_set("files");
    preload_options options;
    options.labels = "folders";
    auto info = set.preload({at.dir.path() + "/files"}, options).get().set;
    BOOST_TEST(info.samples == wanted.size());
    BOOST_TEST_REQUIRE(info.fields.size() == 3u);
    BOOST_TEST(info.fields[0].varies);
    BOOST_TEST(info.fields[0].data_bytes == 11 * mib + 3206);
    BOOST_TEST((set.describe().get() == info));
    auto reader = set.open().get();
    std::vector<std::uint64_t> ids = {7, 0, 2, 2, 6, 9, 4, 5, 1, 3, 8};
    auto lengths = reader.sizes(0, ids).get();
    std::vector<std::byte> expected;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      BOOST_TEST(lengths[i] == sizes[ids[i]]);
      auto& one = wanted[ids[i]];
      expected.insert(expected.end(), one.begin(), one.end());
    }
    std::vector<std::byte> into(expected.size());
    reader.read_batch(0, ids, into).get();
    BOOST_TEST((into == expected));
    std::vector<std::byte> all(info.fields[0].data_bytes), joined;
    for (auto& one : wanted)
      joined.insert(joined.end(), one.begin(), one.end());
    reader.load(0, all).get();
    BOOST_TEST((all == joined));
    std::string path(3, '\0');
    reader.read(1, 6, std::as_writable_bytes(std::span{path})).get();
    BOOST_TEST(path == "a/6");
    BOOST_TEST(reader.sizes(2, {1, 2}).get().at(1) == 8u);
    auto compared = reader.verify().get();
    BOOST_TEST(compared.samples == wanted.size());
    BOOST_TEST(compared.damaged == 0u);
    // Nothing is copied where the size is wrong.
    std::vector<std::byte> other(64, std::byte{9});
    BOOST_TEST((code_of(reader.read(0, 4, other)) == errc::invalid_argument));
    BOOST_TEST((code_of(reader.read(0, 10, other)) == errc::invalid_argument));
    BOOST_TEST((code_of(reader.load(0, other)) == errc::invalid_argument));
    BOOST_TEST((code_of(reader.sizes(0, {10})) == errc::invalid_argument));
    BOOST_TEST((code_of(reader.sizes(3, {0})) == errc::invalid_argument));
    BOOST_TEST(std::ranges::all_of(other, [](auto b) { return b == std::byte{9}; }));
    BOOST_TEST((code_of(reader.read_batch(0, {0, 9}, {})) == errc::ok));
    BOOST_TEST(set.preload({at.dir.path() + "/files"}, options).get().existed);
  }
}

// A loader makes memory by these sizes.
BOOST_AUTO_TEST_CASE(sizes_that_are_more_than_the_field_has_are_damage) {
  data_node at;
  auto write = [&](const std::string& name, std::uint64_t size, std::uint64_t salt) {
    auto bytes = pattern(size, salt);
    std::ofstream{at.dir.path() + "/" + name, std::ios::binary}.write(
      reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(size));
    return at.dir.path() + "/" + name;
  };
  auto set = at.connect().working_set("s");
  preload_options options;
  options.fields = {"x"};
  set.preload({write("a", 100, 1), write("b", 64, 2)}, options).get();
  auto reader = set.open().get();
  BOOST_TEST((reader.sizes(0, {0, 1}).get() == std::vector<std::uint64_t>{100, 64}));
  BOOST_TEST((reader.sizes(0, {1, 0, 0, 1}).get().size() == 4u));
  auto first = pattern(100, 1);
  std::uint64_t entry[] = {100, digest(first.data(), first.size())};
  auto* found = find_in_data_memory(std::as_bytes(std::span{entry}));
  BOOST_TEST_REQUIRE(found);
  *found = static_cast<char>(164); // fits into the space of the field, but not beside the other one
  BOOST_TEST(reader.sizes(0, {0, 0}).get().front() == 164u);
  auto wrong = reader.sizes(0, {0, 1});
  BOOST_TEST((code_of(wrong) == errc::corrupt_data), words_of(wrong));
  BOOST_TEST(words_of(wrong).find("set s, field x") != std::string::npos, words_of(wrong));
}

// Threads read while sets come and go: every batch has the bytes of its set, or an error.
BOOST_AUTO_TEST_CASE(reads_beside_preloads_and_unloads) {
  data_node at{6 * mib};
  std::string paths[] = {at.file("a.npy", 1500, 1), at.file("b.npy", 1500, 2)};
  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> read = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      auto c = at.connect();
      std::mt19937_64 random{static_cast<std::uint64_t>(t)};
      std::vector<std::byte> into(20 * data_node::sample_bytes);
      while (!over) {
        auto salt = 1 + random() % 2;
        auto opened = c.working_set("s" + std::to_string(salt)).open();
        if (!opened.result())
          continue;
        auto reader = opened.get();
        for (int i = 0; i < 5; ++i) {
          std::vector<std::uint64_t> ids(20);
          std::ranges::generate(ids, [&] { return random() % 1500; });
          if (!reader.read_batch(0, ids, into).result())
            break;
          for (std::size_t k = 0; k < ids.size(); ++k)
            if (!is_sample(std::span{into}.subspan(k * 1000, 1000), ids[k], salt))
              BOOST_TEST(false, "sample " << ids[k] << " of set " << salt);
          ++read;
        }
      }
    });
  for (int round = 0; round < 30; ++round) {
    auto salt = static_cast<std::size_t>(round % 2);
    auto set = at.direct->working_set("s" + std::to_string(salt + 1));
    if (set.preload({paths[salt]}).result())
      std::this_thread::sleep_for(3ms);
    static_cast<void>(set.unload().result());
  }
  over = true;
  for (auto& t : threads)
    t.join();
  BOOST_TEST(read > 0u);
  BOOST_TEST(at.frees_all_but(0));
}

BOOST_AUTO_TEST_CASE(a_set_goes_with_the_last_client_that_uses_it) {
  data_node at;
  auto path = at.file("a.npy", 10);
  preload_options options;
  options.while_used = true;
  std::optional first{at.connect()}, second{at.connect()};
  auto set = at.direct->working_set("s");
  BOOST_TEST(first->working_set("s").preload({path}, options).get().set.while_used);
  BOOST_TEST(second->working_set("s").preload({path}, options).get().existed);
  first.reset();
  std::optional reader{second->working_set("s").open().get()};
  std::this_thread::sleep_for(20ms);
  BOOST_TEST(set.describe().get().while_used);
  check_batch(*reader, {3, 4});
  reader.reset();
  second.reset();
  BOOST_TEST(at.frees_all_but(0));
  BOOST_TEST((code_of(set.describe()) == errc::not_found));
}

BOOST_AUTO_TEST_CASE(who_wants_a_set_to_stay_makes_it_stay) {
  data_node at;
  auto path = at.file("a.npy", 10);
  preload_options options;
  options.while_used = true;
  std::optional first{at.connect()};
  first->working_set("s").preload({path}, options).get();
  auto set = at.direct->working_set("s");
  auto stays = set.preload({path}).get();
  BOOST_TEST(stays.existed);
  BOOST_TEST(!stays.set.while_used);
  first.reset();
  std::this_thread::sleep_for(20ms);
  BOOST_TEST(!set.describe().get().while_used);
}

BOOST_AUTO_TEST_CASE(sets_make_room_where_the_node_says_so) {
  data_node at{4 * mib, [](config::settings& s) {
                 auto& data = s.options.edit<actors::data_options>();
                 data.when_full = storage::samples::room_policy::evict;
                 data.quota_bytes = 3 * mib;
               }};
  auto path = at.file("a.npy", 1000);
  auto c = at.connect();
  for (auto* name : {"a", "b", "c"})
    c.working_set(name).preload({path}).get();
  auto held = c.working_set("a").open().get();
  c.working_set("d").preload({path}).get(); // for the quota
  BOOST_TEST((code_of(c.working_set("b").describe()) == errc::not_found));
  check_batch(held, {1, 2, 999});
  auto large = words_of(c.working_set("e").preload({at.file("large.npy", 2200)}));
  BOOST_TEST(large.find("data.quota") != std::string::npos, large);
  BOOST_TEST(c.working_set("c").describe().result().has_value());
  BOOST_TEST(at.direct->status().get().front().value().data.evictions == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
