// Tests flushing: steps arrive whole, `latest` moves forward only, old steps go, and nothing is
// written twice.
#include <millrace/storage/archive/origin.hpp>
#include <millrace/storage/flush/flushed_step.hpp>
#include <millrace/storage/flush/manifest.hpp>
#include <millrace/storage/flush/model_directory.hpp>
#include <millrace/storage/flush/version_flusher.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/opened_in_memory.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/tests/support/small_disk.hpp>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::storage;
using namespace millrace::storage::archive;
using namespace millrace::storage::flush;

namespace {

version_flusher flusher_of(
  const scratch_directory& dir, std::uint32_t keep = 2, std::uint32_t read_deadline_ms = 60'000) {
  auto made = version_flusher::open(
    {.directory = dir.path(), .keep = keep, .read_deadline_ms = read_deadline_ms});
  BOOST_TEST_REQUIRE(made.has_value(), why(made));
  return std::move(*made);
}

flush_request request(
  std::uint32_t rank, std::uint32_t world, std::uint64_t step, std::uint64_t saved_at,
  const std::string& model = "model") {
  return {
    model,
    rank,
    world,
    {{"tensor", std::to_string(rank)}},
    std::make_shared<opened_in_memory>(shard_at(rank, step), step, saved_at)};
}

result<flush_receipt> flush_version(const version_flusher& subject, const flush_request& what) {
  return subject.flush(what, std::atomic<bool>{false});
}

std::uint64_t latest_of(const scratch_directory& dir, const std::string& model = "model") {
  auto opened = open_flushed(dir.path(), model);
  BOOST_TEST_REQUIRE(opened.has_value(), why(opened));
  auto verified = opened->verify();
  BOOST_TEST(verified.ok(), verified.to_string());
  return opened->manifest().step;
}

std::vector<std::uint64_t> whole_steps(const scratch_directory& dir) {
  std::vector<std::uint64_t> steps;
  for (auto& place : model_directory::at(dir.path(), "model").steps())
    if (place.whole)
      steps.push_back(place.step);
  return steps;
}

} // namespace

BOOST_AUTO_TEST_SUITE(flushing)

BOOST_AUTO_TEST_CASE(a_step_is_there_when_all_its_shards_are) {
  scratch_directory dir;
  auto subject = flusher_of(dir);
  auto first = flush_version(subject, request(1, 2, 10, 100));
  BOOST_TEST_REQUIRE(first.has_value(), why(first));
  BOOST_TEST(!first->whole);
  BOOST_TEST((open_flushed(dir.path(), "model").error().code() == errc::not_found));
  auto second = flush_version(subject, request(0, 2, 10, 101));
  BOOST_TEST_REQUIRE(second.has_value(), why(second));
  BOOST_TEST(second->whole);
  BOOST_TEST(second->is_latest);
  BOOST_TEST(latest_of(dir) == 10u);
  auto step = open_flushed(dir.path(), "model", 10);
  BOOST_TEST_REQUIRE(step.has_value(), why(step));
  for (std::uint32_t rank : {0, 1}) {
    auto shard = step->open_shard(rank);
    BOOST_TEST_REQUIRE(shard.has_value(), why(shard));
    BOOST_TEST(difference(**shard, shard_at(rank, 10)) == "");
    BOOST_TEST((step->describe(rank)->axes == text_pairs{{"tensor", std::to_string(rank)}}));
  }
  BOOST_TEST((step->open_shard(2).error().code() == errc::not_found));
  BOOST_TEST((open_flushed(dir.path(), "model", 11).error().code() == errc::not_found));
}

BOOST_AUTO_TEST_CASE(a_full_file_system_costs_the_step_and_no_older_one) {
  small_disk disk{8u << 20};
  if (!disk.mounted())
    return millrace::testing::skipped("a full file system: needs root and mount");
  scratch_directory dir{disk.path()};
  auto subject = flusher_of(dir);
  BOOST_TEST(flush_version(subject, request(0, 1, 10, 100)).has_value());
  disk.fill();
  auto refused = flush_version(subject, request(0, 1, 20, 200));
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::no_space), why(refused));
  BOOST_TEST(latest_of(dir) == 10u);
  BOOST_TEST(!std::filesystem::exists(dir.path() + "/model/step-20"));
  disk.free();
  BOOST_TEST(flush_version(subject, request(0, 1, 30, 300)).has_value());
  BOOST_TEST(latest_of(dir) == 30u);
}

BOOST_AUTO_TEST_CASE(latest_moves_forward_in_save_order_only) {
  scratch_directory dir;
  auto subject = flusher_of(dir, 3);
  BOOST_TEST(flush_version(subject, request(0, 1, 10, 100)).has_value());
  // The job went back to step 7 and saved it later.
  BOOST_TEST(flush_version(subject, request(0, 1, 7, 200)).has_value());
  BOOST_TEST(latest_of(dir) == 7u);
  // A late shard of an older save.
  auto late = flush_version(subject, request(0, 1, 9, 150));
  BOOST_TEST_REQUIRE(late.has_value());
  BOOST_TEST(late->whole);
  BOOST_TEST(!late->is_latest);
  BOOST_TEST(latest_of(dir) == 7u);
}

BOOST_AUTO_TEST_CASE(old_steps_go_and_latest_stays) {
  scratch_directory dir;
  auto subject = flusher_of(dir, 2);
  for (std::uint64_t step = 1; step <= 5; ++step)
    BOOST_TEST(flush_version(subject, request(0, 1, step, 100 + step)).has_value());
  BOOST_TEST((whole_steps(dir) == std::vector<std::uint64_t>{4, 5}));
  BOOST_TEST(latest_of(dir) == 5u);
  auto one = flusher_of(dir, 1);
  BOOST_TEST((whole_steps(dir) == std::vector<std::uint64_t>{5}));
}

BOOST_AUTO_TEST_CASE(half_a_step_goes_once_it_is_older_than_what_is_kept) {
  scratch_directory dir;
  auto subject = flusher_of(dir, 1);
  BOOST_TEST(flush_version(subject, request(0, 2, 3, 100)).has_value());
  auto half = dir.path() + "/model/step-3";
  BOOST_TEST(std::filesystem::exists(half));
  BOOST_TEST(flush_version(subject, request(0, 1, 4, 101)).has_value());
  BOOST_TEST(!std::filesystem::exists(half));
}

BOOST_AUTO_TEST_CASE(what_was_flushed_is_not_written_again) {
  scratch_directory dir;
  auto subject = flusher_of(dir);
  BOOST_TEST(flush_version(subject, request(0, 1, 3, 100)).has_value());
  auto file = dir.path() + "/model/step-3/rank-0-of-1.safetensors";
  auto before = std::filesystem::last_write_time(file);
  auto again = flush_version(subject, request(0, 1, 3, 100));
  BOOST_TEST_REQUIRE(again.has_value(), why(again));
  BOOST_TEST(again->whole);
  BOOST_TEST(again->is_latest);
  BOOST_TEST((std::filesystem::last_write_time(file) == before));
}

BOOST_AUTO_TEST_CASE(a_step_saved_again_never_replaces_the_whole_one_in_place) {
  scratch_directory dir;
  auto subject = flusher_of(dir, 3);
  BOOST_TEST(flush_version(subject, request(0, 2, 3, 100)).has_value());
  BOOST_TEST(flush_version(subject, request(1, 2, 3, 101)).has_value());
  auto again = request(0, 2, 3, 200);
  again.version = std::make_shared<opened_in_memory>(shard_at(0, 77), 3, 200);
  BOOST_TEST(flush_version(subject, again).has_value());
  BOOST_TEST(latest_of(dir) == 3u); // and verifies
  BOOST_TEST(open_flushed(dir.path(), "model")->manifest().saved_at_ns == 101u);
  BOOST_TEST(flush_version(subject, request(1, 2, 3, 201)).has_value());
  auto now = open_flushed(dir.path(), "model");
  BOOST_TEST(now->manifest().saved_at_ns == 201u);
  BOOST_TEST(difference(**now->open_shard(0), shard_at(0, 77)) == "");
  BOOST_TEST(open_flushed(dir.path(), "model", 3)->manifest().saved_at_ns == 201u);
}

BOOST_AUTO_TEST_CASE(a_start_finishes_what_another_process_left) {
  scratch_directory dir;
  {
    auto subject = flusher_of(dir);
    BOOST_TEST(flush_version(subject, request(0, 1, 3, 100)).has_value());
  }
  auto model = dir.path() + "/model";
  std::filesystem::remove(model + "/latest");
  std::filesystem::remove(model + "/step-3/manifest.json");
  std::ofstream{model + "/.millrace-writing-1-1"} << "x";
  auto subject = flusher_of(dir);
  BOOST_TEST(latest_of(dir) == 3u);
  BOOST_TEST(!std::filesystem::exists(model + "/.millrace-writing-1-1"));
}

BOOST_AUTO_TEST_CASE(names_of_models_stay_below_the_directory) {
  scratch_directory dir;
  auto subject = flusher_of(dir);
  std::string long_a(512, 'a'), long_b = long_a;
  long_b.back() = 'b';
  std::vector<std::string> names = {"a/b",   "..",  ".",    "../../x", ".hidden",
                                    "größe", "a b", long_a, long_b,    "a%2Fb"};
  std::uint64_t step = 0;
  for (auto& name : names)
    BOOST_TEST(flush_version(subject, request(0, 1, ++step, 100, name)).has_value(), name);
  step = 0;
  for (auto& name : names)
    BOOST_TEST(latest_of(dir, name) == ++step, name);
  auto entries = std::distance(
    std::filesystem::directory_iterator{dir.path()}, std::filesystem::directory_iterator{});
  BOOST_TEST(entries == static_cast<std::ptrdiff_t>(names.size()));
}

BOOST_AUTO_TEST_CASE(a_version_that_does_not_match_its_checksums_is_not_flushed) {
  scratch_directory dir;
  auto subject = flusher_of(dir);
  auto what = request(0, 1, 3, 100);
  auto version = std::make_shared<opened_in_memory>(shard_at(0, 3), 3, 100);
  version->damage();
  what.version = version;
  auto outcome = flush_version(subject, what);
  BOOST_TEST((outcome.error().code() == errc::corrupt_data));
  BOOST_TEST(outcome.error().detail().find("w.0, block 1") != std::string::npos, why(outcome));
  BOOST_TEST(whole_steps(dir).empty());
}

BOOST_AUTO_TEST_CASE(a_store_that_is_silent_is_given_up) {
  scratch_directory dir;
  auto subject = flusher_of(dir, 2, 20);
  auto what = request(0, 1, 3, 100);
  auto version = std::make_shared<opened_in_memory>(shard_at(0, 3), 3, 100);
  version->be_silent();
  what.version = version;
  BOOST_TEST((flush_version(subject, what).error().code() == errc::deadline_exceeded));
}

BOOST_AUTO_TEST_CASE(a_copy_that_shall_stop_leaves_nothing) {
  scratch_directory dir;
  auto subject = flusher_of(dir);
  auto outcome = subject.flush(request(0, 1, 3, 100), std::atomic<bool>{true});
  BOOST_TEST((outcome.error().code() == errc::cancelled), why(outcome));
  BOOST_TEST(whole_steps(dir).empty());
  BOOST_TEST(!std::filesystem::exists(dir.path() + "/model/step-3"));
}

BOOST_AUTO_TEST_CASE(a_manifest_does_not_grow_with_tensors) {
  scratch_directory dir;
  auto subject = flusher_of(dir);
  auto one = request(0, 1, 3, 100);
  tensors_in_memory many;
  for (int i = 0; i < 5000; ++i)
    many.add({"layer." + std::to_string(i) + ".weight", dtype::u8, {1}});
  one.version = std::make_shared<opened_in_memory>(many, 3, 100);
  BOOST_TEST(flush_version(subject, one).has_value());
  auto step = dir.path() + "/model/step-3";
  BOOST_TEST(std::filesystem::file_size(step + "/manifest.json") < 1000u);
  BOOST_TEST(std::filesystem::file_size(step + "/rank-0-of-1.json") > 5000u * 16);
  BOOST_TEST(latest_of(dir) == 3u); // and verifies
}

BOOST_AUTO_TEST_CASE(a_file_says_where_it_came_from) {
  scratch_directory dir;
  auto subject = flusher_of(dir);
  BOOST_TEST(flush_version(subject, request(1, 2, 3, 100)).has_value());
  auto file = open_archive(dir.path() + "/model/step-3/rank-1-of-2.safetensors");
  BOOST_TEST_REQUIRE(file.has_value(), why(file));
  auto metadata = (*file)->metadata();
  auto origin = take_origin(metadata);
  BOOST_TEST((origin == version_origin{"model", 3, 1, 2, {{"tensor", "1"}}}));
  BOOST_TEST((metadata == text_pairs{{"run", "seven"}}));
}

BOOST_AUTO_TEST_CASE(a_whole_step_does_not_change_while_another_process_takes_a_place_in_it) {
  scratch_directory dir;
  auto subject = flusher_of(dir);
  // Both shards are there, described; only the manifest is missing.
  BOOST_TEST(flush_version(subject, request(0, 2, 3, 100)).has_value());
  BOOST_TEST(flush_version(subject, request(1, 2, 3, 101)).has_value());
  auto model = model_directory::at(dir.path(), "model");
  std::filesystem::remove(model.path() + "/step-3/manifest.json");
  auto lock = ::open((model.path() + "/.lock").c_str(), O_RDWR | O_CLOEXEC);
  BOOST_TEST_REQUIRE(::flock(lock, LOCK_EX) == 0);
  // The process that holds the lock may be about to write the manifest.
  auto refused = model.place_for({0, "rank-0-of-2.safetensors", 0, 200}, 3, 2, 10);
  BOOST_TEST((refused.error().code() == errc::deadline_exceeded));
  BOOST_TEST(std::filesystem::exists(model.path() + "/step-3/rank-0-of-2.json"));
  ::close(lock);
}

BOOST_AUTO_TEST_CASE(a_damaged_file_or_manifest_is_noticed) {
  scratch_directory dir;
  auto subject = flusher_of(dir);
  BOOST_TEST(flush_version(subject, request(0, 1, 3, 100)).has_value());
  auto step = dir.path() + "/model/step-3";
  {
    std::fstream file{
      step + "/rank-0-of-1.safetensors", std::ios::in | std::ios::out | std::ios::binary};
    file.seekp(-1000, std::ios::end);
    char byte = static_cast<char>(file.peek());
    file.put(static_cast<char>(byte ^ 1));
  }
  auto opened = open_flushed(dir.path(), "model");
  BOOST_TEST_REQUIRE(opened.has_value(), why(opened));
  BOOST_TEST((opened->verify().code() == errc::corrupt_data));
  std::ofstream{step + "/rank-0-of-1.json"} << "{\"format\": 3}";
  BOOST_TEST((opened->open_shard(0).error().code() == errc::corrupt_data));
  std::ofstream{step + "/manifest.json"} << "{\"format\": 3}";
  BOOST_TEST((open_flushed(dir.path(), "model").error().code() == errc::corrupt_data));
  std::ofstream{dir.path() + "/model/latest"} << "../elsewhere\n";
  BOOST_TEST((open_flushed(dir.path(), "model").error().code() == errc::corrupt_data));
}

BOOST_AUTO_TEST_CASE(a_number_that_does_not_fit_is_refused) {
  flush_manifest whole{
    .model = "m",
    .step = 7,
    .world_size = 2,
    .saved_at_ns = 9,
    .shards = {{.rank = 1, .file = "f"}}};
  auto text = to_json(whole);
  BOOST_TEST(parse_flush_manifest(text).has_value());
  for (std::string number : {"-1", "4294967297", "1.5", "3e21", "1e999", "null"}) {
    auto changed = text;
    changed.replace(changed.find("\"world_size\": 2") + 14, 1, number);
    auto parsed = parse_flush_manifest(changed);
    BOOST_TEST_REQUIRE(!parsed, number);
    BOOST_TEST((parsed.error().code() == errc::corrupt_data), number);
  }
}

BOOST_AUTO_TEST_SUITE_END()
