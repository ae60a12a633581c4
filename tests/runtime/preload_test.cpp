// Tests preloads: which files make a set, and what is left of a preload that fails, is cancelled,
// or finds damage.
#include <millrace/tests/runtime/data_node.hpp>
#include <millrace/tests/support/crafted_tar.hpp>
#include <millrace/tests/support/crafted_zip.hpp>
#include <millrace/tests/support/made_images.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(preloads)

BOOST_AUTO_TEST_CASE(a_set_is_preloaded_once) {
  data_node at;
  auto path = at.file("a.npy", 2000);
  auto first = at.connect().working_set("s").preload({path}).get();
  auto again = at.connect().working_set("s").preload({path}).get();
  BOOST_TEST((first.set == again.set));
  BOOST_TEST(!first.existed);
  BOOST_TEST(again.existed);
  auto other = at.direct->working_set("s").preload({at.file("b.npy", 2000)});
  BOOST_TEST((code_of(other) == errc::already_exists), words_of(other));
  BOOST_TEST(at.used_bytes() == 2 * mib);
  auto sets = at.direct->working_sets().get();
  BOOST_TEST_REQUIRE(sets.found.size() == 1u);
  BOOST_TEST(sets.found[0].name == "s");
  BOOST_TEST(sets.found[0].provider == "n0");
  auto status = at.direct->status().get().front().value();
  BOOST_TEST(status.data.capacity_bytes == 8 * mib);
  BOOST_TEST(status.data.sets == 1u);
  BOOST_TEST(status.data.preloads == 1u);
}

BOOST_AUTO_TEST_CASE(a_preload_that_fails_leaves_nothing) {
  data_node at;
  auto set = at.connect().working_set("s");
  auto path = at.file("a.npy", 6000);
  preload_options stops;
  stops.progress = [](std::uint64_t done, std::uint64_t) { return done < 4'000'000; };
  auto stopped = set.preload({path}, stops);
  BOOST_TEST((code_of(stopped) == errc::cancelled), words_of(stopped));
  BOOST_TEST(at.frees_all_but(0));
  auto missing = set.preload({at.dir.path() + "/none.npy"});
  BOOST_TEST((code_of(missing) == errc::not_found), words_of(missing));
  BOOST_TEST(words_of(missing).find("none.npy") != std::string::npos, words_of(missing));
  BOOST_TEST((code_of(set.preload({})) == errc::invalid_argument));
  BOOST_TEST((code_of(set.preload({at.dir.path() + "/n0.sock"})) != errc::ok));
  // Whenever it is cancelled, nothing of it is left a little later.
  for (auto wait : {0us, 200us, 1000us, 5000us, 20'000us}) {
    auto cancelled = at.connect().working_set("t").preload({path});
    std::this_thread::sleep_for(wait);
    cancelled.cancel();
    if (code_of(cancelled) == errc::ok)
      at.direct->working_set("t").unload().get();
    auto until = std::chrono::steady_clock::now() + 20s;
    auto fits = [&] { return set.preload({path}).result().has_value(); };
    while (!fits() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(1ms);
    BOOST_TEST(set.describe().get().samples == 6000u);
    set.unload().get();
  }
}

// Also at the moment at which the set becomes visible.
BOOST_AUTO_TEST_CASE(a_preload_that_was_cancelled_is_no_set) {
  data_node at;
  auto path = at.file("a.npy", 10);
  auto set = at.connect().working_set("s");
  auto begun = std::chrono::steady_clock::now();
  set.preload({path}).get();
  auto takes = std::chrono::steady_clock::now() - begun;
  set.unload().get();
  std::mt19937_64 random{1};
  for (int round = 0; round < 300; ++round) {
    auto preloading = set.preload({path});
    std::this_thread::sleep_for(takes * (random() % 100) / 100);
    preloading.cancel();
    auto& outcome = preloading.result();
    if (outcome && !outcome->existed)
      set.unload().get();
  }
  // Those that were cancelled end a little later. Then one that nobody cancels finds no set.
  auto until = std::chrono::steady_clock::now() + 20s;
  auto is_first = [&] {
    auto outcome = set.preload({path}).result();
    return outcome && !outcome->existed;
  };
  while (!is_first() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  BOOST_TEST(set.describe().get().samples == 10u);
  set.unload().get();
  BOOST_TEST(at.frees_all_but(0));
}

// The callback may look at what the thread that cancels has on its stack.
BOOST_AUTO_TEST_CASE(no_callback_runs_after_a_cancellation) {
  data_node at;
  auto path = at.file("a.npy", 6000);
  auto set = at.connect().working_set("s");
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> alive = true, late = false;
    preload_options options;
    options.progress = [&](std::uint64_t, std::uint64_t) {
      if (!alive)
        late = true;
      return true;
    };
    auto preloading = set.preload({path}, options);
    std::this_thread::sleep_for(round * 100us);
    preloading.cancel();
    alive = false;
    std::this_thread::sleep_for(1ms);
    BOOST_TEST(!late);
    static_cast<void>(set.unload().result());
  }
}

BOOST_AUTO_TEST_CASE(a_set_that_is_being_preloaded_is_not_there_yet) {
  data_node at;
  auto path = at.file("a.npy", 6000);
  std::atomic<bool> began = false, go_on = false;
  preload_options slow;
  slow.progress = [&](std::uint64_t, std::uint64_t) {
    began = true;
    while (!go_on)
      std::this_thread::sleep_for(1ms);
    return true;
  };
  auto first = at.connect().working_set("s").preload({path}, slow);
  while (!began)
    std::this_thread::sleep_for(1ms);
  auto waits = at.direct->working_set("s").preload({path});
  BOOST_TEST((code_of(at.direct->working_set("s").open()) == errc::not_found));
  BOOST_TEST(!waits.ready());
  go_on = true;
  BOOST_TEST(first.get().set.samples == 6000u);
  BOOST_TEST(waits.get().existed);
}

// A large sample is reported, and given up, piece by piece.
BOOST_AUTO_TEST_CASE(a_preload_of_one_large_sample_can_be_cancelled) {
  data_node at{32 * mib};
  auto path = at.dir.path() + "/large";
  std::ofstream{path}.close();
  std::filesystem::resize_file(path, 24 * mib);
  std::vector<std::uint64_t> reported;
  preload_options options;
  options.fields = {"x"};
  options.progress = [&](std::uint64_t done, std::uint64_t) {
    reported.push_back(done);
    return reported.size() < 2;
  };
  auto set = at.connect().working_set("s");
  BOOST_TEST((code_of(set.preload({path}, options)) == errc::cancelled));
  BOOST_TEST((reported == std::vector{4 * mib, 8 * mib}));
  BOOST_TEST(at.frees_all_but(0));
}

BOOST_AUTO_TEST_CASE(files_of_other_names_are_another_set) {
  data_node at;
  auto folder = at.dir.path() + "/files";
  std::filesystem::create_directories(folder + "/b");
  std::ofstream{folder + "/b/1"} << "one";
  auto set = at.connect().working_set("s");
  preload_options labels;
  labels.labels = "folders";
  set.preload({folder}, labels).get();
  BOOST_TEST(set.preload({folder}, labels).get().existed);
  std::filesystem::create_directories(folder + "/a"); // so b has the number 1
  auto other = set.preload({folder}, labels);
  BOOST_TEST((code_of(other) == errc::already_exists), words_of(other));
  set.unload().get();
  set.preload({folder + "/b/1"}).get();
  auto same = set.preload({folder + "/b/../b/1"});
  BOOST_TEST((code_of(same) == errc::already_exists), words_of(same));
}

BOOST_AUTO_TEST_CASE(samples_of_tar_archives_are_preloaded) {
  data_node at;
  auto archive = at.dir.path() + "/x.tar";
  std::ofstream{archive, std::ios::binary} << millrace::testing::crafted_tar(
    {{"a.txt", "first"}, {"a.cls", "4"}, {"b.txt", "damaged"}, {"c.txt", "last"}, {"c.cls", "-5"}});
  auto set = at.connect().working_set("s");
  auto strict = set.preload({archive});
  BOOST_TEST((code_of(strict) == errc::corrupt_data), words_of(strict));
  preload_options skips;
  skips.on_error = damage_policy::skip;
  auto done = set.preload({archive}, skips).get();
  BOOST_TEST_REQUIRE(done.skipped.size() == 1u);
  BOOST_TEST(done.skipped[0].path == archive + ":b");
  auto reader = set.open().get();
  BOOST_TEST_REQUIRE(reader.info().fields.size() == 3u); // cls, txt, key
  std::vector<std::int64_t> classes(2);
  reader.load(0, std::as_writable_bytes(std::span{classes})).get();
  BOOST_TEST((classes == std::vector<std::int64_t>{4, -5}));
  std::string texts(9, '\0');
  reader.read_batch(1, {1, 0}, std::as_writable_bytes(std::span{texts})).get();
  BOOST_TEST(texts == "lastfirst");
  BOOST_TEST(reader.verify().get().damaged == 0u);
  BOOST_TEST(set.preload({archive}, skips).get().existed);
}

BOOST_AUTO_TEST_CASE(images_are_decoded_while_they_are_preloaded) {
  data_node at;
  auto folder = at.dir.path() + "/photos";
  std::filesystem::create_directories(folder);
  for (std::uint32_t i = 0; i < 20; ++i)
    std::ofstream{folder + "/" + std::to_string(i + 10), std::ios::binary}
      << millrace::testing::png_of(millrace::testing::made_pixels(30, 40, i), 30, 40);
  std::ofstream{folder + "/15"} << "damaged";
  auto set = at.connect().working_set("s");
  preload_options options;
  options.fields = {"x"};
  options.decode = {"x=rgb"};
  auto strict = set.preload({folder}, options);
  BOOST_TEST((code_of(strict) == errc::corrupt_data), words_of(strict));
  BOOST_TEST(at.frees_all_but(0));
  options.on_error = damage_policy::skip;
  auto done = set.preload({folder}, options).get();
  BOOST_TEST(done.set.samples == 19u);
  BOOST_TEST_REQUIRE(done.skipped.size() == 1u);
  BOOST_TEST(done.skipped[0].path == folder + "/15");
  auto reader = set.open().get();
  BOOST_TEST((reader.info().fields[0].sample == tensor_desc{"x", dtype::u8, {30, 40, 3}}));
  std::string image(30 * 40 * 3, '\0');
  reader.read(0, 6, std::as_writable_bytes(std::span{image})).get(); // 5 is left out
  BOOST_TEST((image == millrace::testing::made_pixels(30, 40, 7)));
  BOOST_TEST(set.preload({folder}, options).get().existed);
  options.decode = {"x=rgb:30x40"};
  auto other = set.preload({folder}, options);
  BOOST_TEST((code_of(other) == errc::already_exists), words_of(other));
}

BOOST_AUTO_TEST_CASE(names_of_kinds_and_policies_are_read) {
  BOOST_TEST((parse_preload_kind("automatic").value() == preload_kind::automatic));
  BOOST_TEST((parse_preload_kind("arrays").value() == preload_kind::arrays));
  BOOST_TEST((parse_preload_kind("files").value() == preload_kind::files));
  BOOST_TEST((parse_damage_policy("fail").value() == damage_policy::fail));
  BOOST_TEST((parse_damage_policy("skip").value() == damage_policy::skip));
  for (auto* text : {"", "Files", "file", "skip"})
    BOOST_TEST((parse_preload_kind(text).error().code() == errc::invalid_argument), text);
  for (auto* text : {"", "Skip", "skipped", "files"})
    BOOST_TEST((parse_damage_policy(text).error().code() == errc::invalid_argument), text);
}

BOOST_AUTO_TEST_CASE(a_damaged_file_is_fatal_or_left_out) {
  data_node at;
  auto npz = [&](const std::string& name, bool damaged) {
    return write_npz(at.dir.path() + "/" + name, 1000, damaged);
  };
  std::vector<std::string> paths = {
    npz("a.npz", false), npz("b.npz", true), npz("c.npz", false), npz("d.npz", true)};
  auto set = at.connect().working_set("s");
  auto fatal = set.preload(paths);
  BOOST_TEST((code_of(fatal) == errc::corrupt_data), words_of(fatal));
  BOOST_TEST(words_of(fatal).find("b.npz") != std::string::npos, words_of(fatal));
  BOOST_TEST(at.frees_all_but(0));
  preload_options skips;
  skips.on_error = damage_policy::skip;
  auto loaded = set.preload(paths, skips).get();
  BOOST_TEST(!loaded.existed);
  BOOST_TEST(loaded.set.samples == 2000u);
  BOOST_TEST_REQUIRE(loaded.skipped.size() == 2u);
  BOOST_TEST(loaded.skipped[0].path.ends_with("b.npz"));
  BOOST_TEST((loaded.skipped[0].why.code() == errc::corrupt_data));
  BOOST_TEST(loaded.skipped[1].path.ends_with("d.npz"));
  auto reader = set.open().get();
  check_batch(reader, {0, 999});
  std::vector<std::byte> into(1000);
  reader.read(0, 1000, into).get();
  BOOST_TEST(is_sample(into, 0));
  // What was found late is left out again, and named.
  BOOST_TEST((loaded.set.left_out == std::vector{paths[1], paths[3]}));
  auto again = set.preload(paths, skips).get();
  BOOST_TEST(again.existed);
  BOOST_TEST_REQUIRE(again.skipped.size() == 2u);
  BOOST_TEST(again.skipped[1].path == paths[3]);
  BOOST_TEST((code_of(set.preload(paths)) == errc::already_exists));
  auto none = set.preload({paths[1]}, skips);
  BOOST_TEST((code_of(none) != errc::ok));
}

// A set without damaged files stays when it is wanted so, as any other one does.
BOOST_AUTO_TEST_CASE(a_set_that_lacks_damaged_files_stays) {
  data_node at;
  std::vector<std::string> paths = {
    write_npz(at.dir.path() + "/a.npz", 100, false),
    write_npz(at.dir.path() + "/b.npz", 100, true)};
  preload_options skips;
  skips.on_error = damage_policy::skip;
  skips.while_used = true;
  {
    auto first = at.connect();
    BOOST_TEST(first.working_set("s").preload(paths, skips).get().set.while_used);
    skips.while_used = false;
    auto stays = at.direct->working_set("s").preload(paths, skips).get();
    BOOST_TEST((stays.existed && !stays.set.while_used));
  }
  BOOST_TEST(at.direct->working_set("s").describe().get().samples == 100u);
  // Files of as many samples are another set if others of them are damaged.
  at.direct->working_set("s").unload().get();
  std::vector<std::string> three = paths;
  three.push_back(write_npz(at.dir.path() + "/c.npz", 100, false));
  auto without_b = at.direct->working_set("s").preload(three, skips).get();
  BOOST_TEST((without_b.set.left_out == std::vector{paths[1]}));
}

BOOST_AUTO_TEST_SUITE_END()
