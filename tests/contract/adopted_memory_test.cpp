// Tests adopted files between two processes (which process may reach them, and how long), and
// copies within one process.
#include "process_rig.hpp"

#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/other_user.hpp>
#include <millrace/tests/support/shared_file.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/transport/copy/copy.hpp>

#include <fstream>
#include <iostream>
#include <sstream>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::testing;
using namespace millrace::transport;

namespace {

constexpr std::uint64_t file_bytes = 4u << 20;

std::string tmpfs_place() { return "/dev/shm/millrace-test-" + std::to_string(getpid()); }

struct two_processes {
  shm_rig rig;
  shared_file file{tmpfs_place(), file_bytes};
  std::shared_ptr<void> adopted;

  explicit two_processes(std::optional<uid_t> uid = std::nullopt)
    : rig(uid), adopted(rig.fabric().adopt(file.mapping()).value()) {}

  result<transfer_report> read_into(std::byte* local, std::uint64_t length) {
    auto remote = rig.expose({1, length, 0}, access_mode::read, 1);
    held_completion<transfer_report> done;
    rig.fabric().submit(
      {.dir = direction::read, .remote = remote, .ops = {{.local = local, .length = length}}},
      done.callback());
    return done.take();
  }
};

bool maps(pid_t process, const std::string& path) {
  std::ifstream file{"/proc/" + std::to_string(process) + "/maps"};
  std::stringstream text;
  text << file.rdbuf();
  return text.str().find(path) != std::string::npos;
}

} // namespace

BOOST_AUTO_TEST_SUITE(adopted_memory)

BOOST_AUTO_TEST_CASE(a_peer_maps_the_parts_it_was_granted_and_no_others) {
  two_processes p;
  BOOST_TEST(!maps(p.rig.owner_pid(), p.file.path()));
  BOOST_TEST(p.read_into(p.file.data() + rig_granule_bytes + 10, 100).has_value());
  std::ifstream file{"/proc/" + std::to_string(p.rig.owner_pid()) + "/maps"};
  std::uint64_t mapped = 0;
  for (std::string line; std::getline(file, line);)
    if (line.find(p.file.path()) != std::string::npos) {
      std::uint64_t first = 0, last = 0;
      char dash = 0;
      std::istringstream{line} >> std::hex >> first >> dash >> last;
      mapped += last - first;
    }
  BOOST_TEST(mapped == rig_granule_bytes);
}

BOOST_AUTO_TEST_CASE(a_withdrawn_mapping_is_out_of_reach_and_unmapped_by_peers) {
  two_processes p;
  BOOST_TEST(p.read_into(p.file.data(), 100'000).has_value());
  BOOST_TEST(maps(p.rig.owner_pid(), p.file.path()));
  p.adopted.reset();
  auto after = p.read_into(p.file.data(), 100'000);
  BOOST_TEST_REQUIRE(!after.has_value());
  BOOST_TEST((after.error().code() == errc::internal));
  for (int i = 0; i < 3000 && maps(p.rig.owner_pid(), p.file.path()); ++i)
    usleep(10'000);
  BOOST_TEST(!maps(p.rig.owner_pid(), p.file.path()));
}

BOOST_AUTO_TEST_CASE(a_mapping_can_be_adopted_again_but_not_twice) {
  two_processes p;
  auto twice = p.rig.fabric().adopt(p.file.mapping());
  BOOST_TEST_REQUIRE(!twice.has_value());
  BOOST_TEST((twice.error().code() == errc::already_exists));
  auto part = p.file.mapping();
  part.data += 4096, part.file_offset += 4096, part.size_bytes = 4096;
  BOOST_TEST((p.rig.fabric().adopt(part).error().code() == errc::already_exists));
  p.adopted.reset();
  p.adopted = p.rig.fabric().adopt(p.file.mapping()).value();
  BOOST_TEST(p.read_into(p.file.data(), 100'000).has_value());
  auto expected = pattern(100'000, 1);
  BOOST_TEST(std::equal(expected.begin(), expected.end(), p.file.data()));
}

BOOST_AUTO_TEST_CASE(a_part_of_a_file_can_be_adopted) {
  two_processes p;
  p.adopted.reset();
  auto part = p.file.mapping();
  part.data += 4096 * 3, part.file_offset += 4096 * 3, part.size_bytes = 2 << 20;
  p.adopted = p.rig.fabric().adopt(part).value();
  BOOST_TEST(p.read_into(part.data + (1 << 20) - 7, 100'000).has_value());
  auto expected = pattern(100'000, 1);
  BOOST_TEST(std::equal(expected.begin(), expected.end(), part.data + (1 << 20) - 7));
  BOOST_TEST(!p.read_into(part.data - 1, 2).has_value());
  BOOST_TEST(!p.read_into(part.data + part.size_bytes - 1, 2).has_value());
}

BOOST_AUTO_TEST_CASE(a_file_cut_short_is_an_error_and_no_signal) {
  two_processes p;
  BOOST_TEST(p.read_into(p.file.data(), 100).has_value());
  BOOST_TEST(ftruncate(p.file.mapping().fd, 2 << 20) == 0);
  auto moved = p.read_into(p.file.data() + (3 << 20), 100'000);
  BOOST_TEST_REQUIRE(!moved.has_value());
  BOOST_TEST((moved.error().code() == errc::io_error), why(moved));
  BOOST_TEST(p.read_into(p.file.data(), 100'000).has_value());
}

BOOST_AUTO_TEST_CASE(a_peer_of_another_user_gets_no_file_and_still_has_arenas) {
  constexpr uid_t stranger = 12345;
  if (auto why = testing::why_not_as(stranger); !why.empty()) {
    millrace::testing::skipped("adopted memory and another user: " + why);
    return;
  }
  two_processes p{stranger};
  std::fill_n(p.file.data(), 4096, std::byte{0x5a});
  auto moved = p.read_into(p.file.data(), 4096);
  BOOST_TEST_REQUIRE(!moved.has_value());
  BOOST_TEST((moved.error().code() == errc::unsupported), why(moved));
  BOOST_TEST((moved.error().detail().find("another user") != std::string::npos), why(moved));
  BOOST_TEST(std::all_of(
    p.file.data(), p.file.data() + 4096, [](std::byte b) { return b == std::byte{0x5a}; }));
  auto staged = p.rig.memory().allocate(4096, 64).value();
  BOOST_TEST(p.read_into(staged.data, 4096).has_value());
  BOOST_TEST(!maps(p.rig.owner_pid(), p.file.path()));
}

// One piece is in an arena; another, larger than one message can list, is in a file.
BOOST_AUTO_TEST_CASE(what_a_peer_may_not_reach_fails_before_the_rest_moves) {
  constexpr uid_t stranger = 12345;
  if (auto why = testing::why_not_as(stranger); !why.empty()) {
    millrace::testing::skipped("adopted memory and another user: " + why);
    return;
  }
  two_processes p{stranger};
  constexpr std::uint64_t pieces = 40'000;
  auto staged = p.rig.memory().allocate(pieces, 64).value();
  std::fill_n(staged.data, pieces, std::byte{0x5a});
  auto remote = p.rig.expose({1, pieces + 1, 0}, access_mode::read, 1);
  std::vector<copy_op> ops;
  for (std::uint64_t i = 0; i < pieces; ++i)
    ops.push_back({.remote_offset = i, .local = staged.data + i, .length = 1});
  ops.push_back({.remote_offset = pieces, .local = p.file.data(), .length = 1});
  held_completion<transfer_report> done;
  p.rig.fabric().submit({.dir = direction::read, .remote = remote, .ops = ops}, done.callback());
  auto moved = done.take();
  BOOST_TEST((!moved && moved.error().code() == errc::unsupported), why(moved));
  BOOST_TEST(std::all_of(
    staged.data, staged.data + pieces, [](std::byte b) { return b == std::byte{0x5a}; }));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_a_pool_is_not_adopted) {
  two_processes p;
  auto& f = p.rig.fabric();
  p.adopted.reset();
  auto refused = [&](file_mapping m) {
    auto adopted = f.adopt(m);
    return !adopted && adopted.error().code() == errc::invalid_argument;
  };
  auto good = p.file.mapping();
  auto bad = good;
  bad.size_bytes += 4096;
  BOOST_TEST(refused(bad));
  bad = good;
  bad.file_offset = 4096;
  BOOST_TEST(refused(bad));
  bad = good;
  bad.data += 1;
  BOOST_TEST(refused(bad));
  bad = good;
  bad.fd = open(p.file.path().c_str(), O_RDONLY | O_CLOEXEC);
  BOOST_TEST(refused(bad));
  close(bad.fd);
  bad.fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
  BOOST_TEST(refused(bad));
  close(bad.fd);
  bad.fd = -1;
  BOOST_TEST(refused(bad));
  BOOST_TEST(f.adopt(good).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(copies_within_a_process)

BOOST_AUTO_TEST_CASE(parts_of_any_size_and_alignment_arrive) {
  auto loop = io_loop::start({}).value();
  auto f = fabric_of(loop, {"local"});
  for (auto write_back : {false, transport::can_write_back()}) {
    auto source = pattern(5'000'001, 1);
    std::vector<std::byte> target(source.size() + 64, std::byte{0xee});
    std::vector<local_copy> parts;
    std::uint64_t at = 0;
    for (std::uint64_t length : {1u, 0u, 63u, 64u, 65u, 255u, 3'000'000u, 300u, 1'999'253u}) {
      parts.push_back({target.data() + 1 + at, source.data() + at, length});
      at += length;
    }
    BOOST_TEST_REQUIRE(at == source.size());
    held_completion<void> done;
    f->copy(parts, write_back, done.callback());
    BOOST_TEST(done.take().has_value());
    BOOST_TEST(std::equal(source.begin(), source.end(), target.begin() + 1));
    BOOST_TEST((target[0] == std::byte{0xee} && target[at + 1] == std::byte{0xee}));
  }
  held_completion<void> nothing;
  f->copy({}, false, nothing.callback());
  BOOST_TEST(nothing.take().has_value());
  loop->stop();
}

BOOST_AUTO_TEST_SUITE_END()
