// Tests how members of a group exchange chunks by a ring, and what a member that writes anything to
// its memory can do to others.
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/transport/ring/chunk_ring.hpp>

#include <boost/test/unit_test.hpp>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <random>
#include <thread>

using namespace millrace;
using namespace millrace::transport;
using namespace std::chrono_literals;
using millrace::testing::is_pattern;
using millrace::testing::pattern;
using millrace::testing::why;

namespace {

constexpr ring_shape small{.members = 3, .chunk_bytes = 4096, .chunks = 4};
// No test waits for these: who is not woken fails it.
constexpr ring_patience sleeps{.spin = 0us, .sleep = 60s};
constexpr auto at_most = 30s;

time_point soon() { return steady_clock::now() + at_most; }

// Memory that forked processes share.
class shared_bytes {
public:
  explicit shared_bytes(std::uint64_t size)
    : bytes_(
        static_cast<std::byte*>(
          mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        size) {
    BOOST_TEST_REQUIRE((bytes_.data() != MAP_FAILED));
  }
  ~shared_bytes() { munmap(bytes_.data(), bytes_.size()); }
  shared_bytes(const shared_bytes&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

private:
  std::span<std::byte> bytes_;
};

// A ring with a member of each number in this process.
struct world {
  const ring_shape shape;
  shared_bytes memory{ring_bytes(shape)};
  std::vector<std::unique_ptr<chunk_ring>> members;

  explicit world(const ring_shape& s = small, const ring_patience& patience = {}) : shape(s) {
    auto bad = format_ring(memory.bytes(), shape);
    BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
    for (std::uint32_t m = 0; m < shape.members; ++m)
      members.push_back(attach(m, patience));
  }

  std::unique_ptr<chunk_ring> attach(std::uint32_t member, const ring_patience& patience = {}) {
    auto made = chunk_ring::attach(memory.bytes(), nullptr, member, patience);
    BOOST_TEST_REQUIRE(made.has_value(), why(made));
    return std::move(*made);
  }
  chunk_ring& operator[](std::size_t m) { return *members[m]; }
};

// Writes a chunk with a pattern that its number gives. Returns an error's text, or nothing.
std::string write_chunk(chunk_ring& ring, std::uint64_t n, std::uint64_t size, bool digested) {
  if (auto bad = ring.wait_room(n, soon()); !bad.ok())
    return bad.to_string();
  auto bytes = pattern(size, n);
  chunk_head head{.payload_bytes = static_cast<std::uint32_t>(size), .tag = n * 3};
  head.digested = digested;
  head.root = ring.member();
  ring.put(n, head, bytes.data());
  return {};
}

std::string read_chunk(chunk_ring& ring, std::uint64_t n, std::uint64_t size, std::uint32_t from) {
  auto head = ring.wait_chunk(n, soon());
  if (!head)
    return head.error().to_string();
  if (head->tag != n * 3 || head->root != from || head->payload_bytes != size)
    return "another head";
  std::vector<std::byte> bytes(size);
  auto mode = n % 2 == 0 ? store_mode::streaming : store_mode::cached;
  if (auto bad = ring.take(n, *head, bytes.data(), mode); !bad.ok())
    return bad.to_string();
  ring.done(n);
  return is_pattern(bytes, 0, n) ? "" : "other bytes";
}

// Handles so many chunks, of which the members write some each in turn.
std::string take_part(chunk_ring& ring, std::uint64_t chunks) {
  for (std::uint64_t n = 0; n < chunks; ++n) {
    auto writer = static_cast<std::uint32_t>(n / 7 % ring.shape().members);
    auto size = n * 811 % (ring.shape().chunk_bytes + 1);
    auto bad = writer == ring.member() ? write_chunk(ring, n, size, n % 3 == 0)
                                       : read_chunk(ring, n, size, writer);
    if (!bad.empty())
      return "chunk " + std::to_string(n) + ": " + bad;
  }
  return {};
}

void run_threads(world& w, const std::function<std::string(chunk_ring&)>& part) {
  std::vector<std::string> outcomes(w.members.size());
  std::vector<std::thread> threads;
  for (std::size_t m = 0; m < w.members.size(); ++m)
    threads.emplace_back([&, m] { outcomes[m] = part(w[m]); });
  for (auto& t : threads)
    t.join();
  for (auto& outcome : outcomes)
    BOOST_TEST(outcome == "");
}

// Another process, which ends with what it does, or with the test.
class child {
public:
  explicit child(const std::function<bool()>& part) : pid_(fork()) {
    if (pid_ == 0)
      _exit(part() ? 0 : 1);
  }
  child(child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ~child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  bool succeeds() {
    int how = 0;
    waitpid(std::exchange(pid_, -1), &how, 0);
    return WIFEXITED(how) && WEXITSTATUS(how) == 0;
  }

private:
  pid_t pid_;
};

errc code_of(const status& s) { return s.code(); }
template <class T>
errc code_of(const result<T>& r) {
  return r ? errc::ok : r.error().code();
}

template <class T>
void overwrite(world& w, std::uint64_t at, T value) {
  std::memcpy(w.memory.bytes().data() + at, &value, sizeof(value));
}

} // namespace

BOOST_AUTO_TEST_SUITE(chunk_rings)

BOOST_AUTO_TEST_CASE(a_shape_outside_its_bounds_is_refused) {
  BOOST_TEST(check(small).ok());
  BOOST_TEST(check({1024, 64u << 20, 65'536}).ok());
  for (auto& bad : std::vector<ring_shape>{
         {1, 4096, 4},
         {1025, 4096, 4},
         {2, 2048, 4},
         {2, 12'288, 4},
         {2, 128u << 20, 4},
         {2, 0, 4},
         {2, 4096, 0},
         {2, 4096, 65'537},
         {0, 0, 0}})
    BOOST_TEST((code_of(check(bad)) == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(memory_without_a_whole_ring_is_refused) {
  world w;
  auto all = w.memory.bytes();
  auto refusal = [](std::span<std::byte> memory, std::uint32_t member = 0) {
    return code_of(chunk_ring::attach(memory, nullptr, member));
  };
  BOOST_TEST((refusal(all) == errc::ok));
  BOOST_TEST((refusal(all, 3) == errc::invalid_argument));
  BOOST_TEST((refusal(all.first(all.size() - 1)) == errc::protocol_error));
  BOOST_TEST((refusal(all.first(8)) == errc::protocol_error));
  BOOST_TEST((refusal({}) == errc::protocol_error));
  BOOST_TEST((refusal(all.subspan(4096)) == errc::protocol_error));
  BOOST_TEST((refusal(all.subspan(64)) == errc::protocol_error));
  BOOST_TEST((code_of(format_ring(all.first(4096), small)) == errc::invalid_argument));
  BOOST_TEST((code_of(format_ring(all, {})) == errc::invalid_argument));
  shared_bytes empty{all.size()};
  BOOST_TEST((refusal(empty.bytes()) == errc::protocol_error));
}

BOOST_AUTO_TEST_CASE(a_header_that_lies_is_refused) {
  constexpr std::uint64_t version_at = 8, members_at = 12, bytes_at = 16, chunks_at = 24;
  auto refusal = [](auto at, auto value) {
    world w;
    overwrite(w, at, value);
    return code_of(chunk_ring::attach(w.memory.bytes(), nullptr, 0));
  };
  BOOST_TEST((refusal(version_at, 2u) == errc::unsupported_version));
  for (auto members : {0u, 1u, 1024u, ~0u})
    BOOST_TEST((refusal(members_at, members) == errc::protocol_error));
  for (auto bytes : {0ull, 8192ull, 4097ull, 1ull << 63, ~0ull})
    BOOST_TEST((refusal(bytes_at, bytes) == errc::protocol_error));
  for (auto chunks : {0u, 5u, 65'536u, ~0u})
    BOOST_TEST((refusal(chunks_at, chunks) == errc::protocol_error));
}

BOOST_AUTO_TEST_CASE(a_shape_that_changes_later_is_not_believed) {
  world w;
  overwrite(w, 16, 64ull << 20);
  overwrite(w, 24, 65'536u);
  BOOST_TEST((w[0].shape() == small));
  run_threads(w, [](auto& ring) { return take_part(ring, 50); });
}

BOOST_AUTO_TEST_CASE(all_members_read_what_each_of_them_writes) {
  world w;
  run_threads(w, [](auto& ring) { return take_part(ring, 3000); });
}

BOOST_AUTO_TEST_CASE(processes_read_what_each_of_them_writes) {
  world w;
  std::vector<child> others;
  for (std::size_t m : {1, 2})
    others.emplace_back([&] { return take_part(w[m], 3000).empty(); });
  BOOST_TEST(take_part(w[0], 3000) == "");
  for (auto& c : others)
    BOOST_TEST(c.succeeds());
}

BOOST_AUTO_TEST_CASE(a_ring_of_one_chunk_takes_turns) {
  world w{{.members = 4, .chunk_bytes = 4096, .chunks = 1}};
  run_threads(w, [](auto& ring) { return take_part(ring, 300); });
}

BOOST_AUTO_TEST_CASE(chunks_of_several_digest_blocks_arrive) {
  world w{{.members = 2, .chunk_bytes = 1u << 20, .chunks = 3}};
  run_threads(w, [](auto& ring) { return take_part(ring, 16); });
}

// A wake-up that is lost would cost a minute.
BOOST_AUTO_TEST_CASE(members_that_sleep_at_once_are_all_woken) {
  world w{small, sleeps};
  auto before = steady_clock::now();
  run_threads(w, [](auto& ring) { return take_part(ring, 2000); });
  BOOST_TEST((steady_clock::now() - before < at_most));
}

BOOST_AUTO_TEST_CASE(processes_that_sleep_at_once_are_all_woken) {
  world w{small, sleeps};
  auto before = steady_clock::now();
  std::vector<child> others;
  for (std::size_t m : {1, 2})
    others.emplace_back([&] { return take_part(w[m], 2000).empty(); });
  BOOST_TEST(take_part(w[0], 2000) == "");
  for (auto& c : others)
    BOOST_TEST(c.succeeds());
  BOOST_TEST((steady_clock::now() - before < at_most));
}

BOOST_AUTO_TEST_CASE(a_slow_reader_holds_the_writer_and_is_named) {
  world w;
  for (std::uint64_t n = 0; n < 4; ++n) {
    BOOST_TEST(write_chunk(w[1], n, 100, false) == "");
    BOOST_TEST(read_chunk(w[2], n, 100, 1) == "");
  }
  BOOST_TEST(!w[1].can_write(4).value());
  BOOST_TEST((w[1].laggards(0) == std::vector<std::uint32_t>{0}));
  BOOST_TEST((w[1].laggards(4) == std::vector<std::uint32_t>{0, 2}));
  BOOST_TEST((code_of(w[1].wait_room(4, steady_clock::now() + 10ms)) == errc::deadline_exceeded));
  BOOST_TEST(read_chunk(w[0], 0, 100, 1) == "");
  BOOST_TEST(w[1].can_write(4).value());
  BOOST_TEST(w[1].laggards(0).empty());
  BOOST_TEST((w[1].laggards(1) == std::vector<std::uint32_t>{0}));
}

BOOST_AUTO_TEST_CASE(a_reader_looks_ahead_and_frees_several_chunks_at_once) {
  world w{{.members = 2, .chunk_bytes = 4096, .chunks = 4}};
  for (std::uint64_t n = 0; n < 4; ++n)
    BOOST_TEST(write_chunk(w[0], n, 10, true) == "");
  for (std::uint64_t n = 0; n < 4; ++n)
    BOOST_TEST((w[1].look(n).value()->tag == n * 3));
  w[1].done(2);
  BOOST_TEST(w[1].position() == 3u);
  BOOST_TEST(w[0].can_write(6).value());
  BOOST_TEST(!w[0].can_write(7).value());
  BOOST_TEST(!w[1].look(4).value().has_value());
}

BOOST_AUTO_TEST_CASE(nothing_is_seen_before_it_is_published) {
  world w;
  BOOST_TEST(!w[0].look(0).value().has_value());
  BOOST_TEST((code_of(w[0].wait_chunk(0, steady_clock::now() + 10ms)) == errc::deadline_exceeded));
  BOOST_TEST((code_of(w[0].wait_chunk(0, {})) == errc::deadline_exceeded));
}

BOOST_AUTO_TEST_CASE(a_payload_that_changed_has_another_digest) {
  world w{{.members = 2, .chunk_bytes = 1u << 20, .chunks = 2}};
  for (std::uint64_t size : {100u, 300'000u, 1u << 20}) {
    auto n = w[0].position();
    BOOST_TEST(write_chunk(w[0], n, size, true) == "");
    auto head = w[1].look(n).value().value();
    BOOST_TEST(head.digest == chunk_digest(w[1].payload(n), size));
    std::vector<std::byte> target(size);
    BOOST_TEST(w[1].take(n, head, target.data()).ok());
    w[0].room(n)[size - 1] ^= std::byte{1};
    BOOST_TEST((code_of(w[1].take(n, head, target.data())) == errc::corrupt_data));
    BOOST_TEST(
      (code_of(w[1].take(n, head, target.data(), store_mode::cached)) == errc::corrupt_data));
    w[1].done(n);
  }
}

BOOST_AUTO_TEST_CASE(the_end_wakes_readers_and_a_writer_and_says_why) {
  world w{{.members = 3, .chunk_bytes = 4096, .chunks = 1}, sleeps};
  BOOST_TEST(write_chunk(w[0], 0, 10, false) == "");
  BOOST_TEST(read_chunk(w[1], 0, 10, 0) == "");
  BOOST_TEST(!w[1].ended().has_value());
  status outcomes[2];
  std::thread writer{[&] { outcomes[0] = w[0].wait_room(1, soon()); }};
  std::thread reader{[&] { outcomes[1] = w[1].wait_chunk(1, soon()).error(); }};
  std::this_thread::sleep_for(20ms);
  end_ring(w.memory.bytes(), w.shape, 7);
  end_ring(w.memory.bytes(), w.shape, 8);
  writer.join();
  reader.join();
  for (auto& outcome : outcomes)
    BOOST_TEST((outcome.code() == errc::unavailable), outcome.to_string());
  BOOST_TEST(w[2].ended().value() == 7u);
  // What was published is still read.
  BOOST_TEST(read_chunk(w[2], 0, 10, 0) == "");
  BOOST_TEST((code_of(w[0].wait_room(1, soon())) == errc::unavailable));
}

BOOST_AUTO_TEST_CASE(a_member_ends_the_ring_for_another_process) {
  world w{small, sleeps};
  child other{[&] { return code_of(w[1].wait_chunk(0, soon())) == errc::unavailable; }};
  std::this_thread::sleep_for(20ms);
  w[0].end(1);
  BOOST_TEST(other.succeeds());
}

BOOST_AUTO_TEST_CASE(a_member_that_dies_is_named_and_the_others_end) {
  world w{small, sleeps};
  child dying{[&] { return read_chunk(w[2], 0, 10, 0).empty() && raise(SIGKILL) == 0; }};
  std::thread other{[&] {
    for (std::uint64_t n = 0; n < 4; ++n)
      static_cast<void>(read_chunk(w[1], n, 10, 0));
  }};
  for (std::uint64_t n = 0; n < 4; ++n)
    BOOST_TEST(write_chunk(w[0], n, 10, false) == "");
  other.join();
  BOOST_TEST(!dying.succeeds());
  // Its first chunk is free, the second is not.
  BOOST_TEST(write_chunk(w[0], 4, 10, false) == "");
  BOOST_TEST((code_of(w[0].wait_room(5, steady_clock::now() + 10ms)) == errc::deadline_exceeded));
  BOOST_TEST((w[0].laggards(1) == std::vector<std::uint32_t>{2}));
  status outcome;
  std::thread writer{[&] { outcome = w[0].wait_room(5, soon()); }};
  end_ring(w.memory.bytes(), w.shape, 3);
  writer.join();
  BOOST_TEST((outcome.code() == errc::unavailable), outcome.to_string());
}

BOOST_AUTO_TEST_CASE(an_interrupt_ends_one_wait_of_its_member_alone) {
  world w{{.members = 3, .chunk_bytes = 4096, .chunks = 1}, sleeps};
  BOOST_TEST(write_chunk(w[0], 0, 10, false) == "");
  BOOST_TEST(read_chunk(w[1], 0, 10, 0) == "");
  for (auto pause : {0ms, 1ms, 20ms}) {
    status outcomes[2];
    std::thread writer{[&] { outcomes[0] = w[0].wait_room(1, soon()); }};
    std::thread reader{[&] { outcomes[1] = w[1].wait_chunk(1, soon()).error(); }};
    std::this_thread::sleep_for(pause);
    w[0].interrupt();
    writer.join();
    BOOST_TEST((outcomes[0].code() == errc::cancelled), outcomes[0].to_string());
    w[1].interrupt();
    reader.join();
    BOOST_TEST((outcomes[1].code() == errc::cancelled), outcomes[1].to_string());
  }
  BOOST_TEST((code_of(w[1].wait_chunk(1, steady_clock::now())) == errc::deadline_exceeded));
}

BOOST_AUTO_TEST_CASE(words_that_cannot_be_are_errors) {
  world w;
  constexpr std::uint64_t members_at = 512, slots_at = members_at + 3 * 128;
  BOOST_TEST(write_chunk(w[0], 0, 10, false) == "");
  for (std::uint64_t sequence : {2ull, 5ull, ~0ull}) {
    overwrite(w, slots_at, sequence);
    BOOST_TEST((code_of(w[1].look(0)) == errc::protocol_error));
    BOOST_TEST((code_of(w[1].wait_chunk(0, soon())) == errc::protocol_error));
  }
  overwrite(w, slots_at, std::uint64_t{1});
  BOOST_TEST(w[1].look(0).value().has_value());
  for (std::uint32_t bytes : {4097u, ~0u}) {
    overwrite(w, slots_at + 16, bytes);
    BOOST_TEST((code_of(w[1].look(0)) == errc::protocol_error));
  }
  for (std::uint64_t n = 1; n < 4; ++n)
    BOOST_TEST(write_chunk(w[0], n, 10, false) == "");
  overwrite(w, members_at + 128, std::uint64_t{3});
  BOOST_TEST(!w[0].can_write(4).value());
  for (std::uint64_t position : {5ull, ~0ull}) {
    overwrite(w, members_at + 256, position);
    BOOST_TEST((code_of(w[0].can_write(4)) == errc::protocol_error));
    BOOST_TEST((code_of(w[0].wait_room(4, soon())) == errc::protocol_error));
  }
  overwrite(w, members_at + 256, std::uint64_t{4});
  BOOST_TEST(w[0].can_write(4).value());
  // Back to before what it has said.
  overwrite(w, members_at + 128, std::uint64_t{2});
  BOOST_TEST((code_of(w[0].can_write(7)) == errc::protocol_error));
}

BOOST_AUTO_TEST_CASE(one_of_those_who_claim_a_chunk_has_it) {
  world w;
  BOOST_TEST(w[1].claim(0));
  BOOST_TEST(w[1].claim(0));
  BOOST_TEST(!w[0].claim(0));
  BOOST_TEST(!w[2].claim(0));
  // Later chunks of the slot are claimed anew.
  for (std::uint64_t n = 0; n < 9; ++n) {
    BOOST_TEST(write_chunk(w[1], n, 100, false) == "");
    for (auto reader : {0, 2})
      BOOST_TEST(read_chunk(w[static_cast<std::size_t>(reader)], n, 100, 1) == "");
  }
  BOOST_TEST(w[2].claim(9));
  BOOST_TEST(!w[1].claim(9));
  for (int round = 0; round < 200; ++round) {
    world again;
    std::atomic<int> winners = 0;
    std::thread other{[&] { winners += again[1].claim(0); }};
    winners += again[0].claim(0);
    other.join();
    BOOST_TEST(winners == 1);
  }
}

// Two members go on until they find damage or their time is over, while another process writes
// what it likes. They must not fault, and not wait longer than they want to.
BOOST_AUTO_TEST_CASE(a_member_that_writes_anything_stops_others_by_errors_only) {
  shared_bytes memory{ring_bytes(small)};
  auto control = memory.bytes().first(memory.bytes().size() - small.chunks * small.chunk_bytes);
  child scribbler{[&] {
    std::minstd_rand random{5};
    auto* words = reinterpret_cast<std::uint32_t*>(control.data());
    for (;;) {
      auto at = random() % (control.size() / sizeof(std::uint32_t));
      std::uint32_t values[] = {0, 1, static_cast<std::uint32_t>(random()), ~0u, words[at] + 1};
      std::atomic_ref{words[at]} = values[random() % std::size(values)];
      memory.bytes()[random() % memory.bytes().size()] ^= std::byte{1};
      if (random() % 8 == 0)
        usleep(random() % 200);
    }
    return true;
  }};
  auto part = [&](std::uint32_t member, std::uint64_t& chunks) {
    auto ring = chunk_ring::attach(memory.bytes(), nullptr, member, {.spin = 20us, .sleep = 1ms});
    if (!ring || !((*ring)->shape() == small))
      return;
    std::vector<std::byte> bytes(small.chunk_bytes);
    auto until = steady_clock::now() + 5ms;
    for (std::uint64_t n = 0; steady_clock::now() < until; ++n, ++chunks) {
      if (n / 3 % 2 == member) {
        if (!(*ring)->wait_room(n, until).ok())
          return;
        (*ring)->put(n, {.payload_bytes = 100, .digested = 1}, bytes.data());
        continue;
      }
      auto head = (*ring)->wait_chunk(n, until);
      if (!head || !(*ring)->take(n, *head, bytes.data()).ok())
        return;
      static_cast<void>((*ring)->laggards(n));
      (*ring)->done(n);
    }
  };
  std::uint64_t chunks[2] = {0, 0};
  auto begun = steady_clock::now();
  for (int round = 0; round < 200; ++round) {
    static_cast<void>(format_ring(memory.bytes(), small));
    std::thread other{[&] { part(1, chunks[1]); }};
    part(0, chunks[0]);
    other.join();
  }
  BOOST_TEST((steady_clock::now() - begun < at_most));
  BOOST_TEST_MESSAGE("chunks before damage: " << chunks[0] << ", " << chunks[1]);
}

BOOST_AUTO_TEST_SUITE_END()
