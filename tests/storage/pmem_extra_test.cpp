// The user's bytes of versions: of any size, atomic with the tensors, verified, and kept by
// whatever moves versions.
#include "pmem_world.hpp"

#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/archive/opened_source.hpp>
#include <millrace/storage/archive/sidecar.hpp>
#include <millrace/storage/pmem/medium/format.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;

// Named, for the lambdas of data tests carry these types.
namespace pmem_extra_tests {

const auto ways = boost::unit_test::data::make(pool_ways());
const std::vector<std::uint64_t> some_tensors = {700 * kib, 5};

void save_with_or_fail(
  world& w, const shard_spec& shard, std::uint64_t step, std::uint64_t extra_bytes) {
  auto saved = save(*w.store, shard, step, extra_bytes);
  BOOST_REQUIRE_MESSAGE(saved, why(saved));
}

result<std::shared_ptr<opened_model>> open_part(
  world& w, const shard_spec& shard, std::uint64_t step, version_part part) {
  return await<std::shared_ptr<opened_model>>([&](auto done) {
    w.store->open(shard.model, shard.rank, {step, 0, part}, std::move(done));
  });
}

/// Whether a step has these tensors and just the bytes with which it was saved.
bool holds(world& w, const shard_spec& shard, std::uint64_t step, std::uint64_t extra_bytes) {
  if (!w.holds(shard, step))
    return false;
  auto outcome = check_extra(*w.store, shard, step, extra_bytes);
  BOOST_TEST_MESSAGE(outcome.to_string());
  return outcome.ok();
}

/// Flips a bit of the user's bytes of a step while the pool is closed.
void damage_extra(world& w, const shard_spec& shard, std::uint64_t step) {
  auto bytes = w.owner->info().size_bytes;
  w.close();
  auto file = ::open(w.options.path.c_str(), O_RDWR | O_CLOEXEC);
  auto* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  BOOST_REQUIRE(mapped != MAP_FAILED);
  std::array<std::byte, 512> wanted;
  fill(wanted.data(), wanted.size(), extra_seed(shard, step), 0, 0);
  auto* found = ::memmem(mapped, bytes, wanted.data(), wanted.size());
  BOOST_REQUIRE(found);
  static_cast<std::byte*>(found)[99] ^= std::byte{8};
  ::munmap(mapped, bytes);
}

std::vector<std::byte> extra_of(archive::tensor_source& source) {
  auto bytes = source.extra();
  BOOST_REQUIRE_MESSAGE(bytes, why(bytes));
  return *bytes;
}

} // namespace pmem_extra_tests

using namespace pmem_extra_tests;

BOOST_AUTO_TEST_SUITE(pmem_extra)

BOOST_DATA_TEST_CASE(bytes_of_every_size_are_read_back_and_after_reopening, ways, way) {
  world w{way, 128 * mib};
  auto shard = shard_of("a", some_tensors);
  w.enroll_or_fail(shard);
  std::uint64_t step = 0, before = 0;
  for (auto bytes :
       {std::uint64_t{0}, std::uint64_t{1}, 4 * kib, 4 * kib + 1, 256 * kib, 16 * mib, 16 * mib + 8,
        std::uint64_t{7}, std::uint64_t{0}}) {
    save_with_or_fail(w, shard, ++step, bytes);
    BOOST_TEST(holds(w, shard, step, bytes));
    w.reopen();
    w.enroll_or_fail(shard);
    BOOST_TEST(holds(w, shard, step, bytes));
    // The other slot has the step before, with bytes of another size.
    if (step > 1)
      BOOST_TEST(holds(w, shard, step - 1, before));
    before = bytes;
  }
}

BOOST_DATA_TEST_CASE(all_of_a_version_has_the_bytes_after_the_tensors, ways, way) {
  world w{way};
  auto shard = shard_of("a", some_tensors);
  w.enroll_or_fail(shard);
  save_with_or_fail(w, shard, 1, 300 * kib);
  auto opened = open_part(w, shard, 1, version_part::all);
  BOOST_REQUIRE_MESSAGE(opened, why(opened));
  auto& tensors = (*opened)->record().spec.tensors.tensors;
  BOOST_REQUIRE(tensors.size() == 3u);
  BOOST_TEST((tensors.back() == extra_tensor(300 * kib)));
  BOOST_TEST((*opened)->record().digests.size() == 3u + 1u + 2u);
  auto plan = (*opened)->plan(everything((*opened)->record().spec.tensors));
  std::uint64_t bytes = 0;
  for (auto& window : plan)
    for (auto& range : window)
      bytes += range.length;
  BOOST_TEST(bytes == 700 * kib + 5 + 300 * kib);
}

BOOST_DATA_TEST_CASE(a_save_without_them_takes_no_more_space, ways, way) {
  world w{way};
  auto shard = w.saved({1, 2});
  auto used = w.store->stats().used_bytes;
  for (std::uint64_t step = 3; step < 7; ++step)
    w.save_or_fail(shard, step);
  BOOST_TEST(w.store->stats().used_bytes == used);
  auto pending = begin(*w.store, "a", 0, 7);
  BOOST_REQUIRE(pending);
  BOOST_TEST(!(*pending)->extra());
}

BOOST_DATA_TEST_CASE(space_is_taken_once_for_bytes_that_do_not_grow, ways, way) {
  world w{way};
  auto shard = w.saved({});
  save_with_or_fail(w, shard, 1, 3 * mib);
  save_with_or_fail(w, shard, 2, 3 * mib);
  auto used = w.store->stats().used_bytes;
  for (std::uint64_t step = 3; step < 9; ++step)
    save_with_or_fail(w, shard, step, 3 * mib - step);
  BOOST_TEST(w.store->stats().used_bytes == used);
  BOOST_TEST(holds(w, shard, 8, 3 * mib - 8));
}

BOOST_DATA_TEST_CASE(an_unfinished_save_leaves_the_step_before_with_its_bytes, ways, way) {
  world w{way};
  auto shard = w.saved({});
  save_with_or_fail(w, shard, 1, 10);
  save_with_or_fail(w, shard, 2, 20 * kib);
  {
    auto pending = begin(*w.store, {.model = "a", .rank = 0, .step = 3, .extra_bytes = 300 * kib});
    BOOST_REQUIRE_MESSAGE(pending, why(pending));
    BOOST_REQUIRE(fill_windows(*(*pending)->extra(), 99).ok());
    BOOST_REQUIRE(fill_windows(**pending, 99).ok());
  }
  w.reopen();
  BOOST_TEST(holds(w, shard, 2, 20 * kib));
  BOOST_TEST((w.opening(shard, 3) == errc::not_found));
  BOOST_TEST((w.opening(shard, 1) == errc::not_found));
}

BOOST_DATA_TEST_CASE(a_version_is_not_published_before_its_bytes_are_there, ways, way) {
  world w{way};
  auto shard = w.saved({});
  auto pending = begin(*w.store, {.model = "a", .rank = 0, .step = 1, .extra_bytes = 100});
  BOOST_REQUIRE_MESSAGE(pending, why(pending));
  auto seed = content_seed("a", 0, 1);
  BOOST_REQUIRE(fill_windows(**pending, seed).ok());
  auto digests = digests_of(shard.tensors, seed);
  digests.push_back(0);
  auto early =
    await<std::uint64_t>([&](auto done) { (*pending)->publish(digests, std::move(done)); });
  BOOST_REQUIRE(!early);
  BOOST_TEST((early.error().code() == errc::invalid_argument));
  // Nor with the digests of the tensors alone.
  BOOST_REQUIRE(fill_windows(*(*pending)->extra(), 1).ok());
  digests.pop_back();
  auto fewer =
    await<std::uint64_t>([&](auto done) { (*pending)->publish(digests, std::move(done)); });
  BOOST_REQUIRE(!fewer);
  BOOST_TEST((fewer.error().code() == errc::invalid_argument));
}

BOOST_DATA_TEST_CASE(bytes_for_which_there_is_no_room_are_refused_and_nothing_is_lost, ways, way) {
  world w{way};
  auto shard = w.saved({1, 2});
  for (auto bytes : {w.owner->info().size_bytes - mib, std::uint64_t{1} << 40}) {
    auto refused = save(*w.store, shard, 3, bytes);
    BOOST_REQUIRE(!refused);
    BOOST_TEST((refused.error().code() == errc::no_space), refused.error().to_string());
    BOOST_TEST(refused.error().detail().find("step 3 of model a") != std::string::npos);
  }
  BOOST_TEST(w.holds(shard, 1));
  BOOST_TEST(w.holds(shard, 2));
  save_with_or_fail(w, shard, 3, 10);
  BOOST_TEST(holds(w, shard, 3, 10));
}

BOOST_DATA_TEST_CASE(low_space_is_reclaimed_for_bytes_that_do_not_fit, ways, way) {
  world w{way};
  w.close();
  w.options.low_space = when_low_space::reclaim;
  w.open();
  auto old = shard_of("old", {22 * mib}), shard = shard_of("a", {4 * mib});
  w.enroll_or_fail(old);
  w.save_or_fail(old, 1);
  w.save_or_fail(old, 2);
  w.store->leave("old", 0, true);
  w.enroll_or_fail(shard);
  auto bytes = w.owner->info().free_bytes + 4 * mib;
  save_with_or_fail(w, shard, 1, bytes);
  BOOST_TEST(holds(w, shard, 1, bytes));
  BOOST_TEST((w.opening(old, 1) == errc::not_found));
  BOOST_TEST(w.holds(old, 2));
}

BOOST_DATA_TEST_CASE(a_flipped_bit_is_found_and_named, ways, way) {
  world w{way};
  auto shard = w.saved({});
  save_with_or_fail(w, shard, 5, 300 * kib);
  damage_extra(w, shard, 5);
  auto report = check_pool(w.options.path, true);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_REQUIRE(report->problems.size() == 1u);
  BOOST_TEST(
    report->problems.front().find("the user's bytes of step 5") != std::string::npos,
    report->problems.front());
  w.open();
  BOOST_TEST(w.holds(shard, 5)); // the tensors are whole
  auto opened = open_part(w, shard, 5, version_part::all);
  BOOST_REQUIRE_MESSAGE(opened, why(opened));
  auto read = archive::make_opened_source(*opened)->extra();
  BOOST_REQUIRE(!read);
  BOOST_TEST((read.error().code() == errc::corrupt_data));
  BOOST_TEST(read.error().detail().find("the user's bytes") != std::string::npos);
}

BOOST_DATA_TEST_CASE(repack_frees_no_version_while_the_newest_has_damaged_bytes, ways, way) {
  world w{way};
  auto shard = w.saved({});
  save_with_or_fail(w, shard, 1, 600);
  save_with_or_fail(w, shard, 2, 700);
  w.store->leave("a", 0, true);
  w.close();
  w.open();
  damage_extra(w, shard, 2);
  w.open();
  auto report = repack(*w.store);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_TEST(report->versions_freed == 0u);
  BOOST_TEST(holds(w, shard, 1, 600));
}

BOOST_DATA_TEST_CASE(bytes_move_with_their_version_when_the_pool_is_repacked, ways, way) {
  world w{way};
  auto first = shard_of("first", {4 * mib}), second = shard_of("second", {4 * mib});
  w.enroll_or_fail(first);
  w.enroll_or_fail(second);
  save_with_or_fail(w, second, 1, 500 * kib);
  save_with_or_fail(w, second, 2, 3 * kib);
  w.store->leave("first", 0, true);
  BOOST_REQUIRE(erase(*w.store, "first").ok());
  auto report = repack(*w.store);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_TEST(holds(w, second, 1, 500 * kib));
  BOOST_TEST(holds(w, second, 2, 3 * kib));
  w.reopen();
  BOOST_TEST(holds(w, second, 1, 500 * kib));
  BOOST_TEST(holds(w, second, 2, 3 * kib));
  w.enroll_or_fail(second);
  save_with_or_fail(w, second, 3, 600 * kib);
  BOOST_TEST(holds(w, second, 3, 600 * kib));
}

BOOST_DATA_TEST_CASE(no_space_leaks_when_versions_with_bytes_are_erased, ways, way) {
  world w{way};
  auto shard = w.saved({});
  save_with_or_fail(w, shard, 1, 3 * mib);
  save_with_or_fail(w, shard, 2, 5 * mib);
  save_with_or_fail(w, shard, 3, 6 * mib);
  w.store->leave("a", 0, true);
  BOOST_REQUIRE(erase(*w.store, "a").ok());
  w.close();
  auto report = check_pool(w.options.path, true);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_TEST(report->problems.empty());
  BOOST_TEST(report->unreachable_bytes == 0u);
  w.open();
}

// An older build knows no feature: it refuses a pool that has one, and says which release to use.
BOOST_DATA_TEST_CASE(only_a_pool_with_such_bytes_says_so_to_older_builds, ways, way) {
  world w{way};
  if (w.place.is_device())
    return;
  auto features = [&] {
    w.close();
    auto bytes = contents_of(w.options.path);
    auto magic = pmem::pool_root::magic_value;
    auto* at = static_cast<const char*>(::memmem(bytes.data(), bytes.size(), &magic, sizeof magic));
    BOOST_REQUIRE(at);
    pmem::pool_root root;
    std::memcpy(static_cast<void*>(&root), at, sizeof root);
    BOOST_TEST(root.checksum == checksum_of(root));
    w.open();
    return root.features;
  };
  auto shard = w.saved({1});
  BOOST_TEST(features() == 0u);
  w.enroll_or_fail(shard);
  save_with_or_fail(w, shard, 2, 1);
  BOOST_TEST(features() == pmem::feature_extra);
}

BOOST_DATA_TEST_CASE(archives_of_all_formats_keep_the_bytes_beside_them, ways, way) {
  world w{way};
  auto shard = w.saved({});
  save_with_or_fail(w, shard, 1, 300 * kib);
  auto opened = open_part(w, shard, 1, version_part::all);
  BOOST_REQUIRE_MESSAGE(opened, why(opened));
  scratch_directory dir;
  for (auto format :
       {archive::archive_format::safetensors, archive::archive_format::npz,
        archive::archive_format::hdf5, archive::archive_format::torch}) {
    auto source = archive::make_opened_source(*opened);
    BOOST_TEST((source->tensors() == shard.tensors));
    auto path = dir.path() + "/a." + std::string{to_string(format)};
    auto written = archive::write_archive(format, path, *source);
    BOOST_REQUIRE_MESSAGE(written.ok(), written.to_string());
    auto read = archive::open_archive(path, format);
    BOOST_REQUIRE_MESSAGE(read, why(read));
    BOOST_TEST((extra_of(**read) == extra_of(*source)));
    BOOST_TEST(extra_of(**read).size() == 300 * kib);
    BOOST_TEST((*read)->metadata().empty());
    // Another file at that place is not taken for it, and a missing one is missed.
    std::ofstream{archive::sidecar_of(path), std::ios::app} << "x";
    auto other = archive::open_archive(path, format);
    BOOST_REQUIRE(!other);
    BOOST_TEST((other.error().code() == errc::corrupt_data), other.error().to_string());
    ::unlink(archive::sidecar_of(path).c_str());
    auto missing = archive::open_archive(path, format);
    BOOST_REQUIRE(!missing);
    BOOST_TEST((missing.error().code() == errc::not_found), missing.error().to_string());
  }
}

BOOST_AUTO_TEST_SUITE_END()
