// Tests what becomes of a RocksDB bucket whose index or segments were damaged or became shorter.
#include "rocksdb_world.hpp"

#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/held_completion.hpp>

#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;
using namespace millrace::testing::of_rocksdb;

BOOST_AUTO_TEST_SUITE(rocksdb_damage)

// What an orderly stop leaves.

namespace {

void cut(const std::filesystem::path& file, std::uint64_t size_bytes) {
  std::filesystem::resize_file(file, size_bytes);
}

std::vector<std::filesystem::path> index_files(const world& w) {
  std::vector<std::filesystem::path> found;
  for (auto& entry : std::filesystem::directory_iterator{w.options().path + "/index"})
    if (auto name = entry.path().filename().string();
        name.ends_with(".log") || name.ends_with(".sst") || name.starts_with("MANIFEST-"))
      found.push_back(entry.path());
  return found;
}

void copy_bucket(const world& from, const world& to) {
  std::filesystem::copy(
    from.options().path, to.options().path, std::filesystem::copy_options::recursive);
}

// Two models, the second one stored twice, and an orderly stop after each step.
void store_some(const world& w) {
  auto subject = w.open_or_fail();
  BOOST_REQUIRE(store(*subject, spec_of("a", {100}), 1));
  BOOST_REQUIRE(store(*subject, spec_of("b", {mib}), 2));
  subject.reset();
  subject = w.open_or_fail();
  BOOST_REQUIRE(store(*subject, spec_of("b", {mib}), 3));
}

bool holds_some(bucket& subject) {
  return check_model(subject, "a", 1).ok() && check_model(subject, "b", 3).ok();
}

// The message of the refusal; empty when the bucket opens with all models. Older models fail.
std::string said_of_damage(const world& w) {
  auto subject = open_rocksdb_bucket(w.options());
  if (subject) {
    BOOST_TEST(holds_some(**subject));
    return "";
  }
  BOOST_TEST((subject.error().code() == errc::corrupt_data), why(subject));
  return subject.error().detail();
}

} // namespace

BOOST_AUTO_TEST_CASE(an_index_that_became_shorter_after_an_orderly_stop_is_damaged) {
  world whole;
  store_some(whole);
  auto refused = 0;
  for (auto& file : index_files(whole))
    for (auto eighths = 0; eighths < 8; ++eighths) {
      world w;
      copy_bucket(whole, w);
      auto copy = w.options().path + "/index/" + file.filename().string();
      cut(copy, std::filesystem::file_size(file) * eighths / 8);
      refused += !said_of_damage(w).empty();
      // Nothing was changed by the refusal: with its bytes back the bucket opens.
      std::filesystem::copy_file(file, copy, std::filesystem::copy_options::overwrite_existing);
      BOOST_TEST(said_of_damage(w).empty(), file << " cut to " << eighths << " eighths");
    }
  BOOST_TEST(refused >= 8);
}

BOOST_AUTO_TEST_CASE(an_index_of_an_earlier_day_is_damaged_and_the_remedy_works) {
  world w;
  {
    auto subject = w.open_or_fail();
    BOOST_REQUIRE(store(*subject, spec_of("a", {100}), 1));
  }
  scratch_directory earlier;
  std::filesystem::copy(
    w.options().path + "/index", earlier.path() + "/index",
    std::filesystem::copy_options::recursive);
  store_some(w);
  std::filesystem::remove_all(w.options().path + "/index");
  BOOST_TEST((w.refusal() == errc::corrupt_data)); // no index at all
  std::filesystem::copy(
    earlier.path() + "/index", w.options().path + "/index",
    std::filesystem::copy_options::recursive);
  auto said = said_of_damage(w);
  kept_models kept;
  BOOST_TEST(salvage_rocksdb_bucket(w.options().path, kept).ok());
  BOOST_TEST((kept.names == std::vector<std::string>{"a"}));
  BOOST_REQUIRE(kept.lost.size() == 2u);
  BOOST_TEST(kept.lost[1].find("newer models") != std::string::npos, kept.lost[1]);
  auto mark = w.options().path + "/stopped";
  for (std::string words : std::vector<std::string>{
         "after a salvage", "remove " + mark, "gives up all newer ones", "models salvage"})
    BOOST_TEST(said.find(words) != std::string::npos, said);
  BOOST_REQUIRE(std::filesystem::remove(mark));
  auto subject = w.open_or_fail();
  BOOST_TEST(check_model(*subject, "a", 1).ok());
}

BOOST_AUTO_TEST_CASE(a_damaged_mark_of_a_stop_is_said) {
  world w;
  store_some(w);
  auto mark = w.options().path + "/stopped";
  cut(mark, std::filesystem::file_size(mark) - 3);
  auto said = said_of_damage(w);
  BOOST_TEST(said.find("remove " + mark) != std::string::npos, said);
}

BOOST_AUTO_TEST_CASE(an_index_that_became_shorter_after_a_kill_loses_nothing_silently) {
  world whole;
  {
    world running;
    store_some(running);
    auto subject = running.open_or_fail();
    BOOST_REQUIRE(store(*subject, spec_of("c", {100}), 4));
    copy_bucket(running, whole); // as a kill leaves it
  }
  auto refused = 0;
  for (auto has_mark : {true, false})
    for (auto& file : index_files(whole))
      for (auto size = std::filesystem::file_size(file); size-- > 0;) {
        if (!file.filename().string().starts_with("MANIFEST-"))
          break;
        world w;
        copy_bucket(whole, w);
        cut(w.options().path + "/index/" + file.filename().string(), size);
        if (!has_mark)
          BOOST_REQUIRE(std::filesystem::remove(w.options().path + "/stopped"));
        auto tables = index_files(w);
        auto subject = open_rocksdb_bucket(w.options());
        refused += !subject;
        auto is_whole = subject && holds_some(**subject) && check_model(**subject, "c", 4).ok();
        BOOST_TEST((is_whole || !subject), "cut to " << size << ", mark: " << has_mark);
        BOOST_TEST((subject || index_files(w) == tables));
      }
  BOOST_TEST(refused >= 8);
}

BOOST_AUTO_TEST_CASE(salvage_finds_tables_that_the_manifest_has_lost) {
  for (auto has_mark : {true, false}) {
    world w;
    {
      auto subject = w.open_or_fail();
      BOOST_REQUIRE(store(*subject, spec_of("large", {mib}), 1));
      BOOST_REQUIRE(store(*subject, spec_of("small", {900}), 3));
    }
    for (auto& file : index_files(w))
      if (file.filename().string().starts_with("MANIFEST-"))
        cut(file, 100);
    if (!has_mark)
      BOOST_REQUIRE(std::filesystem::remove(w.options().path + "/stopped"));
    auto refused = open_rocksdb_bucket(w.options());
    BOOST_REQUIRE(!refused);
    auto& said = refused.error().detail();
    BOOST_TEST((refused.error().code() == errc::corrupt_data), said);
    BOOST_TEST(said.find("millrace models salvage") != std::string::npos, said);
    BOOST_TEST(said.find("remove ") == std::string::npos, said); // nothing would be left
    auto verified = verify_rocksdb_bucket(w.options().path, [](auto&) {});
    BOOST_TEST(verified.detail() == said);
    kept_models kept;
    BOOST_TEST(salvage_rocksdb_bucket(w.options().path, kept).ok());
    BOOST_TEST((kept.names == std::vector<std::string>{"large", "small"}));
    BOOST_TEST(kept.wrong == 0u);
    BOOST_REQUIRE(kept.lost.size() == 1u);
    BOOST_TEST(kept.lost[0].find("index ends at change 0") != std::string::npos, kept.lost[0]);
  }
}

BOOST_AUTO_TEST_CASE(verify_says_what_a_start_says_of_an_index_that_is_gone) {
  for (std::string lost : {"index/CURRENT", "index"}) {
    world w;
    store_some(w);
    std::filesystem::remove_all(w.options().path + "/" + lost);
    BOOST_TEST(is_rocksdb_bucket(w.options().path));
    auto may_not_make = w.options();
    may_not_make.create_if_missing = false;
    auto said = verify_rocksdb_bucket(w.options().path, [](auto&) {}).detail();
    BOOST_TEST(said == open_rocksdb_bucket(may_not_make).error().detail());
    BOOST_TEST(said == said_of_damage(w));
    kept_models kept;
    auto salvaged = salvage_rocksdb_bucket(w.options().path, kept);
    if (lost == "index")
      BOOST_TEST(salvaged.detail() == said);
    BOOST_TEST((lost != "index" || said.find("/segments") != std::string::npos), said);
  }
}

BOOST_AUTO_TEST_CASE(an_index_without_any_change_is_verified) {
  world w;
  std::filesystem::create_directories(w.options().path + "/segments");
  auto path = w.options().path + "/index";
  BOOST_REQUIRE(
    rocksdb::index::open(path, true, *rocksdb::index_reserve::open(w.options().path, 0)));
  auto models = 0;
  auto outcome = verify_rocksdb_bucket(w.options().path, [&](auto&) { ++models; });
  BOOST_TEST(outcome.ok(), outcome.to_string());
  BOOST_TEST(models == 0);
  BOOST_TEST((w.refusal() == errc::ok));
}

BOOST_AUTO_TEST_CASE(salvage_finds_the_whole_models_of_a_directory_that_cannot_be_opened) {
  world w;
  {
    auto subject = w.open_or_fail();
    BOOST_REQUIRE(store(*subject, spec_of("large", {2 * mib, 100}), 1));
    BOOST_REQUIRE(store(*subject, spec_of("rotten", {mib}), 2));
    BOOST_REQUIRE(store(*subject, spec_of("small", {900}), 3));
    kept_models none;
    BOOST_TEST((salvage_rocksdb_bucket(w.options().path, none).code() == errc::busy));
    BOOST_TEST(subject->close(10'000).ok());
  }
  flip_in_segments(w, 2);
  kept_models whole;
  BOOST_TEST(salvage_rocksdb_bucket(w.options().path, whole).ok());
  BOOST_TEST((whole.names == std::vector<std::string>{"large", "small"}));
  BOOST_TEST(whole.wrong == 0u);
  BOOST_REQUIRE(whole.lost.size() == 1u);
  BOOST_TEST(whole.lost[0].find("model rotten: tensor t0") != std::string::npos);
  // Without the file that names the others, RocksDB opens nothing.
  std::ofstream{w.options().path + "/index/CURRENT"} << "nothing";
  BOOST_TEST((w.refusal() != errc::ok));
  kept_models repaired;
  BOOST_TEST(salvage_rocksdb_bucket(w.options().path, repaired).ok());
  BOOST_TEST((repaired.names == std::vector<std::string>{"large", "small"}));
  BOOST_TEST((w.refusal() != errc::ok)); // the directory is as it was
  BOOST_TEST(
    (salvage_rocksdb_bucket(w.directory.path(), repaired).code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()
