// Tests appends to working sets: the set is then as one of all files, at one node and at several.
#include <millrace/tests/runtime/data_cluster.hpp>

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
constexpr auto sample_bytes = data_cluster::sample_bytes;

// A file of the samples from `first` on.
std::string piece(
  const data_cluster& at, const std::string& name, std::uint64_t first, std::uint64_t count) {
  auto bytes = pattern((first + count) * sample_bytes, 1);
  return write_npy(
    at.dir.path() + "/" + name, {"x", dtype::u8, {count, 10, 100}},
    std::span{bytes}.subspan(first * sample_bytes));
}

status read_all(const set_reader& reader) {
  return read_samples(reader, all_ids(reader.info().samples));
}

ids_type order_of(const set_reader& reader) {
  ids_type out;
  auto order = reader.order(7, 2);
  for (std::uint64_t i = 0; i < reader.info().samples; ++i)
    out.push_back(order.at(i));
  return out;
}

// Every sample comes once in the batches of all ranks.
void check_epoch(const set_reader& reader, std::uint64_t world) {
  ids_type seen;
  for (std::uint64_t rank = 0; rank < world; ++rank) {
    loader_options options;
    options.batch_size = 7;
    options.rank = rank;
    options.world_size = world;
    auto from = reader.load_batches(options).value();
    while (auto batch = from.next().get())
      for (std::size_t i = 0; i < batch->ids().size(); ++i) {
        auto* bytes = batch->field(0).data + i * sample_bytes;
        BOOST_TEST_REQUIRE(is_sample({bytes, sample_bytes}, batch->ids()[i]));
        seen.push_back(batch->ids()[i]);
      }
  }
  std::ranges::sort(seen);
  BOOST_TEST((seen == all_ids(reader.info().samples)));
}

template <class Holds>
bool soon(Holds holds) {
  auto until = std::chrono::steady_clock::now() + 20s;
  while (!holds() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(5ms);
  return holds();
}

// A set of 200 samples on three nodes, and files to append: 100 samples, and 2.
struct appended_set {
  explicit appended_set(bool maps = true, std::uint32_t servers = 3)
    : c(at.connect(maps)), servers(among(servers)) {
    nodes = set.preload({a}, this->servers).get().set.division.nodes;
  }

  set_info append_both() const {
    set.append({b}).get();
    return set.append({d}).get().set;
  }
  open_options files() const {
    open_options out;
    out.files = {a};
    out.appended = {{{}, {b}}, {{}, {d}}};
    return out;
  }
  // What a node had that was started anew.
  bool restores() const {
    return soon([&] {
      return set.preload({a}, servers).result() && set.append({b}).result() &&
        set.append({d}).result();
    });
  }

  data_cluster at{3};
  std::string a = piece(at, "a.npy", 0, 200), b = piece(at, "b.npy", 200, 100),
              d = piece(at, "d.npy", 300, 2);
  client c;
  preload_options servers;
  working_set set = c.working_set("s");
  std::vector<std::string> nodes;
};

} // namespace

BOOST_AUTO_TEST_SUITE(appends)

BOOST_AUTO_TEST_CASE(a_set_is_as_one_that_was_preloaded_from_all_files) {
  for (std::uint32_t servers : {1, 2, 3}) {
    appended_set of{true, servers};
    auto info = of.append_both();
    auto together = of.c.working_set("t");
    auto wanted = together.preload({of.a, of.b, of.d}, among(servers)).get().set;
    BOOST_TEST(info.samples == 302u);
    BOOST_TEST(info.identity == wanted.identity);
    BOOST_TEST((info.fields == wanted.fields));
    BOOST_TEST(info.appended.size() == 2u);
    BOOST_TEST((of.set.describe().get() == info));
    auto order = order_of(together.open().get());
    for (bool maps : {true, false}) {
      auto reader = of.at.connect(maps).working_set("s").open().get();
      BOOST_TEST((reader.info() == info));
      BOOST_TEST((order_of(reader) == order));
      BOOST_TEST(read_all(reader).ok());
      BOOST_TEST(read_samples(reader, {301, 0, 299, 300, 200, 199, 301, 66, 67}).ok());
      BOOST_TEST((code_of(reader.read_batch(0, {302}, {})) == errc::invalid_argument));
      std::vector<std::byte> all(302 * sample_bytes);
      reader.load(0, all).get();
      BOOST_TEST((all == pattern(all.size(), 1)));
      auto compared = reader.verify().get();
      BOOST_TEST(compared.samples == 302u);
      BOOST_TEST(compared.damaged == 0u);
      for (std::uint64_t world : {1, 3})
        check_epoch(reader, world);
    }
    auto listed = of.c.working_sets("s").get();
    BOOST_TEST_REQUIRE(listed.found.size() == 1u);
    BOOST_TEST((static_cast<const set_info&>(listed.found.front()) == info));
    together.unload().get();
    of.set.unload().get();
    BOOST_TEST(of.at.frees_all());
  }
}

BOOST_AUTO_TEST_CASE(samples_that_are_there_are_not_appended_again) {
  appended_set of;
  auto info = of.append_both();
  for (auto& file : {of.a, of.b, of.d}) {
    auto again = of.set.append({file}).get();
    BOOST_TEST(again.existed);
    BOOST_TEST((again.set == info));
  }
  auto loaded = of.set.preload({of.a}).get();
  BOOST_TEST(loaded.existed);
  BOOST_TEST((loaded.set == info));
  // The same files together are others.
  BOOST_TEST(of.set.append({of.b, of.d}).get().set.samples == 404u);
}

// As the ranks of a job do.
BOOST_AUTO_TEST_CASE(appends_at_once_wait_for_each_other) {
  appended_set of;
  std::atomic<int> made = 0, done = 0, told = 0;
  std::vector<std::thread> threads;
  threads.reserve(6);
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      append_options options;
      options.progress = [&](auto, auto) { return ++told > 0; };
      auto c = of.at.connect();
      auto outcome = c.working_set("s").append({t % 2 == 0 ? of.b : of.d}, options);
      done += outcome.result().has_value();
      made += outcome.result() && !outcome.get().existed;
    });
  for (auto& t : threads)
    t.join();
  BOOST_TEST(done == 6);
  BOOST_TEST(made == 2);
  BOOST_TEST(told >= 2);
  auto reader = of.set.open().get();
  BOOST_TEST(reader.info().samples == 302u);
  BOOST_TEST(reader.verify().get().damaged == 0u);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_refused_and_leaves_nothing) {
  appended_set of;
  auto used = of.at.used_bytes();
  auto refused =
    [&](const std::string& name, const std::string& file, errc code, const std::string& words) {
      auto asked = of.c.working_set(name).append({file});
      BOOST_TEST((code_of(asked) == code), words_of(asked));
      BOOST_TEST(words_of(asked).find(words) != std::string::npos, words_of(asked));
    };
  refused("t", of.b, errc::not_found, "preload it");
  refused("s", of.b + "x", errc::not_found, "b.npyx");
  std::vector<std::byte> bytes(800);
  auto other = write_npy(of.at.dir.path() + "/o.npy", {"x", dtype::f32, {2, 10, 10}}, bytes);
  refused("s", other, errc::invalid_argument, "U8[10, 100]");
  preload_options window;
  window.window_bytes = 1 << 20;
  of.c.working_set("w").preload({of.a}, window).get();
  refused("w", of.b, errc::invalid_argument, "window");
  of.c.working_set("w").unload().get();
  append_options folders;
  folders.labels = "folders";
  auto numbered = of.set.append({of.b}, folders);
  BOOST_TEST((code_of(numbered) == errc::invalid_argument));
  BOOST_TEST(words_of(numbered).find("CSV") != std::string::npos, words_of(numbered));
  refused("s", piece(of.at, "large.npy", 0, 30'000), errc::no_space, "data.capacity");
  BOOST_TEST(soon([&] { return of.at.used_bytes() == used; }));
  BOOST_TEST(of.set.open().get().info().samples == 200u);
}

BOOST_AUTO_TEST_CASE(who_has_the_set_open_goes_on_with_what_it_has) {
  for (bool maps : {true, false}) {
    appended_set of{maps};
    auto before = of.set.open().get();
    auto loader = before.load_batches({}).value();
    for (int i = 0; i < 10; ++i)
      BOOST_TEST_REQUIRE(loader.next().get().has_value());
    of.append_both();
    BOOST_TEST(before.info().samples == 200u);
    BOOST_TEST(read_all(before).ok());
    check_epoch(before, 2);
    auto after = of.set.open().get();
    BOOST_TEST(read_all(after).ok());
    auto next = after.load_batches({}).value();
    auto bad = next.seek(loader.state());
    BOOST_TEST((bad.code() == errc::invalid_argument), bad.to_string());
    of.set.unload().get();
    BOOST_TEST(read_all(before).ok());
    BOOST_TEST(read_all(after).ok());
  }
}

BOOST_AUTO_TEST_CASE(an_append_that_ends_early_leaves_nothing) {
  appended_set of;
  auto used = of.at.used_bytes();
  auto path = piece(of.at, "more.npy", 200, 3000);
  append_options options;
  options.progress = [](auto, auto) { return false; };
  BOOST_TEST((code_of(of.set.append({path}, options)) == errc::cancelled));
  BOOST_TEST(soon([&] { return of.at.used_bytes() == used; }));
  for (auto wait : {0ms, 1ms, 3ms, 10ms}) {
    std::optional<client> gone = of.at.connect();
    auto appending = gone->working_set("s").append({path});
    std::this_thread::sleep_for(wait);
    gone.reset();
    auto samples = of.set.open().get().info().samples;
    BOOST_TEST((samples == 200u || samples == 3200u));
    if (samples > 200)
      break; // it was faster
  }
  BOOST_TEST(of.set.append({path}).get().set.samples == 3200u);
  BOOST_TEST(read_all(of.set.open().get()).ok());
  of.set.unload().get();
  BOOST_TEST(of.at.frees_all());
}

BOOST_AUTO_TEST_CASE(samples_of_varying_sizes_are_appended) {
  for (std::uint32_t servers : {1, 3}) {
    data_cluster at{3};
    std::vector<std::byte> joined;
    for (std::uint64_t i = 0; i < 40; ++i) {
      auto directory = at.dir.path() + (i < 25 ? "/first" : "/second");
      std::filesystem::create_directories(directory);
      auto bytes = pattern(i * 37 % 501, i);
      joined.insert(joined.end(), bytes.begin(), bytes.end());
      std::ofstream{fmt::format("{}/{:02}", directory, i), std::ios::binary}.write(
        reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    auto set = at.connect().working_set("files");
    set.preload({at.dir.path() + "/first"}, among(servers)).get();
    BOOST_TEST(set.append({at.dir.path() + "/second"}).get().set.samples == 40u);
    for (bool maps : {true, false}) {
      auto reader = at.connect(maps).working_set("files").open().get();
      auto sizes = reader.sizes(0, all_ids(40)).get();
      for (std::uint64_t i = 0; i < 40; ++i)
        BOOST_TEST(sizes[i] == i * 37 % 501);
      std::vector<std::byte> into(joined.size());
      reader.load(0, into).get();
      BOOST_TEST((into == joined));
      BOOST_TEST(reader.verify().get().damaged == 0u);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_a_node_has_lost_is_brought_back) {
  for (std::size_t lost : {1, 2, 0}) {
    appended_set of;
    auto info = of.append_both();
    of.at.stop(of.nodes[lost]);
    of.at.start(of.nodes[lost]);
    // An append of the same files brings back the parts of a preload, too.
    auto preloaded = soon([&] {
      return lost > 0 ? of.set.append({of.a}).result().has_value()
                      : of.set.preload({of.a}, of.servers).result().has_value();
    });
    BOOST_TEST(preloaded);
    if (lost > 0) {
      auto opened = of.set.open();
      BOOST_TEST((code_of(opened) == errc::not_found), words_of(opened));
      BOOST_TEST(words_of(opened).find("append 1") != std::string::npos, words_of(opened));
      auto reached = of.set.access().get().parts;
      BOOST_TEST_REQUIRE(reached.size() == 9u); // of three nodes and two appends
      BOOST_TEST((reached[lost].why.ok() && reached[3 + lost].why.code() == errc::not_found));
      BOOST_TEST(of.set.append({of.b}).get().existed);
      BOOST_TEST(of.set.append({of.d}).get().existed);
      BOOST_TEST((of.set.describe().get() == info));
    } else {
      BOOST_TEST(of.set.open().get().info().samples == 200u);
      BOOST_TEST(!of.set.append({of.b}).get().existed);
      BOOST_TEST(!of.set.append({of.d}).get().existed);
    }
    {
      auto reader = of.set.open().get();
      BOOST_TEST(reader.info().identity == info.identity);
      BOOST_TEST(read_all(reader).ok());
      BOOST_TEST(reader.verify().get().damaged == 0u);
    }
    of.set.unload().get();
    BOOST_TEST(of.at.frees_all());
  }
}

BOOST_AUTO_TEST_CASE(files_stand_for_a_lost_server) {
  for (std::size_t lost : {0, 2}) {
    appended_set of{false};
    of.append_both();
    auto reader = of.set.open(of.files()).get();
    auto some = of.files();
    some.appended.resize(1);
    auto without = of.set.open(some).get();
    of.at.stop(of.nodes[lost]);
    BOOST_TEST(read_all(reader).ok());
    BOOST_TEST(reader.samples_from_files() >= 99u);
    std::vector<std::byte> all(302 * sample_bytes);
    reader.load(0, all).get();
    BOOST_TEST((all == pattern(all.size(), 1)));
    check_epoch(reader, 2);
    // Those of the last append have no files.
    BOOST_TEST(read_samples(without, all_ids(300)).ok());
    if (lost == 0)
      BOOST_TEST(!read_samples(without, {300}).ok());
    if (lost > 0)
      BOOST_TEST(read_all(of.set.open(of.files()).get()).ok());
    of.at.start(of.nodes[lost]);
    BOOST_TEST(of.restores());
    BOOST_TEST(soon([&] {
      auto before = reader.samples_from_files();
      return read_all(reader).ok() && reader.samples_from_files() == before;
    }));
  }
}

// Damage that an append has found while it read samples is known to those that append again.
BOOST_AUTO_TEST_CASE(damaged_files_are_left_out_of_an_append) {
  data_cluster at{3};
  auto npz = [&](const std::string& name, bool damaged) {
    return write_npz(at.dir.path() + "/" + name + ".npz", 90, damaged);
  };
  std::vector<std::string> more{npz("b", true), npz("c", false)};
  auto c = at.connect();
  auto set = c.working_set("s");
  auto first = npz("a", false);
  auto nodes = set.preload({first}, among(3)).get().set.division.nodes;
  append_options skips;
  skips.on_error = damage_policy::skip;
  auto made = set.append(more, skips).get();
  BOOST_TEST(!made.existed);
  BOOST_TEST(made.set.samples == 180u);
  BOOST_TEST_REQUIRE(made.skipped.size() == 1u);
  auto again = set.append(more, skips).get();
  BOOST_TEST(again.existed);
  BOOST_TEST((again.set == made.set));
  BOOST_TEST_REQUIRE(again.skipped.size() == 1u);
  BOOST_TEST(again.skipped[0].path == more[0]);
  BOOST_TEST((code_of(set.append(more)) == errc::already_exists));
  open_options with;
  with.files = {first};
  with.appended = {{skips, more}};
  with.on_error = damage_policy::skip;
  auto reader = at.connect(false).working_set("s").open(with).get();
  at.stop(nodes[2]);
  std::vector<std::byte> all(180 * sample_bytes), half = pattern(90 * sample_bytes, 1);
  reader.load(0, all).get();
  BOOST_TEST(std::equal(half.begin(), half.end(), all.begin()));
  BOOST_TEST(std::equal(half.begin(), half.end(), all.begin() + 90 * sample_bytes));
  BOOST_TEST(reader.samples_from_files() == 60u);
  at.start(nodes[2]);
  BOOST_TEST(soon(
    [&] { return set.preload({first}, among(3)).result() && set.append(more, skips).result(); }));
  BOOST_TEST(set.open().get().verify().get().samples == 180u);
}

BOOST_AUTO_TEST_CASE(appended_samples_make_room_with_their_set) {
  data_node at{4 * mib, [](config::settings& s) {
                 s.options.edit<actors::data_options>().when_full =
                   storage::samples::room_policy::evict;
               }};
  auto set = at.direct->working_set("s");
  set.preload({at.file("a.npy", 900)}).get();
  set.append({at.file("b.npy", 900, 2)}).get();
  BOOST_TEST(at.used_bytes() == 2 * mib);
  {
    auto reader = set.open().get();
    auto refused = at.direct->working_set("t").preload({at.file("c.npy", 2500)});
    BOOST_TEST((code_of(refused) == errc::no_space));
  }
  auto path = at.file("c.npy", 2500);
  std::string why;
  auto fits = [&] {
    auto asked = at.direct->working_set("t").preload({path});
    why = asked.result() ? "" : words_of(asked);
    return why.empty();
  };
  BOOST_TEST(soon(fits), why);
  BOOST_TEST((code_of(set.open()) == errc::not_found));
  BOOST_TEST(at.used_bytes() == 3 * mib);
}

BOOST_AUTO_TEST_SUITE_END()
