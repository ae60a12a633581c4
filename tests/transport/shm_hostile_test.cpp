// Tests a peer that makes the shm driver's messages by hand and lies about files. It is refused,
// and nothing is touched.
#include <millrace/core/codec.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/tests/net/channel_support.hpp>
#include <millrace/tests/support/exposed_matrix.hpp>
#include <millrace/tests/support/fabric_handler.hpp>
#include <millrace/tests/support/shared_file.hpp>
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/shm/messages.hpp>
#include <millrace/transport/shm/shm_options.hpp>

#include <sys/mman.h>
#include <sys/stat.h>

#include <fstream>
#include <semaphore>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using namespace millrace::transport;
using millrace::testing::exposed_matrix;
using millrace::testing::fabric_handler;
using millrace::testing::pattern;
using millrace::testing::shared_file;
using shm::message_kind;

namespace {

constexpr std::uint64_t granule = 64u << 10;
constexpr std::uint64_t file_bytes = 8 * granule;

struct fixture {
  temp_dir dir;
  shared_file file{"/dev/shm/millrace-hostile-" + std::to_string(getpid()), file_bytes};
  std::shared_ptr<io_loop> loop = make_loop();
  std::shared_ptr<fabric> victim = fabric::create(modest(), loop).value();
  std::shared_ptr<listener> listening;
  std::shared_ptr<recorder> answers = std::make_shared<recorder>();
  std::shared_ptr<channel> liar;
  exposed_matrix memory{{1, 100'000, 0}, access_mode::read, 3};
  std::uint64_t moves = 0;

  static fabric_options modest() {
    fabric_options o;
    o.movers = 1;
    o.drivers.edit<shm_options>().backlog_bytes_max = 4u << 20;
    o.drivers.edit<shm_options>().mapped_max = 4;
    return o;
  }

  fixture() {
    std::fill_n(file.data(), file_bytes, std::byte{0x5a});
    auto handler = std::make_shared<fabric_handler>(victim);
    auto address = "unix:" + dir.path + "/s";
    listening = listener::open(
                  loop, {.address = address, .allow_uids = {}}, {.local_name = "victim"},
                  [handler](const peer_info&) { return handler; })
                  .value();
    liar = connect_to(loop, address, {.local_name = "liar"}, answers).value();
  }
  ~fixture() {
    liar->close({});
    loop->stop();
  }

  template <class Message>
  void send(message_kind kind, const Message& m, int fd = -1) {
    std::ignore = transport::send(*liar, kind, m, {&fd, fd >= 0 ? 1u : 0u});
  }

  void announce(std::uint64_t size_bytes = file_bytes, std::uint64_t granule_bytes = granule) {
    send(
      message_kind::announce_file, shm::announce_file{1, size_bytes, 0, granule_bytes},
      file.mapping().fd);
  }

  // Asks for a move of the victim's memory.
  shm::move move_of(std::vector<shm::move_op> ops) {
    shm::move m;
    m.number = ++moves;
    m.region = memory.handle().region;
    m.key = memory.handle().key;
    m.dir = static_cast<std::uint8_t>(direction::read);
    m.ops = std::move(ops);
    return m;
  }

  // Asks the victim to copy its memory to a place in the file; the code of its answer.
  errc move_to(std::uint64_t offset, std::uint64_t length) {
    return answer_to(move_of({{0, 1, offset, length, 0, 0}}));
  }

  void ask(const shm::move& m) { send(message_kind::asks, shm::asks{{m}}); }

  errc answer_to(const shm::move& m) {
    ask(m);
    return wait_answer(m.number);
  }

  errc wait_answer(std::uint64_t number) {
    errc code{};
    auto came = answers->wait([&] { return find_answer(number, code); });
    BOOST_TEST_REQUIRE(came);
    return code;
  }

  bool find_answer(std::uint64_t number, errc& code) const {
    for (auto& f : answers->frames) {
      wire_reader reader{f.body};
      std::string driver;
      message_kind kind{};
      shm::answers all;
      reader(driver, kind);
      if (kind == message_kind::answers && reader(all))
        for (auto& outcome : all.outcomes)
          if (outcome.number == number) {
            code = static_cast<errc>(outcome.code);
            return true;
          }
    }
    return false;
  }
  bool answered(std::uint64_t number) {
    errc code{};
    return answers->look([&] { return find_answer(number, code); });
  }

  // What was submitted to the only mover before, of any class, has ended.
  void finish_movers() {
    auto ended = std::make_shared<std::binary_semaphore>(0);
    victim->movers()->submit(
      1, [](std::uint32_t) {}, [ended] { ended->release(); }, job_class::background);
    ended->acquire();
  }

  bool untouched(std::uint64_t first, std::uint64_t last) const {
    return std::all_of(
      file.data() + first, file.data() + last, [](std::byte b) { return b == std::byte{0x5a}; });
  }

  // The other side closed the connection.
  bool thrown_out() { return answers->wait_closings(1); }
};

// Keeps the victim's only mover from everything else.
struct busy_mover {
  std::shared_ptr<std::binary_semaphore> end = std::make_shared<std::binary_semaphore>(0);
  explicit busy_mover(const fixture& f) {
    f.victim->movers()->submit(
      1, [end = end](std::uint32_t) { end->acquire(); }, [] {});
  }
  ~busy_mover() { end->release(); }
};

// Mappings of this process whose name contains a word.
std::size_t mappings_of(const std::string& word) {
  std::ifstream maps{"/proc/self/maps"};
  std::size_t n = 0;
  for (std::string line; std::getline(maps, line);)
    n += line.find(word) != std::string::npos;
  return n;
}

// A sealed memfd, as arenas are.
unique_fd sealed_memfd(const char* name, std::uint64_t size_bytes, std::uint64_t touched_bytes) {
  unique_fd fd{memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  BOOST_TEST_REQUIRE(ftruncate(fd.get(), static_cast<off_t>(size_bytes)) == 0);
  std::vector<std::byte> bytes(touched_bytes, std::byte{1});
  BOOST_TEST_REQUIRE(
    pwrite(fd.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(touched_bytes));
  BOOST_TEST_REQUIRE(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  return fd;
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(hostile_owners_of_files, fixture)

BOOST_AUTO_TEST_CASE(a_part_that_was_not_granted_is_refused) {
  announce();
  BOOST_TEST((move_to(0, 100) == errc::permission_denied));
  send(message_kind::grant, shm::grant{1, granule, granule});
  BOOST_TEST((move_to(granule - 1, 2) == errc::permission_denied));
  BOOST_TEST((move_to(2 * granule - 1, 2) == errc::permission_denied));
  BOOST_TEST((move_to(0, file_bytes) == errc::permission_denied));
  BOOST_TEST(untouched(0, file_bytes));
  BOOST_TEST((move_to(granule, granule) == errc::ok));
  auto expected = pattern(granule, 3);
  BOOST_TEST(std::equal(expected.begin(), expected.end(), file.data() + granule));
  BOOST_TEST((untouched(0, granule) && untouched(2 * granule, file_bytes)));
}

BOOST_AUTO_TEST_CASE(a_range_beyond_the_file_is_refused_whatever_was_granted) {
  announce();
  send(message_kind::grant, shm::grant{1, 0, file_bytes});
  BOOST_TEST((move_to(file_bytes - 1, 2) == errc::permission_denied));
  BOOST_TEST((move_to(~0ull, 1) == errc::permission_denied));
  BOOST_TEST((move_to(~0ull - 99, 100) == errc::permission_denied));
  BOOST_TEST(untouched(0, file_bytes));
}

BOOST_AUTO_TEST_CASE(a_grant_of_what_is_mapped_changes_nothing) {
  announce();
  for (int i = 0; i < 3; ++i) {
    send(message_kind::grant, shm::grant{1, 0, 2 * granule});
    BOOST_TEST((move_to(granule - 50, 100) == errc::ok));
  }
}

BOOST_AUTO_TEST_CASE(nothing_can_be_moved_after_a_file_was_forgotten) {
  announce();
  send(message_kind::grant, shm::grant{1, 0, granule});
  send(message_kind::forget, shm::forget{1});
  BOOST_TEST((move_to(0, 100) == errc::permission_denied));
  BOOST_TEST(untouched(0, file_bytes));
}

// The file has 2^28 granules. A list of them would take longer than the test waits.
BOOST_AUTO_TEST_CASE(grants_of_huge_files_are_not_counted_out) {
  constexpr std::uint64_t size = granule << 28;
  unique_fd huge{memfd_create("hostile-huge", MFD_CLOEXEC)};
  BOOST_TEST_REQUIRE(ftruncate(huge.get(), static_cast<off_t>(size)) == 0);
  send(message_kind::announce_file, shm::announce_file{1, size, 0, granule}, huge.get());
  send(message_kind::grant, shm::grant{1, 2 * granule, granule});
  send(message_kind::grant, shm::grant{1, 0, size / 2});
  BOOST_TEST((move_to(size / 2 - 1, 1) == errc::ok));
  BOOST_TEST((move_to(size / 2 - 1, 2) == errc::permission_denied));
  send(message_kind::grant, shm::grant{1, size / 2, size / 2});
  BOOST_TEST((move_to(size / 2 - 1, 2) == errc::ok));
}

// A file in many parts takes as many mappings as many files.
BOOST_AUTO_TEST_CASE(separate_parts_of_a_file_count_as_mappings) {
  announce();
  for (auto at : {0u, 2u, 4u})
    send(message_kind::grant, shm::grant{1, at * granule, granule});
  BOOST_TEST((move_to(4 * granule, 100) == errc::ok));
  // It joins two, which makes room for another one.
  send(message_kind::grant, shm::grant{1, granule, granule});
  send(message_kind::grant, shm::grant{1, 6 * granule, granule});
  BOOST_TEST((move_to(6 * granule, 100) == errc::ok));
  send(
    message_kind::announce_file, shm::announce_file{2, file_bytes, 0, granule}, file.mapping().fd);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_grant_that_is_not_made_of_granules_ends_the_connection) {
  announce();
  send(message_kind::grant, shm::grant{1, 1, granule});
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_grant_beyond_the_file_ends_the_connection) {
  announce();
  send(message_kind::grant, shm::grant{1, file_bytes - granule, 2 * granule});
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_grant_that_wraps_around_ends_the_connection) {
  announce();
  send(message_kind::grant, shm::grant{1, granule, ~0ull - granule + 1});
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_grant_of_what_was_not_announced_ends_the_connection) {
  send(message_kind::grant, shm::grant{1, 0, granule});
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_file_shorter_than_announced_ends_the_connection) {
  announce(file_bytes + 1);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(granules_of_no_sensible_size_end_the_connection) {
  announce(file_bytes, 3 * granule);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(granules_of_no_bytes_end_the_connection) {
  announce(file_bytes, 0);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_file_announced_twice_ends_the_connection) {
  announce();
  announce();
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_file_without_a_descriptor_ends_the_connection) {
  send(message_kind::announce_file, shm::announce_file{1, file_bytes, 0, granule});
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_descriptor_of_something_else_ends_the_connection) {
  int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
  send(message_kind::announce_file, shm::announce_file{1, file_bytes, 0, granule}, zero);
  close(zero);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_file_that_may_not_be_written_is_out_of_reach_and_the_connection_lives) {
  int reading = open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
  send(message_kind::announce_file, shm::announce_file{1, file_bytes, 0, granule}, reading);
  close(reading);
  send(message_kind::grant, shm::grant{1, 0, granule});
  BOOST_TEST((move_to(0, 100) == errc::unsupported));
  BOOST_TEST((move_to(0, 100) == errc::unsupported));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(hostile_moves, fixture)

// A digest of one byte tells which it was.
BOOST_AUTO_TEST_CASE(a_read_learns_nothing_of_what_lies_around_the_region) {
  announce();
  send(message_kind::grant, shm::grant{1, 0, file_bytes});
  auto m = move_of({{99'999, 1, 0, 1, 0, 1}});
  m.digests = true;
  ask(m);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_read_learns_nothing_of_what_lies_before_its_range) {
  announce();
  send(message_kind::grant, shm::grant{1, 0, file_bytes});
  auto m = move_of({{0, 1, granule, 1, 5, 0}});
  m.digests = true;
  ask(m);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(digests_of_far_more_than_a_move_writes_end_the_connection) {
  announce();
  send(message_kind::grant, shm::grant{1, 0, file_bytes});
  auto m = move_of({{0, 1, 7 * granule, 1, digest_block_bytes, 0}});
  m.dir = static_cast<std::uint8_t>(direction::write);
  m.digests = true;
  ask(m);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(more_pieces_than_a_move_may_have_end_the_connection) {
  announce();
  send(message_kind::grant, shm::grant{1, 0, file_bytes});
  ask(move_of(std::vector<shm::move_op>(shm::move_ops_max, {0, 1, 0, 1})));
  BOOST_TEST((move_to(0, 1) == errc::ok));
  ask(move_of(std::vector<shm::move_op>(shm::move_ops_max + 1, {0, 1, 0, 1})));
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_liar_among_several_moves_ends_the_connection) {
  announce();
  send(message_kind::grant, shm::grant{1, 0, file_bytes});
  auto right = move_of({{0, 1, 0, 1, 0, 0}}), wrong = move_of({});
  wrong.dir = 3;
  send(message_kind::asks, shm::asks{{right, wrong}});
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(several_moves_in_one_message_are_bounded_as_alone) {
  announce();
  send(message_kind::grant, shm::grant{1, 0, file_bytes});
  shm::asks many;
  for (int i = 0; i < 10'000; ++i)
    many.moves.push_back(move_of({{0, 1, 0, 1, 0, 0}}));
  busy_mover busy{*this};
  send(message_kind::asks, many);
  BOOST_TEST((wait_answer(many.moves.back().number) == errc::busy));
  BOOST_TEST(!answered(many.moves.front().number));
}

BOOST_AUTO_TEST_CASE(a_move_in_no_known_direction_ends_the_connection) {
  auto m = move_of({});
  m.dir = 3;
  ask(m);
  BOOST_TEST(thrown_out());
}

// The process that touches the pages of an arena first pays for them.
BOOST_AUTO_TEST_CASE(an_arena_that_was_not_touched_ends_the_connection) {
  constexpr std::uint64_t size = 64u << 20;
  auto fd = sealed_memfd("hostile-sparse", size, 4096);
  send(message_kind::announce, shm::announce{1, size}, fd.get());
  BOOST_TEST(thrown_out());
  BOOST_TEST(mappings_of("hostile-sparse") == 0u);
}

BOOST_AUTO_TEST_CASE(what_is_refused_does_not_touch_the_arena) {
  constexpr std::uint64_t size = 1u << 20;
  auto fd = sealed_memfd("hostile-holes", size, size);
  send(message_kind::announce, shm::announce{1, size}, fd.get());
  BOOST_TEST((move_to(size - 1, 2) == errc::permission_denied));
  BOOST_TEST_REQUIRE(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, size) == 0);
  BOOST_TEST((answer_to(move_of({{100'000, 1, 0, 1, 0, 0}})) == errc::permission_denied));
  BOOST_TEST((answer_to(move_of({})) == errc::ok));
  finish_movers();
  struct stat info {};
  BOOST_TEST(fstat(fd.get(), &info) == 0);
  BOOST_TEST(info.st_blocks == 0);
}

BOOST_AUTO_TEST_CASE(more_moves_than_there_is_memory_for_are_busy) {
  announce();
  send(message_kind::grant, shm::grant{1, 0, file_bytes});
  auto large = [&] { return move_of(std::vector<shm::move_op>(shm::move_ops_max, {0, 1, 0, 1})); };
  std::vector<std::uint64_t> numbers;
  {
    busy_mover busy{*this};
    for (int i = 0; i < 8; ++i) {
      auto m = large();
      numbers.push_back(m.number);
      ask(m);
    }
    BOOST_TEST((wait_answer(numbers.back()) == errc::busy));
    BOOST_TEST(!answered(numbers.front()));
  }
  BOOST_TEST((wait_answer(numbers.front()) == errc::ok));
  BOOST_TEST((answer_to(large()) == errc::ok));
}

BOOST_AUTO_TEST_CASE(files_are_paged_in_by_a_mover_however_short_the_move) {
  announce();
  send(message_kind::grant, shm::grant{1, 0, file_bytes});
  std::uint64_t number = 0;
  {
    busy_mover busy{*this};
    auto m = move_of({{0, 1, 0, 1, 0, 0}});
    number = m.number;
    ask(m);
    // Asked for later, and refused by the loop.
    BOOST_TEST((answer_to(move_of({{0, 2, 0, 1, 0, 0}})) == errc::permission_denied));
    BOOST_TEST(!answered(number));
  }
  BOOST_TEST((wait_answer(number) == errc::ok));
}

BOOST_AUTO_TEST_CASE(memory_of_a_peer_that_is_gone_is_unmapped_by_a_mover) {
  constexpr std::uint64_t size = 1u << 20;
  auto fd = sealed_memfd("hostile-arena", size, size);
  send(message_kind::announce, shm::announce{2, size}, fd.get());
  BOOST_TEST((answer_to(move_of({{0, 2, 0, 1, 0, 0}})) == errc::ok));
  BOOST_TEST(mappings_of("hostile-arena") == 1u);
  finish_movers();
  {
    busy_mover busy{*this};
    send(message_kind::forget, shm::forget{2});
    BOOST_TEST((answer_to(move_of({{0, 2, 0, 1, 0, 0}})) == errc::permission_denied));
    BOOST_TEST(mappings_of("hostile-arena") == 1u);
  }
  finish_movers();
  BOOST_TEST(mappings_of("hostile-arena") == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
