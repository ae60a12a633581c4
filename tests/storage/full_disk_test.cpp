// Fills a file system. Stores and saves are refused, nothing is lost, and there is a way back.
#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/pmem/pool.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/tests/support/small_disk.hpp>
#include <millrace/tests/support/tensors_in_memory.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <unistd.h>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;
namespace data = boost::unit_test::data;

namespace {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;

// The reserve has what RocksDB flushes from memory at once, and more.
struct bucket_on_small_disk {
  explicit bucket_on_small_disk(disk_kind kind, std::uint64_t reserve_bytes = 48 * mib)
    : disk(112 * mib + reserve_bytes, kind), kind_(kind), reserve_bytes_(reserve_bytes) {}

  // False: the test is skipped.
  bool ready() {
    if (disk.mounted())
      return true;
    skipped(small_disk::missing(kind_));
    return false;
  }

  rocksdb_bucket_options options() const {
    rocksdb_bucket_options chosen;
    chosen.path = disk.path() + "/bucket";
    chosen.capacity_bytes = 4096 * mib; // beyond the disk
    chosen.io_threads = 2;
    chosen.window_bytes = mib;
    chosen.segment_bytes = 4 * mib;
    chosen.index_reserve_bytes = reserve_bytes_;
    return chosen;
  }

  std::shared_ptr<bucket> open_or_fail() const {
    auto subject = open_rocksdb_bucket(options());
    BOOST_REQUIRE_MESSAGE(subject, why(subject));
    return *subject;
  }

  small_disk disk;

private:
  disk_kind kind_;
  std::uint64_t reserve_bytes_;
};

// Stores models until one is refused. Returns how many are stored.
std::uint64_t store_until_refused(bucket& subject, const std::string& prefix, std::uint64_t bytes) {
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    auto stored = store(subject, spec_of(prefix + std::to_string(i), {bytes}), i);
    if (stored)
      continue;
    BOOST_TEST((stored.error().code() == errc::no_space), why(stored));
    return i;
  }
  return 100'000;
}

void punch(const std::string& path, std::uint64_t at, std::uint64_t bytes) {
  auto fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  BOOST_REQUIRE(fd >= 0);
  auto mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  BOOST_REQUIRE(::fallocate(fd, mode, static_cast<off_t>(at), static_cast<off_t>(bytes)) == 0);
  ::close(fd);
}

const auto all_kinds = data::make(all_disk_kinds);

} // namespace

BOOST_AUTO_TEST_SUITE(full_disk)

BOOST_DATA_TEST_CASE(
  a_pool_needs_no_further_space_and_one_that_does_not_fit_leaves_nothing, all_kinds, kind) {
  small_disk disk{96 * mib, kind};
  if (!disk.mounted())
    return skipped(small_disk::missing(kind));
  pool_options options;
  options.path = disk.path() + "/pool";
  options.capacity_bytes = 64 * mib;
  auto created = create_pool(options);
  BOOST_REQUIRE_MESSAGE(created, why(created));
  disk.fill();
  for (auto round = 0; round < 2; ++round) {
    auto pool = open_pool(options);
    BOOST_REQUIRE_MESSAGE(pool, why(pool));
    auto models = (*pool)->models();
    auto stored = store_until_refused(*models, "large", 3 * mib);
    BOOST_TEST(stored >= 10u);
    for (std::uint64_t i = 0; i < stored; ++i) {
      BOOST_TEST(check_model(*models, "large" + std::to_string(i), i).ok());
      BOOST_TEST(erase(*models, "large" + std::to_string(i)).ok());
    }
  }
  auto second = options;
  second.path = disk.path() + "/second";
  auto refused = create_pool(second);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::no_space), why(refused));
  disk.free();
  auto left = std::distance(
    std::filesystem::directory_iterator{disk.path()}, std::filesystem::directory_iterator{});
  BOOST_TEST(left == 1);
}

BOOST_DATA_TEST_CASE(a_dump_that_does_not_fit_leaves_the_older_file, all_kinds, kind) {
  small_disk disk{16 * mib, kind};
  if (!disk.mounted())
    return skipped(small_disk::missing(kind));
  using archive::archive_format;
  for (auto format :
       {archive_format::safetensors, archive_format::npz, archive_format::hdf5,
        archive_format::torch}) {
    auto file = disk.path() + "/model." + std::string{to_string(format)};
    tensors_in_memory whole;
    whole.add({"a", dtype::u8, {3 * mib}});
    BOOST_REQUIRE(write_archive(format, file, whole, {}).ok());
    auto size = std::filesystem::file_size(file);
    disk.fill();
    auto refused = write_archive(format, file, whole, {true, {}});
    BOOST_TEST((refused.code() == errc::no_space), refused.to_string());
    BOOST_TEST(std::filesystem::file_size(file) == size);
    disk.free();
    auto left = std::distance(
      std::filesystem::directory_iterator{disk.path()}, std::filesystem::directory_iterator{});
    BOOST_TEST(left == 1);
    std::filesystem::remove(file);
  }
}

BOOST_DATA_TEST_CASE(segments_do_not_take_the_last_byte_of_the_disk, all_kinds, kind) {
  bucket_on_small_disk w{kind};
  if (!w.ready())
    return;
  auto subject = w.open_or_fail();
  auto stored = store_until_refused(*subject, "large", 3 * mib);
  BOOST_TEST(stored >= 10u);
  BOOST_TEST(w.disk.free_bytes() > 0u);
  for (std::uint64_t i = 0; i < stored; ++i)
    BOOST_TEST(check_model(*subject, "large" + std::to_string(i), i).ok());
  BOOST_TEST(erase(*subject, "large0").ok());
  BOOST_TEST((store(*subject, spec_of("again", {3 * mib}), 7).has_value()));
}

BOOST_DATA_TEST_CASE(
  an_index_that_fills_the_disk_refuses_models_and_removes_them, all_kinds, kind) {
  bucket_on_small_disk w{kind};
  if (!w.ready())
    return;
  auto subject = w.open_or_fail();
  auto stored = store_until_refused(*subject, "small", 60 * kib);
  BOOST_TEST(stored >= 300u);
  for (std::uint64_t i = 0; i < stored; i += 10)
    BOOST_TEST(check_model(*subject, "small" + std::to_string(i), i).ok());
  for (std::uint64_t i = 0; i < stored; ++i) {
    auto erased = erase(*subject, "small" + std::to_string(i));
    BOOST_TEST(erased.ok(), erased.to_string());
  }
}

// Others take every byte while the bucket is in use.
BOOST_DATA_TEST_CASE(models_are_removed_from_a_disk_that_others_filled, all_kinds, kind) {
  bucket_on_small_disk w{kind};
  if (!w.ready())
    return;
  auto subject = w.open_or_fail();
  for (auto i = 0; i < 10; ++i) {
    BOOST_REQUIRE(store(*subject, spec_of("large" + std::to_string(i), {3 * mib}), i));
    BOOST_REQUIRE(store(*subject, spec_of("small" + std::to_string(i), {60 * kib}), i));
  }
  w.disk.fill();
  // The log has some space of its own; then the file system is asked.
  static_cast<void>(store_until_refused(*subject, "more", 60 * kib));
  auto refused = store(*subject, spec_of("another", {60 * kib}), 1);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::no_space), why(refused));
  BOOST_TEST(refused.error().detail().find("index_reserve") != std::string::npos, why(refused));
  w.disk.fill();
  for (auto i = 0; i < 10; ++i) {
    BOOST_TEST(check_model(*subject, "large" + std::to_string(i), i).ok());
    BOOST_TEST(erase(*subject, "large" + std::to_string(i)).ok());
  }
  // What the segments had is the file system's again.
  BOOST_TEST(w.disk.free_bytes() >= mib);
  BOOST_TEST((store(*subject, spec_of("again", {3 * mib}), 7).has_value()));
  BOOST_TEST(check_model(*subject, "again", 7).ok());
}

BOOST_DATA_TEST_CASE(a_bucket_starts_on_a_full_disk_and_models_can_be_removed, all_kinds, kind) {
  bucket_on_small_disk w{kind};
  if (!w.ready())
    return;
  auto subject = w.open_or_fail();
  for (auto i = 0; i < 10; ++i) {
    BOOST_REQUIRE(store(*subject, spec_of("large" + std::to_string(i), {3 * mib}), i));
    BOOST_REQUIRE(store(*subject, spec_of("small" + std::to_string(i), {60 * kib}), i));
  }
  w.disk.fill();
  for (auto round = 0; round < 3; ++round) {
    subject.reset();
    w.disk.fill();
    subject = w.open_or_fail();
  }
  BOOST_TEST(!store(*subject, spec_of("another", {3 * mib}), 1));
  for (auto i = 0; i < 10; ++i) {
    BOOST_TEST(check_model(*subject, "large" + std::to_string(i), i).ok());
    BOOST_TEST(check_model(*subject, "small" + std::to_string(i), i).ok());
    BOOST_TEST(erase(*subject, "large" + std::to_string(i)).ok());
  }
  BOOST_TEST((store(*subject, spec_of("again", {3 * mib}), 7).has_value()));
}

// Without a reserve RocksDB sees the failed write, and takes no other one until it is opened again.
BOOST_DATA_TEST_CASE(
  a_bucket_without_a_reserve_goes_on_when_there_is_space_again, all_kinds, kind) {
  bucket_on_small_disk w{kind, 0};
  if (!w.ready())
    return;
  auto subject = w.open_or_fail();
  for (auto round = 0; round < 3; ++round) {
    BOOST_REQUIRE(store(*subject, spec_of("kept", {60 * kib}), 1));
    w.disk.fill();
    auto stored = store_until_refused(*subject, "more", 60 * kib);
    BOOST_TEST(check_model(*subject, "kept", 1).ok());
    w.disk.free();
    BOOST_REQUIRE(store(*subject, spec_of("after", {60 * kib}), round));
    BOOST_TEST(check_model(*subject, "after", round).ok());
    for (std::uint64_t i = 0; i < stored; ++i)
      BOOST_TEST(check_model(*subject, "more" + std::to_string(i), i).ok());
  }
  subject.reset();
  subject = w.open_or_fail();
  BOOST_TEST(check_model(*subject, "kept", 1).ok());
  BOOST_TEST(check_model(*subject, "after", 2).ok());
}

// As `cp --sparse=always` makes it. A store to a hole of a full file system would end the process
// by a signal.
BOOST_DATA_TEST_CASE(a_pool_with_holes_is_filled_when_it_opens_or_refused, all_kinds, kind) {
  small_disk disk{96 * mib, kind};
  if (!disk.mounted())
    return skipped(small_disk::missing(kind));
  pool_options options;
  options.path = disk.path() + "/pool";
  options.capacity_bytes = 64 * mib;
  BOOST_REQUIRE(create_pool(options));
  constexpr std::uint64_t unused_at = 32 * mib; // of a pool without models
  punch(options.path, unused_at, 16 * mib);
  disk.fill();
  auto refused = open_pool(options);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::no_space), why(refused));
  disk.free();
  auto pool = open_pool(options);
  BOOST_REQUIRE_MESSAGE(pool, why(pool));
  disk.fill();
  auto models = (*pool)->models();
  auto stored = store_until_refused(*models, "m", 3 * mib);
  BOOST_TEST(stored >= 10u);
  for (std::uint64_t i = 0; i < stored; ++i)
    BOOST_TEST(check_model(*models, "m" + std::to_string(i), i).ok());
}

BOOST_AUTO_TEST_SUITE_END()
