// The cases of the driver contract.
#include "driver_contract.hpp"

#include <millrace/core/digest.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/shared_file.hpp>
#include <millrace/transport/copy/copy.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>

namespace millrace::testing {

namespace {

using transport::copy_op;
using transport::direction;
using transport::mapped_region;
using transport::transfer;
using transport::transfer_report;

struct fixture {
  std::unique_ptr<driver_rig> rig;

  memory_block lend(std::uint64_t size_bytes) {
    return rig->memory().allocate(size_bytes, 64).value();
  }

  result<transfer_report> move(
    direction dir, const bulk_handle& remote, std::vector<copy_op> ops, bool digests = false,
    std::shared_ptr<void> hold = nullptr) {
    held_completion<transfer_report> done;
    transfer t{
      .dir = dir,
      .remote = remote,
      .ops = std::move(ops),
      .digests = digests,
      .hold = std::move(hold)};
    rig->fabric().submit(std::move(t), done.callback());
    return done.take();
  }

  result<mapped_region> map(const bulk_handle& remote, access_mode how = access_mode::read) {
    return await<mapped_region>(
      [&](auto done) { rig->fabric().map(remote, how, std::move(done)); });
  }

  // Returns a matrix in memory that peers may map.
  bulk_handle expose_readable(
    std::uint64_t size_bytes, access_mode how, std::uint64_t salt, std::uint64_t gap_bytes = 0) {
    auto rows = gap_bytes > 0 ? size_bytes : 1;
    return rig->expose(
      {rows, size_bytes / rows, gap_bytes, transport::arena_sharing::read_only}, how, salt);
  }
};

std::vector<std::byte> copy_of(const memory_block& block) {
  return {block.data, block.data + block.size_bytes};
}

const std::vector<matrix_shape> dense_shapes = {{1, 1, 0}, {1, 4096, 0}, {1, 5'000'001, 0}};
const std::vector<matrix_shape> strided_shapes = {{3000, 7, 5}, {17, 300'001, 64}};

std::vector<matrix_shape> shapes_for(fixture& f) {
  auto out = dense_shapes;
  if (f.rig->capabilities().strided_regions)
    out.insert(out.end(), strided_shapes.begin(), strided_shapes.end());
  return out;
}

template <class T>
bool is_unsupported(const result<T>& outcome) {
  return !outcome && outcome.error().code() == errc::unsupported;
}

// Returns true if the driver may refuse some places for files. It then says so before a byte moves.
bool may_refuse_files(fixture& f) {
  return !f.rig->capabilities().any_file && !std::getenv("MILLRACE_TEST_MAPPING");
}

void reads_arrive_byte_for_byte(fixture& f) {
  for (auto& shape : shapes_for(f)) {
    auto local = f.lend(shape.size_bytes());
    auto remote = f.rig->expose(shape, access_mode::read, 3);
    auto moved =
      f.move(direction::read, remote, {{.local = local.data, .length = shape.size_bytes()}});
    BOOST_TEST(moved.has_value());
    BOOST_TEST((copy_of(local) == pattern(shape.size_bytes(), 3)));
  }
}

void writes_arrive_byte_for_byte(fixture& f) {
  for (auto& shape : shapes_for(f)) {
    auto local = f.lend(shape.size_bytes());
    auto bytes = pattern(shape.size_bytes(), 9);
    std::copy(bytes.begin(), bytes.end(), local.data);
    auto remote = f.rig->expose(shape, access_mode::write, 0);
    BOOST_TEST(
      f.move(direction::write, remote, {{.local = local.data, .length = shape.size_bytes()}})
        .has_value());
    BOOST_TEST(f.rig->content(remote) == digest(bytes.data(), bytes.size()));
  }
}

void strided_memory_moves_or_is_refused_before_a_byte_moves(fixture& f) {
  for (auto& shape : strided_shapes) {
    auto local = f.lend(shape.size_bytes());
    std::fill_n(local.data, shape.size_bytes(), std::byte{0x5a});
    auto remote = f.rig->expose(shape, access_mode::read, 3);
    auto moved =
      f.move(direction::read, remote, {{.local = local.data, .length = shape.size_bytes()}});
    auto able = f.rig->capabilities().strided_regions;
    BOOST_TEST((able ? moved.has_value() : is_unsupported(moved)), why(moved));
    auto expected = able ? pattern(shape.size_bytes(), 3)
                         : std::vector<std::byte>(shape.size_bytes(), std::byte{0x5a});
    BOOST_TEST((copy_of(local) == expected));
  }
}

void many_pieces_in_any_order_are_one_transfer(fixture& f) {
  matrix_shape shape{1, 1 << 20, 0};
  auto local = f.lend(shape.size_bytes());
  auto remote = f.rig->expose(shape, access_mode::read, 4);
  std::vector<copy_op> ops;
  for (std::uint64_t piece = 0; piece < 40'000; ++piece) {
    auto at = (piece * 7919 % 40'000) * 26;
    ops.push_back({.remote_offset = at, .local = local.data + at, .length = 26});
  }
  BOOST_TEST(f.move(direction::read, remote, ops).has_value());
  auto expected = pattern(40'000 * 26, 4);
  BOOST_TEST(std::equal(expected.begin(), expected.end(), local.data));
}

// Short transfers and some long ones; each has its own place.
void many_transfers_at_once_all_end_whole(fixture& f) {
  constexpr std::size_t count = 150;
  auto size_of = [](std::size_t i) { return i % 50 == 0 ? std::size_t{1} << 20 : 1 + i * 377; };
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count; ++i)
    total += size_of(i);
  auto local = f.lend(total);
  auto remote = f.rig->expose({1, total, 0}, access_mode::read, 8);
  std::vector<held_completion<transfer_report>> done(count);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < count; at += size_of(i), ++i)
    f.rig->fabric().submit(
      {.dir = direction::read,
       .remote = remote,
       .ops = {{.remote_offset = at, .local = local.data + at, .length = size_of(i)}}},
      done[i].callback());
  for (auto& one : done)
    BOOST_TEST(one.take().has_value());
  BOOST_TEST((copy_of(local) == pattern(total, 8)));
}

void digests_cover_blocks_of_what_was_read(fixture& f) {
  for (auto& shape : shapes_for(f)) {
    auto local = f.lend(shape.size_bytes());
    auto remote = f.rig->expose(shape, access_mode::read, 5);
    auto moved =
      f.move(direction::read, remote, {{.local = local.data, .length = shape.size_bytes()}}, true);
    auto bytes = pattern(shape.size_bytes(), 5);
    BOOST_TEST_REQUIRE(moved->digests.size() == digest_count(bytes.size()));
    for (std::size_t i = 0; i < moved->digests.size(); ++i) {
      auto at = i * digest_block_bytes;
      BOOST_TEST(
        moved->digests[i] ==
        digest(bytes.data() + at, std::min<std::uint64_t>(digest_block_bytes, bytes.size() - at)));
    }
  }
}

void digests_of_a_part_cover_its_whole_blocks(fixture& f) {
  auto size = 3 * digest_block_bytes + 100;
  auto local = f.lend(size);
  auto bytes = pattern(size, 6);
  std::copy(bytes.begin(), bytes.end(), local.data);
  // From inside block 1 to inside block 3, which is the last one and short.
  auto first = digest_block_bytes + 77;
  auto length = 2 * digest_block_bytes - 50;
  auto remote = f.rig->expose({1, length, 0}, access_mode::write, 0);
  copy_op op{
    .local = local.data + first, .length = length, .lead = 77, .tail = size - first - length};
  auto moved = f.move(direction::write, remote, {op}, true);
  BOOST_TEST_REQUIRE(moved.has_value());
  BOOST_TEST_REQUIRE(moved->digests.size() == 3u);
  for (int i = 0; i < 3; ++i) {
    auto at = (i + 1) * digest_block_bytes;
    BOOST_TEST(
      moved->digests[i] == digest(bytes.data() + at, std::min(digest_block_bytes, size - at)));
  }
  BOOST_TEST(f.rig->content(remote) == digest(bytes.data() + first, length));
}

void an_empty_transfer_succeeds(fixture& f) {
  auto remote = f.rig->expose({1, 1, 0}, access_mode::read, 0);
  BOOST_TEST(f.move(direction::read, remote, {}).has_value());
}

void refused(fixture& f, direction dir, const bulk_handle& handle, std::uint64_t offset) {
  auto local = f.lend(4096);
  std::fill_n(local.data, 4096, std::byte{0x5a});
  auto moved =
    f.move(dir, handle, {{.remote_offset = offset, .local = local.data, .length = 4096}});
  BOOST_TEST_REQUIRE(!moved.has_value());
  BOOST_TEST((moved.error().code() == errc::permission_denied));
  BOOST_TEST((copy_of(local) == std::vector<std::byte>(4096, std::byte{0x5a})));
}

void a_wrong_key_moves_nothing(fixture& f) {
  auto handle = f.rig->expose({1, 4096, 0}, access_mode::read, 0);
  handle.key.bytes[15] ^= 1;
  refused(f, direction::read, handle, 0);
}

void a_withdrawn_handle_is_refused(fixture& f) {
  auto handle = f.rig->expose({1, 4096, 0}, access_mode::read, 0);
  f.rig->withdraw(handle);
  refused(f, direction::read, handle, 0);
}

void a_range_outside_the_region_moves_nothing(fixture& f) {
  auto handle = f.rig->expose({1, 8192, 0}, access_mode::read, 0);
  refused(f, direction::read, handle, 4097);
  refused(f, direction::read, handle, ~0ull - 100);
}

void a_readable_region_cannot_be_written(fixture& f) {
  auto handle = f.rig->expose({1, 4096, 0}, access_mode::read, 7);
  refused(f, direction::write, handle, 0);
  auto bytes = pattern(4096, 7);
  BOOST_TEST(f.rig->content(handle) == digest(bytes.data(), bytes.size()));
}

void a_guessed_region_number_is_refused(fixture& f) {
  auto handle = f.rig->expose({1, 4096, 0}, access_mode::read, 0);
  handle.region += 1;
  refused(f, direction::read, handle, 0);
}

void memory_is_held_while_the_transfer_runs_and_no_longer(fixture& f) {
  auto remote = f.rig->expose({1, 1 << 20, 0}, access_mode::read, 0);
  auto local = f.lend(1 << 20);
  std::weak_ptr<void> watch = local.owner;
  auto hold = std::move(local.owner);
  BOOST_TEST(
    f.move(
       direction::read, remote, {{.local = local.data, .length = 1 << 20}}, false, std::move(hold))
      .has_value());
  for (int i = 0; i < 1000 && !watch.expired(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  BOOST_TEST(watch.expired());
}

constexpr std::size_t large_transfers = 8;
constexpr std::uint64_t large_bytes = 16u << 20;

// Returns how many of the large transfers, submitted before a small one, were still running when
// the small one ended.
std::size_t overtaken_by_a_small_transfer(
  fixture& f, const bulk_handle& large, const bulk_handle& small, const memory_block& room) {
  auto ended = std::make_shared<std::atomic<std::size_t>>(0);
  auto before = std::make_shared<std::atomic<std::size_t>>(0); // ended when the small one did
  std::vector<held_completion<transfer_report>> done(large_transfers);
  for (std::size_t i = 0; i < large_transfers; ++i)
    f.rig->fabric().submit(
      {.dir = direction::read,
       .remote = large,
       .ops = {{.local = room.data + i * large_bytes, .length = large_bytes}}},
      [ended, held = done[i].callback()](auto outcome) {
        ++*ended;
        held(std::move(outcome));
      });
  auto* at = room.data + large_transfers * large_bytes;
  std::fill_n(at, 100, std::byte{0});
  held_completion<transfer_report> small_done;
  f.rig->fabric().submit(
    {.dir = direction::read, .remote = small, .ops = {{.local = at, .length = 100}}},
    [ended, before, held = small_done.callback()](auto outcome) {
      *before = ended->load();
      held(std::move(outcome));
    });
  BOOST_TEST(small_done.take().has_value());
  auto expected = pattern(100, 2);
  BOOST_TEST(std::equal(expected.begin(), expected.end(), at));
  for (auto& d : done)
    BOOST_TEST(d.take().has_value());
  return large_transfers - *before;
}

// If transfers were served in order, nearly all large ones would have ended first. The system may
// delay the small one as long as the large ones take, but not every time.
void small_transfers_are_served_between_large_ones(fixture& f) {
  auto large = f.rig->expose({1, large_bytes, 0}, access_mode::read, 1);
  auto small = f.rig->expose({1, 100, 0}, access_mode::read, 2);
  auto room = f.lend(large_transfers * large_bytes + 100);
  std::size_t overtaken = 0;
  for (int i = 0; i < 10 && overtaken < large_transfers / 2; ++i)
    overtaken = std::max(overtaken, overtaken_by_a_small_transfer(f, large, small, room));
  BOOST_TEST(overtaken >= large_transfers / 2);
}

// Some transfers are under way when the owner dies; others it has not begun, however long we take
// to kill it.
void an_owner_that_dies_ends_every_transfer_with_its_name(fixture& f) {
  constexpr std::uint64_t bytes = 20u << 20;
  auto handle = f.rig->expose({1, bytes, 0}, access_mode::read, 1);
  std::vector<held_completion<transfer_report>> done(8);
  auto room = f.lend(done.size() * bytes);
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (i == done.size() / 2)
      f.rig->stop_owner();
    f.rig->fabric().submit(
      {.dir = direction::read,
       .remote = handle,
       .ops = {{.local = room.data + i * bytes, .length = bytes}},
       .hold = room.owner},
      done[i].callback());
  }
  if (!f.rig->kill_owner()) {
    for (auto& d : done)
      BOOST_TEST(d.take().has_value());
    return;
  }
  bool named = false;
  for (auto& d : done) {
    auto outcome = d.take();
    BOOST_TEST((outcome || outcome.error().code() == errc::peer_lost));
    named |= !outcome && outcome.error().detail().find("client:") != std::string::npos;
  }
  BOOST_TEST(named);
  auto after = f.move(direction::read, handle, {{.local = room.data, .length = 100}});
  BOOST_TEST((!after && after.error().code() == errc::peer_lost));
  // The memory into which the dead process was copying comes back.
  std::weak_ptr<void> watch = room.owner;
  room.owner.reset();
  for (int i = 0; i < 3000 && !watch.expired(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  BOOST_TEST(watch.expired());
}

struct adopted_file {
  shared_file file;
  std::shared_ptr<void> adopted;

  adopted_file(fixture& f, const std::string& place, std::uint64_t size_bytes)
    : file(place, size_bytes), adopted(f.rig->fabric().adopt(file.mapping()).value()) {}
};

// Returns true if the process maps the file and all those mappings have MAP_SYNC ("sf" in smaps).
bool maps_synchronously(pid_t process, const std::string& path) {
  std::ifstream smaps{"/proc/" + std::to_string(process) + "/smaps"};
  bool inside = false, some = false, all = true;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') < line.find(' '))
      inside = line.find(path) != std::string::npos;
    if (!inside || line.find("VmFlags:") != 0)
      continue;
    some = true;
    all &= line.find(" sf") != std::string::npos;
  }
  return some && all;
}

// Starts shortly before the border of a granule, ends shortly after another one, and is no multiple
// of anything.
constexpr std::uint64_t odd_offset = (1u << 20) - 100;
constexpr std::uint64_t odd_bytes = (3u << 20) + 77;

void adopted_files_are_targets_of_reads(fixture& f) {
  scratch_directory dir;
  for (auto& place : shared_file_places(dir.path())) {
    adopted_file target{f, place, 8 << 20};
    std::fill_n(target.file.data(), 8 << 20, std::byte{0xee});
    auto remote = f.rig->expose({1, odd_bytes, 0}, access_mode::read, 11);
    auto* data = target.file.data() + odd_offset;
    auto moved = f.move(direction::read, remote, {{.local = data, .length = odd_bytes}}, true);
    if (is_unsupported(moved) && may_refuse_files(f)) {
      BOOST_TEST(
        std::all_of(data, data + odd_bytes, [](std::byte b) { return b == std::byte{0xee}; }),
        place);
      continue;
    }
    BOOST_TEST_REQUIRE(moved.has_value(), place << ": " << why(moved));
    auto expected = pattern(odd_bytes, 11);
    BOOST_TEST(std::equal(expected.begin(), expected.end(), data), place);
    BOOST_TEST((data[-1] == std::byte{0xee} && data[odd_bytes] == std::byte{0xee}), place);
    BOOST_TEST(moved->digests.front() == digest(expected.data(), digest_block_bytes));
    BOOST_TEST(!moved->written_back);
  }
}

void adopted_files_are_sources_of_writes(fixture& f) {
  scratch_directory dir;
  for (auto& place : shared_file_places(dir.path())) {
    adopted_file source{f, place, 8 << 20};
    auto bytes = pattern(odd_bytes, 12);
    auto* data = source.file.data() + odd_offset;
    std::copy(bytes.begin(), bytes.end(), data);
    auto remote = f.rig->expose({1, odd_bytes, 0}, access_mode::write, 0);
    auto moved = f.move(direction::write, remote, {{.local = data, .length = odd_bytes}});
    if (is_unsupported(moved) && may_refuse_files(f))
      continue;
    BOOST_TEST_REQUIRE(moved.has_value(), place << ": " << why(moved));
    BOOST_TEST(f.rig->content(remote) == digest(bytes.data(), bytes.size()));
  }
}

void adopted_files_are_written_again_after_a_sync(fixture& f) {
  scratch_directory dir;
  for (auto& place : shared_file_places(dir.path())) {
    adopted_file target{f, place, 4 << 20};
    for (std::uint64_t salt = 0; salt < 3; ++salt) {
      auto remote = f.rig->expose({1, 3 << 20, 0}, access_mode::read, salt);
      auto moved =
        f.move(direction::read, remote, {{.local = target.file.data(), .length = 3 << 20}});
      if (is_unsupported(moved) && may_refuse_files(f))
        break;
      BOOST_TEST_REQUIRE(moved.has_value(), place << ": " << why(moved));
      BOOST_TEST(target.file.sync());
      auto expected = pattern(3 << 20, salt);
      BOOST_TEST(std::equal(expected.begin(), expected.end(), target.file.data()), place);
    }
  }
}

void reads_are_written_back_when_asked(fixture& f) {
  scratch_directory dir;
  for (auto& place : shared_file_places(dir.path())) {
    adopted_file target{f, place, 8 << 20};
    for (auto& shape : shapes_for(f)) {
      auto remote = f.rig->expose(shape, access_mode::read, 13);
      for (auto digests : {false, true}) {
        held_completion<transfer_report> done;
        auto* data = target.file.data() + 3;
        std::fill_n(data, shape.size_bytes(), std::byte{0});
        transfer t{
          .dir = direction::read,
          .remote = remote,
          .ops = {{.local = data, .length = shape.size_bytes()}},
          .digests = digests,
          .hold = target.adopted,
          .write_back = true};
        f.rig->fabric().submit(std::move(t), done.callback());
        auto moved = done.take();
        if (is_unsupported(moved) && may_refuse_files(f))
          continue;
        BOOST_TEST_REQUIRE(moved.has_value(), place << ": " << why(moved));
        BOOST_TEST(moved->written_back == transport::can_write_back());
        auto expected = pattern(shape.size_bytes(), 13);
        BOOST_TEST(std::equal(expected.begin(), expected.end(), data), place);
      }
    }
  }
}

// Where the mapping is on persistent memory, the driver's mapping must have MAP_SYNC; otherwise
// writing back is not enough.
void mappings_on_persistent_memory_are_synchronous(fixture& f) {
  scratch_directory dir;
  for (auto& place : shared_file_places(dir.path())) {
    adopted_file target{f, place, 2 << 20};
    BOOST_TEST(target.file.syncs() == (std::getenv("MILLRACE_TEST_MAPPING") != nullptr), place);
    auto remote = f.rig->expose({1, 4096, 0}, access_mode::read, 1);
    auto moved = f.move(direction::read, remote, {{.local = target.file.data(), .length = 4096}});
    if (is_unsupported(moved) && may_refuse_files(f))
      continue;
    BOOST_TEST(moved.has_value(), place << ": " << why(moved));
    if (auto owner = f.rig->owner_pid(); owner != 0)
      BOOST_TEST(maps_synchronously(owner, target.file.path()) == target.file.syncs(), place);
  }
}

void many_pieces_of_several_files_are_one_transfer(fixture& f) {
  scratch_directory dir;
  auto place = shared_file_places(dir.path()).front();
  adopted_file target{f, place, 4 << 20};
  auto staged = f.lend(1 << 20);
  auto remote = f.rig->expose({1, 2 << 20, 0}, access_mode::read, 14);
  std::vector<copy_op> ops;
  for (std::uint64_t at = 0; at < 2 << 20; at += 50) {
    auto length = std::min<std::uint64_t>(50, (2 << 20) - at);
    auto* local = at / 50 % 2 == 0 ? target.file.data() + 2 * at : staged.data + at / 2;
    ops.push_back({.remote_offset = at, .local = local, .length = length});
  }
  auto moved = f.move(direction::read, remote, ops);
  BOOST_TEST_REQUIRE(moved.has_value(), why(moved));
  auto expected = pattern(2 << 20, 14);
  for (auto& op : ops)
    if (!std::equal(op.local, op.local + op.length, expected.data() + op.remote_offset)) {
      BOOST_TEST(false, "piece at " << op.remote_offset);
      break;
    }
}

bool shows(const mapped_region& mapped, std::uint64_t size_bytes, std::uint64_t salt) {
  auto expected = pattern(size_bytes, salt);
  return std::equal(expected.begin(), expected.end(), mapped.data, mapped.data + mapped.size_bytes);
}

void a_mapped_region_shows_what_its_owner_writes(fixture& f) {
  for (auto size : {std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{5'000'001}}) {
    auto remote = f.expose_readable(size, access_mode::read, 3);
    auto mapped = f.map(remote);
    if (!f.rig->capabilities().maps) {
      BOOST_TEST(is_unsupported(mapped), why(mapped));
      continue;
    }
    BOOST_TEST_REQUIRE(mapped.has_value(), why(mapped));
    BOOST_TEST(shows(*mapped, size, 3));
    f.rig->refill(remote, 4);
    BOOST_TEST(shows(*mapped, size, 4));
  }
}

void memory_that_peers_only_read_takes_part_in_transfers(fixture& f) {
  constexpr std::uint64_t size = 300'000;
  auto local = f.lend(size);
  auto source = f.expose_readable(size, access_mode::read, 5);
  BOOST_TEST(f.move(direction::read, source, {{.local = local.data, .length = size}}).has_value());
  auto bytes = pattern(size, 5);
  BOOST_TEST((copy_of(local) == bytes));
  auto target = f.expose_readable(size, access_mode::write, 0);
  BOOST_TEST(f.move(direction::write, target, {{.local = local.data, .length = size}}).has_value());
  BOOST_TEST(f.rig->content(target) == digest(bytes.data(), bytes.size()));
}

void memory_that_peers_may_not_map_stays_unmapped(fixture& f) {
  matrix_shape in_arena{1, 4096, 0, transport::arena_sharing::transfers};
  for (auto& handle :
       {f.rig->expose({1, 4096, 0}, access_mode::read, 3),
        f.rig->expose(in_arena, access_mode::read, 3),
        f.expose_readable(100, access_mode::read, 3, 7)}) {
    auto mapped = f.map(handle);
    BOOST_TEST(is_unsupported(mapped), why(mapped));
  }
}

void nothing_is_mapped_without_the_right(fixture& f) {
  auto wrong_key = f.expose_readable(4096, access_mode::read, 3);
  auto wrong_number = wrong_key;
  wrong_key.key.bytes[15] ^= 1;
  wrong_number.region += 1000;
  auto writable = f.expose_readable(4096, access_mode::write, 3);
  auto withdrawn = f.expose_readable(4096, access_mode::read, 3);
  f.rig->withdraw(withdrawn);
  for (auto& handle : {wrong_key, wrong_number, writable, withdrawn}) {
    auto mapped = f.map(handle);
    BOOST_TEST_REQUIRE(!mapped.has_value());
    BOOST_TEST(
      (mapped.error().code() == errc::permission_denied ||
       (is_unsupported(mapped) && !f.rig->capabilities().maps)),
      why(mapped));
  }
}

void a_region_mapped_for_writing_is_shared_with_its_owner(fixture& f) {
  constexpr std::uint64_t size = 300'001;
  auto remote =
    f.rig->expose({1, size, 0, transport::arena_sharing::read_write}, access_mode::write, 0);
  auto mapped = f.map(remote, access_mode::write);
  if (!f.rig->capabilities().maps) {
    BOOST_TEST(is_unsupported(mapped), why(mapped));
    return;
  }
  BOOST_TEST_REQUIRE(mapped.has_value(), why(mapped));
  BOOST_TEST((mapped->writable == mapped->data));
  f.rig->refill(remote, 4);
  BOOST_TEST(shows(*mapped, size, 4));
  auto bytes = pattern(size, 5);
  std::copy(bytes.begin(), bytes.end(), mapped->writable);
  BOOST_TEST(f.rig->content(remote) == digest(bytes.data(), size));
  // Transfers to it go on as before.
  auto local = f.lend(size);
  write_pattern(local.data, 0, size, 6);
  BOOST_TEST(f.move(direction::write, remote, {{.local = local.data, .length = size}}).has_value());
  BOOST_TEST(shows(*mapped, size, 6));
}

void memory_is_mapped_for_writing_only_where_it_is_shared_so(fixture& f) {
  using transport::arena_sharing;
  auto region = [&](std::optional<arena_sharing> arena, access_mode how) {
    return f.rig->expose({1, 4096, 0, arena}, how, 3);
  };
  auto written = access_mode::write;
  for (auto& handle :
       {region({}, written), region(arena_sharing::transfers, written),
        region(arena_sharing::read_only, written)}) {
    auto mapped = f.map(handle, written);
    BOOST_TEST(is_unsupported(mapped), why(mapped));
  }
  auto only_read = f.map(region(arena_sharing::read_write, access_mode::read));
  BOOST_TEST(is_unsupported(only_read), why(only_read));
  auto denied = [&](const auto& mapped) {
    return !mapped &&
      (mapped.error().code() == errc::permission_denied ||
       (is_unsupported(mapped) && !f.rig->capabilities().maps));
  };
  auto remote = region(arena_sharing::read_write, written);
  auto wrong_key = remote;
  wrong_key.key.bytes[3] ^= 1;
  BOOST_TEST(denied(f.map(remote, access_mode::read)));
  BOOST_TEST(denied(f.map(wrong_key, written)));
  BOOST_TEST(denied(f.map(region(arena_sharing::read_only, access_mode::read), written)));
  f.rig->withdraw(remote);
  BOOST_TEST(denied(f.map(remote, written)));
}

void a_mapped_region_outlives_its_owner(fixture& f) {
  auto remote = f.expose_readable(100'000, access_mode::read, 6);
  auto mapped = f.map(remote);
  if (!f.rig->capabilities().maps)
    return;
  BOOST_TEST_REQUIRE(mapped.has_value(), why(mapped));
  f.rig->withdraw(remote);
  BOOST_TEST(shows(*mapped, 100'000, 6));
  f.rig->stop_owner();
  held_completion<mapped_region> asked;
  f.rig->fabric().map(remote, asked.callback());
  if (!f.rig->kill_owner())
    return;
  BOOST_TEST((asked.take().error().code() == errc::peer_lost));
  BOOST_TEST((f.map(remote).error().code() == errc::peer_lost));
  BOOST_TEST(shows(*mapped, 100'000, 6));
}

struct contract_case {
  const char* name;
  void (*run)(fixture&);
};

#define CASE(name)                                                                                 \
  { #name, name }
const contract_case cases[] = {
  CASE(reads_arrive_byte_for_byte),
  CASE(writes_arrive_byte_for_byte),
  CASE(strided_memory_moves_or_is_refused_before_a_byte_moves),
  CASE(many_pieces_in_any_order_are_one_transfer),
  CASE(many_transfers_at_once_all_end_whole),
  CASE(digests_cover_blocks_of_what_was_read),
  CASE(digests_of_a_part_cover_its_whole_blocks),
  CASE(an_empty_transfer_succeeds),
  CASE(a_wrong_key_moves_nothing),
  CASE(a_withdrawn_handle_is_refused),
  CASE(a_range_outside_the_region_moves_nothing),
  CASE(a_readable_region_cannot_be_written),
  CASE(a_guessed_region_number_is_refused),
  CASE(memory_is_held_while_the_transfer_runs_and_no_longer),
  CASE(small_transfers_are_served_between_large_ones),
  CASE(adopted_files_are_targets_of_reads),
  CASE(adopted_files_are_sources_of_writes),
  CASE(adopted_files_are_written_again_after_a_sync),
  CASE(reads_are_written_back_when_asked),
  CASE(mappings_on_persistent_memory_are_synchronous),
  CASE(many_pieces_of_several_files_are_one_transfer),
  CASE(a_mapped_region_shows_what_its_owner_writes),
  CASE(memory_that_peers_only_read_takes_part_in_transfers),
  CASE(memory_that_peers_may_not_map_stays_unmapped),
  CASE(nothing_is_mapped_without_the_right),
  CASE(a_region_mapped_for_writing_is_shared_with_its_owner),
  CASE(memory_is_mapped_for_writing_only_where_it_is_shared_so),
  CASE(a_mapped_region_outlives_its_owner),
  CASE(an_owner_that_dies_ends_every_transfer_with_its_name)};
#undef CASE

} // namespace

bool add_driver_contract(
  const std::string& name, std::function<std::unique_ptr<driver_rig>()> make, const char* file) {
  namespace ut = boost::unit_test;
  auto* suite = BOOST_TEST_SUITE("driver_contract_" + name);
  for (auto& c : cases) {
    auto run = [make, c] {
      fixture f{make()};
      c.run(f);
    };
    suite->add(ut::make_test_case(run, c.name, file, __LINE__));
  }
  ut::framework::master_test_suite().add(suite);
  return true;
}

} // namespace millrace::testing
