// Tests what the RocksDB bucket promises beyond the contract: reopening, refusing, reusing space.
#include "rocksdb_world.hpp"

#include <millrace/core/digest.hpp>
#include <millrace/core/model_graph.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/storage/rocksdb/stored_record.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/skipped.hpp>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;
using namespace millrace::testing::of_rocksdb;

BOOST_AUTO_TEST_SUITE(rocksdb_bucket)

BOOST_AUTO_TEST_CASE(models_survive_reopening) {
  world w;
  auto subject = w.open_or_fail();
  auto pinned = spec_of("pinned", {5 * mib + 3, 0, 7});
  pinned.metadata = {{"epoch", "3"}};
  pinned.pinned = true;
  auto version = store(*subject, pinned, 1);
  BOOST_REQUIRE(store(*subject, spec_of("small", {100, 50}), 2));
  BOOST_REQUIRE(store(*subject, spec_of("empty", {0}), 3));
  auto used = subject->stats().used_bytes;
  subject.reset();
  subject = w.open_or_fail();
  BOOST_TEST(subject->stats().models == 3u);
  BOOST_TEST(subject->stats().used_bytes == used);
  BOOST_TEST(check_model(*subject, "pinned", 1).ok());
  BOOST_TEST(check_model(*subject, "small", 2).ok());
  BOOST_TEST(check_model(*subject, "empty", 3).ok());
  auto record = (*open(*subject, "pinned"))->record();
  BOOST_TEST(record.version == *version);
  BOOST_TEST((record.spec == pinned));
}

BOOST_AUTO_TEST_CASE(what_describes_kept_models_is_counted_and_stays_when_the_bound_is_lowered) {
  world w;
  auto described = [&](bucket& subject) { return subject.stats().descriptions_bytes; };
  std::uint64_t before = 0, used = 0;
  {
    auto subject = w.open_or_fail();
    for (std::string name : {"a", "b", "c"})
      BOOST_REQUIRE(store(*subject, spec_of(name, {100, mib}), 1));
    before = described(*subject);
    used = subject->stats().used_bytes;
    BOOST_TEST(before > 0u);
  }
  w.descriptions_max_bytes = 1;
  auto subject = w.open_or_fail();
  BOOST_TEST(described(*subject) == before);
  BOOST_TEST(subject->stats().used_bytes == used);
  BOOST_TEST(check_model(*subject, "b", 1).ok());
  BOOST_TEST((store(*subject, spec_of("d", {1}), 1).error().code() == errc::no_space));
  BOOST_TEST(erase(*subject, "b").ok());
  BOOST_TEST(described(*subject) == before / 3 * 2);
}

BOOST_AUTO_TEST_CASE(the_version_counter_survives_erasing_and_reopening) {
  world w;
  auto subject = w.open_or_fail();
  auto first = store(*subject, spec_of("m", {10}), 1);
  BOOST_TEST(erase(*subject, "m").ok());
  subject.reset();
  subject = w.open_or_fail();
  BOOST_TEST(subject->stats().models == 0u);
  BOOST_TEST(*store(*subject, spec_of("m", {10}), 1) > *first);
}

BOOST_AUTO_TEST_CASE(pinning_and_layers_survive_reopening) {
  world w;
  auto subject = w.open_or_fail();
  auto id = random_id<layer_id>();
  compact_graph graph{{id}, {{}}};
  auto spec = spec_of("m", {10});
  spec.graph = encode_graph(graph);
  BOOST_REQUIRE(store(*subject, spec, 1, {{id, {std::byte{42}}}}));
  BOOST_REQUIRE(await<void>([&](auto done) { subject->pin("m", true, std::move(done)); }));
  subject.reset();
  subject = w.open_or_fail();
  BOOST_TEST((*open(*subject, "m"))->record().spec.pinned);
  BOOST_TEST(check_model(*subject, "m", 1).ok());
  auto resolve = [&] {
    return await<std::vector<described_layer>>(
      [&](auto done) { subject->resolve({id}, std::move(done)); });
  };
  auto found = resolve();
  BOOST_REQUIRE(found);
  BOOST_TEST((found->at(0).description == std::vector{std::byte{42}}));
  BOOST_TEST(erase(*subject, "m").ok());
  subject.reset();
  subject = w.open_or_fail();
  BOOST_TEST(!resolve());
}

BOOST_AUTO_TEST_CASE(a_start_that_is_refused_changes_nothing) {
  world w;
  auto subject = w.open_or_fail();
  auto id = random_id<layer_id>();
  auto spec = spec_of("m", {mib});
  spec.graph = encode_graph(compact_graph{{id}, {{}}});
  BOOST_REQUIRE(store(*subject, spec, 1, {{id, {std::byte{42}}}}));
  BOOST_REQUIRE(store(*subject, spec_of("n", {mib}), 2));
  subject.reset();
  auto segments = w.options().path + "/segments";
  for (auto round = 0; round < 2; ++round) {
    std::filesystem::rename(segments, segments + "-away");
    BOOST_TEST((w.refusal() == errc::corrupt_data));
    std::filesystem::remove_all(segments);
    std::filesystem::rename(segments + "-away", segments);
    subject = w.open_or_fail();
    BOOST_TEST(check_model(*subject, "m", 1).ok());
    BOOST_TEST(check_model(*subject, "n", 2).ok());
    subject.reset();
  }
}

// Refusals.

BOOST_AUTO_TEST_CASE(a_bucket_that_is_not_there_is_made_only_if_it_may_be) {
  world w;
  auto options = w.options();
  options.create_if_missing = false;
  auto refused = open_rocksdb_bucket(options);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::not_found), why(refused));
  BOOST_TEST(!std::filesystem::exists(options.path));
  w.open_or_fail();
  BOOST_TEST(open_rocksdb_bucket(options).has_value());
}

BOOST_AUTO_TEST_CASE(a_directory_with_other_things_is_left_alone) {
  world w;
  std::filesystem::create_directories(w.options().path);
  std::ofstream{w.options().path + "/thesis.txt"} << "words";
  BOOST_TEST((w.refusal() == errc::invalid_argument));
  BOOST_TEST(!std::filesystem::exists(w.options().path + "/index"));
  BOOST_TEST(!std::filesystem::exists(w.options().path + "/bucket.lock"));
}

BOOST_AUTO_TEST_CASE(a_directory_whose_index_is_something_else_is_left_alone) {
  world w;
  std::filesystem::create_directories(w.options().path + "/index");
  std::ofstream{w.options().path + "/index/page.html"} << "words";
  BOOST_TEST((w.refusal() == errc::invalid_argument));
  BOOST_TEST(!std::filesystem::exists(w.options().path + "/index/CURRENT"));
}

BOOST_AUTO_TEST_CASE(a_bucket_half_made_is_finished) {
  world w;
  std::filesystem::create_directories(w.options().path + "/index");
  std::filesystem::create_directories(w.options().path + "/segments");
  std::ofstream{w.options().path + "/index/MANIFEST-000001"} << "";
  std::ofstream{w.options().path + "/bucket.lock"} << "";
  BOOST_TEST((w.refusal() == errc::ok));
}

BOOST_AUTO_TEST_CASE(a_file_in_the_place_is_refused) {
  world w;
  std::ofstream{w.options().path} << "words";
  BOOST_TEST((w.refusal() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(a_database_of_another_program_is_refused) {
  world w;
  w.open_or_fail();
  write_key(w.options().path, "G", "theirs");
  write_key(w.options().path, rocksdb::keys::format, std::nullopt);
  BOOST_TEST((w.refusal() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(another_format_version_is_refused_and_kept) {
  world w;
  w.open_or_fail();
  auto other = std::string{rocksdb::format_magic} + "2";
  write_key(w.options().path, rocksdb::keys::format, other);
  auto refused = open_rocksdb_bucket(w.options());
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::unsupported_version));
  BOOST_TEST(refused.error().detail().find("format 2") != std::string::npos);
  auto db = rocksdb::index::open_to_read(w.options().path + "/index");
  BOOST_TEST(**(*db)->get(rocksdb::keys::format) == other);
}

BOOST_AUTO_TEST_CASE(segments_without_an_index_are_refused) {
  world w;
  auto subject = w.open_or_fail();
  BOOST_REQUIRE(store(*subject, spec_of("m", {mib}), 1));
  subject.reset();
  std::filesystem::remove_all(w.options().path + "/index");
  std::filesystem::remove(w.options().path + "/stopped");
  // With only the segments there it looks like the beginning of a bucket, but it is the rest of
  // one.
  BOOST_TEST((w.refusal() == errc::corrupt_data));
}

BOOST_AUTO_TEST_CASE(a_damaged_record_is_refused) {
  world w;
  auto subject = w.open_or_fail();
  BOOST_REQUIRE(store(*subject, spec_of("m", {mib}), 1));
  subject.reset();
  write_key(w.options().path, rocksdb::keys::record("m"), "not a record");
  auto refused = open_rocksdb_bucket(w.options());
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::corrupt_data), why(refused));
  BOOST_TEST(refused.error().detail().find("millrace models salvage") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_index_without_its_first_files_is_damaged_and_names_salvage) {
  for (std::string lost : {"CURRENT", "MANIFEST-"}) {
    world w;
    auto subject = w.open_or_fail();
    BOOST_REQUIRE(store(*subject, spec_of("m", {mib}), 1));
    subject.reset();
    std::vector<std::filesystem::path> gone;
    for (auto& entry : std::filesystem::directory_iterator{w.options().path + "/index"})
      if (entry.path().filename().string().starts_with(lost))
        gone.push_back(entry.path());
    BOOST_REQUIRE(!gone.empty());
    for (auto& path : gone)
      std::filesystem::remove(path);
    auto refused = open_rocksdb_bucket(w.options());
    BOOST_REQUIRE(!refused);
    BOOST_TEST(
      (refused.error().code() == errc::corrupt_data || refused.error().code() == errc::io_error),
      why(refused));
    BOOST_TEST(
      refused.error().detail().find("millrace models salvage " + w.options().path) !=
        std::string::npos,
      why(refused));
  }
}

BOOST_AUTO_TEST_CASE(a_missing_segment_is_refused) {
  world w;
  auto subject = w.open_or_fail();
  BOOST_REQUIRE(store(*subject, spec_of("m", {mib}), 1));
  subject.reset();
  std::filesystem::remove_all(w.options().path + "/segments");
  BOOST_TEST((w.refusal() == errc::corrupt_data));
}

BOOST_AUTO_TEST_CASE(a_directory_one_may_not_write_is_refused) {
  world w;
  std::filesystem::create_directories(w.options().path);
  BOOST_REQUIRE(::chmod(w.options().path.c_str(), 0555) == 0);
  auto pid = ::fork();
  BOOST_REQUIRE(pid >= 0);
  if (pid == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0)
      ::_exit(100);
    ::_exit(static_cast<int>(w.refusal()));
  }
  int ended = 0;
  ::waitpid(pid, &ended, 0);
  BOOST_TEST(WIFEXITED(ended));
  BOOST_TEST(WEXITSTATUS(ended) == static_cast<int>(errc::permission_denied));
}

unsigned mode_of(const std::filesystem::path& path) {
  struct stat info {};
  BOOST_REQUIRE(::stat(path.c_str(), &info) == 0);
  return info.st_mode & 07777u;
}

// The paths below the bucket that others may read, write or enter.
std::vector<std::string> open_to_others(const world& w) {
  std::vector<std::string> found;
  for (auto& entry : std::filesystem::recursive_directory_iterator{w.options().path})
    if ((mode_of(entry.path()) & 077u) != 0)
      found.push_back(entry.path());
  if ((mode_of(w.options().path) & 077u) != 0)
    found.push_back(w.options().path);
  return found;
}

BOOST_AUTO_TEST_CASE(nobody_else_can_read_what_a_bucket_holds) {
  world w;
  auto before = ::umask(0);
  auto subject = w.open_or_fail();
  BOOST_REQUIRE(store(*subject, spec_of("small", {100}), 1));
  BOOST_REQUIRE(store(*subject, spec_of("large", {mib}), 1));
  BOOST_TEST(open_to_others(w) == std::vector<std::string>{}, boost::test_tools::per_element());
  subject.reset();
  subject = w.open_or_fail();
  BOOST_TEST(open_to_others(w) == std::vector<std::string>{}, boost::test_tools::per_element());
  ::umask(before);
}

BOOST_AUTO_TEST_CASE(a_bucket_that_others_could_read_is_taken_from_them) {
  world w;
  auto subject = w.open_or_fail();
  BOOST_REQUIRE(store(*subject, spec_of("m", {mib}), 1));
  subject.reset();
  for (auto& entry : std::filesystem::recursive_directory_iterator{w.options().path})
    BOOST_REQUIRE(::chmod(entry.path().c_str(), entry.is_directory() ? 0755 : 0644) == 0);
  BOOST_REQUIRE(::chmod(w.options().path.c_str(), 0755) == 0);
  subject = w.open_or_fail();
  BOOST_TEST(open_to_others(w) == std::vector<std::string>{}, boost::test_tools::per_element());
  BOOST_TEST(check_model(*subject, "m", 1).ok());
}

BOOST_AUTO_TEST_CASE(a_directory_to_which_others_write_is_refused) {
  for (auto mode : {0777, 01777, 0770, 0720}) {
    world w;
    std::filesystem::create_directories(w.options().path);
    BOOST_REQUIRE(::chmod(w.options().path.c_str(), mode) == 0);
    auto refused = open_rocksdb_bucket(w.options());
    BOOST_REQUIRE(!refused);
    BOOST_TEST((refused.error().code() == errc::permission_denied), why(refused));
    BOOST_TEST(refused.error().detail().find("chmod 700") != std::string::npos, why(refused));
    BOOST_TEST(std::filesystem::is_empty(w.options().path));
  }
}

BOOST_AUTO_TEST_CASE(a_directory_of_another_user_is_refused) {
  world w;
  std::filesystem::create_directories(w.options().path);
  if (::chown(w.options().path.c_str(), 65534, 65534) != 0)
    return skipped("a directory of another user: needs root");
  auto refused = open_rocksdb_bucket(w.options());
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::permission_denied), why(refused));
  BOOST_TEST(refused.error().detail().find("belongs to user 65534") != std::string::npos);
  BOOST_TEST(std::filesystem::is_empty(w.options().path));
}

BOOST_AUTO_TEST_CASE(a_directory_in_use_is_busy_until_its_user_dies) {
  world w;
  {
    auto subject = w.open_or_fail();
    BOOST_TEST((w.refusal() == errc::busy));
  }
  int ready[2];
  BOOST_REQUIRE(::pipe(ready) == 0);
  auto pid = ::fork();
  BOOST_REQUIRE(pid >= 0);
  if (pid == 0) {
    auto fd = ::open((w.options().path + "/bucket.lock").c_str(), O_RDWR);
    char locked = ::flock(fd, LOCK_EX | LOCK_NB) == 0 ? 'y' : 'n';
    static_cast<void>(!::write(ready[1], &locked, 1));
    ::pause();
    ::_exit(0);
  }
  char locked = 'n';
  BOOST_TEST(::read(ready[0], &locked, 1) == 1);
  BOOST_TEST(locked == 'y');
  BOOST_TEST((w.refusal() == errc::busy));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  BOOST_TEST((w.refusal() == errc::ok));
}

BOOST_AUTO_TEST_CASE(options_that_make_no_sense_are_refused) {
  world w;
  auto refusal = [&](auto change) {
    auto options = w.options();
    change(options);
    auto subject = open_rocksdb_bucket(options);
    return subject ? errc::ok : subject.error().code();
  };
  BOOST_TEST((refusal([](auto& o) { o.window_bytes = 100 * kib; }) == errc::invalid_argument));
  BOOST_TEST((refusal([](auto& o) { o.io_threads = 0; }) == errc::invalid_argument));
  BOOST_TEST((refusal([](auto& o) { o.path = ""; }) == errc::invalid_argument));
  BOOST_TEST((refusal([](auto&) {}) == errc::ok));
}

// Space.

BOOST_AUTO_TEST_CASE(overwriting_again_and_again_reuses_the_same_space) {
  world w;
  auto subject = w.open_or_fail();
  for (std::uint64_t round = 0; round < 30; ++round) {
    BOOST_REQUIRE(store(*subject, spec_of("m", {3 * mib + round * 4096}), round));
    BOOST_TEST(check_model(*subject, "m", round).ok());
  }
  BOOST_TEST(w.segments_bytes() <= 8 * mib);
}

BOOST_AUTO_TEST_CASE(a_fragmented_bucket_takes_a_model_in_pieces) {
  world w;
  auto options = w.options();
  options.capacity_bytes = 64 * mib + 512 * kib;
  auto subject = *open_rocksdb_bucket(options);
  // 64 MiB in models of 1 MiB; then every other one goes.
  for (std::uint64_t i = 0; i < 64; ++i)
    BOOST_REQUIRE(store(*subject, spec_of("m" + std::to_string(i), {mib}), i));
  BOOST_TEST(!reserve(*subject, spec_of("large", {mib})));
  for (std::uint64_t i = 0; i < 64; i += 2)
    BOOST_TEST(erase(*subject, "m" + std::to_string(i)).ok());
  BOOST_REQUIRE(store(*subject, spec_of("large", {31 * mib}), 99));
  BOOST_TEST(check_model(*subject, "large", 99).ok());
  subject.reset();
  subject = *open_rocksdb_bucket(options);
  BOOST_TEST(check_model(*subject, "large", 99).ok());
  for (std::uint64_t i = 1; i < 64; i += 2)
    BOOST_TEST(check_model(*subject, "m" + std::to_string(i), i).ok());
}

BOOST_AUTO_TEST_CASE(space_of_erased_models_goes_back_to_the_disk_at_open) {
  world w;
  auto subject = w.open_or_fail();
  BOOST_REQUIRE(store(*subject, spec_of("m", {30 * mib}), 1));
  BOOST_TEST(erase(*subject, "m").ok());
  BOOST_TEST(subject->stats().used_bytes == 0u);
  BOOST_TEST(w.segments_bytes() >= 30 * mib);
  subject.reset();
  subject = w.open_or_fail();
  BOOST_TEST(w.segments_bytes() <= 4 * mib);
}

BOOST_AUTO_TEST_CASE(a_window_needs_staging_memory_of_its_size_and_alignment) {
  world w;
  auto subject = w.open_or_fail();
  auto room = reserve(*subject, spec_of("m", {8 * mib}));
  BOOST_REQUIRE(room);
  BOOST_TEST((*room)->window_bytes() == mib);
  auto code = [&](memory_block lent) {
    auto w = await<window>([&](auto done) { (*room)->acquire(0, lent, std::move(done)); });
    return w ? errc::ok : w.error().code();
  };
  auto all = io::heap_block(2 * mib);
  BOOST_TEST((code({}) == errc::invalid_argument));
  BOOST_TEST((code({all.data, mib - 4096, all.owner}) == errc::invalid_argument));
  BOOST_TEST((code({all.data + 64, mib, all.owner}) == errc::invalid_argument));
  BOOST_TEST((code({all.data + mib, mib, all.owner}) == errc::ok));
}

BOOST_AUTO_TEST_CASE(a_bucket_may_be_dropped_by_its_own_completion) {
  world w;
  auto subject = w.open_or_fail();
  BOOST_REQUIRE(store(*subject, spec_of("m", {100}), 1));
  held_completion<void> dropped;
  auto raw = subject.get();
  raw->open("m", 0, [&subject, done = dropped.callback()](auto) {
    subject.reset();
    done({});
  });
  BOOST_REQUIRE(dropped.take());
  BOOST_TEST((w.refusal() == errc::ok));
}

BOOST_AUTO_TEST_SUITE_END()
