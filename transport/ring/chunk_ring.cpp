// The words of a ring of chunks, and how members wait for each other.
// Used by groups that broadcast.
#include <millrace/core/assert.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/transport/copy/digest_copy.hpp>
#include <millrace/transport/ring/chunk_ring.hpp>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <ctime>
#include <new>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::transport {

namespace {

constexpr std::uint64_t ring_magic = 0x676e'6972'6c6c'696d; // "millring"
constexpr std::uint32_t ring_version = 1;
constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint64_t chunk_bytes_max = 64u << 20;
constexpr std::uint32_t members_max = 1024;
constexpr std::uint32_t chunks_max = 65'536;
// Between two looks at the clock and at the cores of the others.
constexpr unsigned looks_at_once = 16;

using atomic_u32 = std::atomic<std::uint32_t>;
using atomic_u64 = std::atomic<std::uint64_t>;
using head_words = std::array<std::uint64_t, sizeof(chunk_head) / sizeof(std::uint64_t)>;
static_assert(sizeof(head_words) == sizeof(chunk_head) && atomic_u64::is_always_lock_free);

} // namespace

// What lies in the memory, in this order: the header, a core of each member, the words of each
// member, the slots, and on a page of their own the payloads. A processor fetches lines in pairs,
// so parts that different members write are 128 bytes apart.

struct ring_header {
  atomic_u64 magic;
  atomic_u32 version;
  atomic_u32 members;
  atomic_u64 chunk_bytes;
  atomic_u32 chunks;
  alignas(128) atomic_u32 ended;  // why; 0: it has not
  alignas(128) atomic_u32 asleep; // a wake word: readers sleep
};

struct member_words {
  alignas(128) atomic_u64 position; // the chunk that the member handles next
  atomic_u32 awaited;               // a wake word: a writer sleeps until the member has read more
};

struct chunk_slot {
  alignas(128) atomic_u64 sequence; // one more than the number of the chunk; 0: none yet
  atomic_u64 claim;                 // `claim_of` its writer
  std::array<atomic_u64, std::tuple_size_v<head_words>> head;
};

namespace {

struct ring_layout {
  std::uint64_t members = 0;
  std::uint64_t slots = 0;
  std::uint64_t payloads = 0;
  std::uint64_t end = 0;

  static constexpr std::uint64_t cores = sizeof(ring_header);

  explicit ring_layout(const ring_shape& s) noexcept
    : members(round_up(cores + s.members * sizeof(atomic_u32), alignof(member_words))),
      slots(members + s.members * sizeof(member_words)),
      payloads(round_up(slots + s.chunks * sizeof(chunk_slot), page_bytes)),
      end(payloads + s.chunks * s.chunk_bytes) {}
};

template <class T>
T* part(std::span<std::byte> memory, std::uint64_t at) noexcept {
  return std::launder(reinterpret_cast<T*>(memory.data() + at));
}

bool is_on_page(std::span<std::byte> memory) noexcept {
  return reinterpret_cast<std::uintptr_t>(memory.data()) % page_bytes == 0;
}

// Later chunks have larger claims.
std::uint64_t claim_of(std::uint64_t chunk, std::uint64_t member) noexcept {
  return (chunk + 1) * members_max + member;
}

// A wake word is a futex. Its lowest bit says that a process sleeps, or is about to; the rest
// counts the wake-ups, so that nobody falls asleep on a word that was rung since.

// Each side first writes its own word and then reads the other one's: one of them sees the other.
void order_words() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }

// Returns the value to sleep on. The caller looks again before it does.
std::uint32_t set_asleep(atomic_u32& word) noexcept {
  auto seen = word.fetch_or(1) | 1;
  order_words();
  return seen;
}

void fall_asleep(atomic_u32& word, std::uint32_t seen, steady_clock::duration longest) noexcept {
  auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(longest).count();
  if (ns <= 0)
    return;
  timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

// Wakes all who sleep on the word, without a system call if there is none.
void wake(atomic_u32& word) noexcept {
  order_words();
  auto seen = word.load(std::memory_order_relaxed);
  if ((seen & 1) != 0 && word.compare_exchange_strong(seen, seen + 1))
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void pause_shortly() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

using block_digests = std::array<std::uint64_t, chunk_bytes_max / digest_block_bytes>;

std::uint64_t digest_of(const block_digests& blocks, std::uint64_t size_bytes) noexcept {
  auto count = digest_count(size_bytes);
  return count == 1 ? blocks[0] : digest(blocks.data(), count * sizeof(std::uint64_t));
}

} // namespace

status check(const ring_shape& shape) {
  if (
    shape.members < 2 || shape.members > members_max || shape.chunks < 1 ||
    shape.chunks > chunks_max || !std::has_single_bit(shape.chunk_bytes) ||
    shape.chunk_bytes < page_bytes || shape.chunk_bytes > chunk_bytes_max)
    return {
      errc::invalid_argument, "a ring of {} chunks of {} bytes for {} members", shape.chunks,
      shape.chunk_bytes, shape.members};
  return {};
}

std::uint64_t ring_bytes(const ring_shape& shape) noexcept { return ring_layout{shape}.end; }

status format_ring(std::span<std::byte> memory, const ring_shape& shape) {
  if (auto bad = check(shape); !bad.ok())
    return bad;
  ring_layout layout{shape};
  if (memory.size() < layout.end || !is_on_page(memory))
    return {
      errc::invalid_argument, "a ring of {} bytes in {} bytes of memory", layout.end,
      memory.size()};
  auto* header = new (memory.data()) ring_header{};
  new (memory.data() + layout.cores) atomic_u32[shape.members]{};
  new (memory.data() + layout.members) member_words[shape.members]{};
  new (memory.data() + layout.slots) chunk_slot[shape.chunks]{};
  header->version = ring_version;
  header->members = shape.members;
  header->chunk_bytes = shape.chunk_bytes;
  header->chunks = shape.chunks;
  header->magic = ring_magic;
  return {};
}

void end_ring(std::span<std::byte> memory, const ring_shape& shape, std::uint32_t reason) noexcept {
  ring_layout layout{shape};
  auto* header = part<ring_header>(memory, 0);
  std::uint32_t running = 0;
  header->ended.compare_exchange_strong(running, reason);
  wake(header->asleep);
  auto* members = part<member_words>(memory, layout.members);
  for (std::uint32_t m = 0; m < shape.members; ++m)
    wake(members[m].awaited);
}

std::uint64_t chunk_digest(const std::byte* payload, std::uint64_t size_bytes) noexcept {
  block_digests blocks;
  for (std::uint64_t i = 0; i < digest_count(size_bytes); ++i) {
    auto at = i * digest_block_bytes;
    blocks[i] = digest(payload + at, std::min(digest_block_bytes, size_bytes - at));
  }
  return digest_of(blocks, size_bytes);
}

chunk_ring::chunk_ring(
  std::span<std::byte> memory, std::shared_ptr<const void> hold, std::uint32_t member,
  const ring_shape& shape, const ring_patience& patience)
  : memory_(memory), hold_(std::move(hold)), member_(member), shape_(shape), patience_(patience),
    crowded_(shape.members > std::thread::hardware_concurrency()),
    header_(part<ring_header>(memory, 0)), cores_(part<atomic_u32>(memory, ring_layout::cores)),
    members_(part<member_words>(memory, ring_layout{shape}.members)),
    slots_(part<chunk_slot>(memory, ring_layout{shape}.slots)),
    payloads_(memory.data() + ring_layout{shape}.payloads), known_(shape.members) {}

result<std::unique_ptr<chunk_ring>> chunk_ring::attach(
  std::span<std::byte> memory, std::shared_ptr<const void> hold, std::uint32_t member,
  const ring_patience& patience) {
  if (memory.size() < sizeof(ring_header) || !is_on_page(memory))
    return fail(errc::protocol_error, "no ring is in {} bytes of memory", memory.size());
  auto* header = part<ring_header>(memory, 0);
  if (header->magic != ring_magic)
    return fail(errc::protocol_error, "memory without a ring");
  if (auto version = header->version.load(); version != ring_version)
    return fail(errc::unsupported_version, "a ring of version {}", version);
  ring_shape shape{
    .members = header->members, .chunk_bytes = header->chunk_bytes, .chunks = header->chunks};
  if (auto bad = check(shape); !bad.ok() || ring_bytes(shape) > memory.size())
    return fail(
      errc::protocol_error, "{} bytes with a ring of {} chunks of {} bytes for {} members",
      memory.size(), shape.chunks, shape.chunk_bytes, shape.members);
  if (member >= shape.members)
    return fail(
      errc::invalid_argument, "member {} of a ring for {} members", member, shape.members);
  return std::unique_ptr<chunk_ring>{
    new chunk_ring{memory, std::move(hold), member, shape, patience}};
}

bool chunk_ring::claim(std::uint64_t n) noexcept {
  MILLRACE_ASSERT(is_near(n));
  auto& word = slots_[n % shape_.chunks].claim;
  auto mine = claim_of(n, member_);
  auto seen = word.load(std::memory_order_relaxed);
  while (seen < claim_of(n, 0))
    if (word.compare_exchange_weak(seen, mine, std::memory_order_relaxed))
      return true;
  return seen == mine;
}

// Only positions that may have changed are read again.
result<bool> chunk_ring::can_write(std::uint64_t n) {
  MILLRACE_ASSERT(is_near(n));
  auto needed = n < shape_.chunks ? 0 : n - shape_.chunks + 1;
  if (all_read_ >= needed)
    return true;
  known_[member_] = position_;
  for (std::uint32_t m = 0; m < shape_.members; ++m) {
    if (known_[m] >= needed)
      continue;
    auto now = members_[m].position.load(std::memory_order_acquire);
    if (now < known_[m] || now > n)
      return fail(
        errc::protocol_error, "member {} of a ring says that it handles chunk {} after {}", m, now,
        known_[m]);
    known_[m] = now;
    if (now < needed) {
      slowest_ = m;
      return false;
    }
  }
  all_read_ = *std::ranges::min_element(known_);
  return true;
}

std::byte* chunk_ring::room(std::uint64_t n) noexcept {
  return payloads_ + n % shape_.chunks * shape_.chunk_bytes;
}

void chunk_ring::publish(std::uint64_t n, const chunk_head& head) noexcept {
  MILLRACE_ASSERT(n == position_ && head.payload_bytes <= shape_.chunk_bytes);
  auto& slot = slots_[n % shape_.chunks];
  auto words = std::bit_cast<head_words>(head);
  for (std::size_t i = 0; i < words.size(); ++i)
    slot.head[i].store(words[i], std::memory_order_relaxed);
  slot.sequence.store(n + 1, std::memory_order_release);
  position_ = n + 1;
  members_[member_].position.store(position_, std::memory_order_release);
  wake(header_->asleep);
}

void chunk_ring::put(std::uint64_t n, chunk_head head, const std::byte* source) noexcept {
  MILLRACE_ASSERT(head.payload_bytes <= shape_.chunk_bytes);
  if (head.digested) {
    block_digests blocks;
    copy_and_digest(room(n), source, head.payload_bytes, store_mode::cached, blocks.data());
    head.digest = digest_of(blocks, head.payload_bytes);
  } else {
    copy_bytes(room(n), source, head.payload_bytes, store_mode::cached);
  }
  publish(n, head);
}

result<std::optional<chunk_head>> chunk_ring::look(std::uint64_t n) const {
  MILLRACE_ASSERT(is_near(n));
  auto& slot = slots_[n % shape_.chunks];
  auto sequence = slot.sequence.load(std::memory_order_acquire);
  if (sequence != n + 1) {
    auto before = n < shape_.chunks ? 0 : n + 1 - shape_.chunks;
    if (sequence != before)
      return fail(
        errc::protocol_error, "the slot of chunk {} of a ring has the sequence {}", n, sequence);
    return std::nullopt;
  }
  head_words words;
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = slot.head[i].load(std::memory_order_relaxed);
  auto head = std::bit_cast<chunk_head>(words);
  if (head.payload_bytes > shape_.chunk_bytes)
    return fail(errc::protocol_error, "chunk {} of a ring says {} bytes", n, head.payload_bytes);
  return head;
}

const std::byte* chunk_ring::payload(std::uint64_t n) const noexcept {
  return payloads_ + n % shape_.chunks * shape_.chunk_bytes;
}

status chunk_ring::take(
  std::uint64_t n, const chunk_head& head, std::byte* target, store_mode mode) const {
  MILLRACE_ASSERT(head.payload_bytes <= shape_.chunk_bytes);
  status out;
  if (head.digested) {
    block_digests blocks;
    copy_and_digest(target, payload(n), head.payload_bytes, mode, blocks.data());
    if (digest_of(blocks, head.payload_bytes) != head.digest)
      out = {errc::corrupt_data, "the payload of chunk {} of a ring has another digest", n};
  } else {
    copy_bytes(target, payload(n), head.payload_bytes, mode);
  }
  if (mode != store_mode::cached)
    streaming_fence();
  return out;
}

void chunk_ring::done(std::uint64_t n) noexcept {
  MILLRACE_ASSERT(is_near(n));
  auto& mine = members_[member_];
  position_ = n + 1;
  mine.position.store(position_, std::memory_order_release);
  wake(mine.awaited);
}

std::vector<std::uint32_t> chunk_ring::laggards(std::uint64_t n) const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t m = 0; m < shape_.members; ++m)
    if (m != member_ && members_[m].position.load(std::memory_order_relaxed) <= n)
      out.push_back(m);
  return out;
}

result<chunk_head> chunk_ring::wait_chunk(std::uint64_t n, time_point deadline) {
  std::optional<chunk_head> head;
  auto ready = [&]() -> result<bool> {
    auto seen = look(n);
    if (!seen)
      return fail(seen.error());
    head = *seen;
    return head.has_value();
  };
  auto bad = wait(
    deadline, ready, [&]() -> auto& { return header_->asleep; });
  return bad.ok() ? result<chunk_head>{*head} : fail(bad);
}

status chunk_ring::wait_room(std::uint64_t n, time_point deadline) {
  if (ended())
    return stopped();
  return wait(
    deadline, [&] { return can_write(n); }, [&]() -> auto& { return members_[slowest_].awaited; });
}

// `word` returns the wake word of those for whom `ready` has found that it must wait.
template <class Ready, class Word>
status chunk_ring::wait(time_point deadline, Ready ready, Word word) {
  time_point now, spin_until;
  bool yields = false;
  for (unsigned looks = 0;; ++looks) {
    auto came = ready();
    if (!came)
      return came.error();
    if (*came)
      return {};
    if (auto why = stopped(); !why.ok()) {
      interrupted_ = false;
      return why;
    }
    if (yields || looks % looks_at_once == 0) {
      now = steady_clock::now();
      if (looks == 0)
        spin_until = now + patience_.spin;
      yields = crowded_ || shares_core();
    }
    if (now >= deadline)
      return {errc::deadline_exceeded, "waiting for the members of a ring"};
    if (now >= spin_until) {
      sleep(std::min(deadline, now + patience_.sleep), ready, word);
      spin_until = steady_clock::now() + patience_.spin;
    } else if (yields) {
      ::sched_yield();
    } else {
      pause_shortly();
    }
  }
}

template <class Ready, class Word>
void chunk_ring::sleep(time_point until, Ready ready, Word word) {
  atomic_u32& on = word();
  sleeps_on_ = &on;
  auto seen = set_asleep(on);
  auto came = ready();
  if (came && !*came && stopped().ok() && &on == &word())
    fall_asleep(on, seen, until - steady_clock::now());
  sleeps_on_ = nullptr;
}

status chunk_ring::stopped() const {
  if (auto reason = ended())
    return {errc::unavailable, "the ring has ended with the reason {}", *reason};
  if (interrupted_)
    return {errc::cancelled, "waiting for the members of a ring was interrupted"};
  return {};
}

// The core lies beside those of others, and is written only when it changes.
bool chunk_ring::shares_core() noexcept {
  auto core = static_cast<std::uint32_t>(::sched_getcpu()) + 1;
  if (core != told_core_)
    cores_[member_].store(told_core_ = core, std::memory_order_relaxed);
  for (std::uint32_t m = 0; m < shape_.members; ++m)
    if (m != member_ && cores_[m].load(std::memory_order_relaxed) == core)
      return true;
  return false;
}

void chunk_ring::interrupt() noexcept {
  interrupted_ = true;
  if (auto* word = sleeps_on_.load())
    wake(*word);
}

void chunk_ring::end(std::uint32_t reason) noexcept { end_ring(memory_, shape_, reason); }

std::optional<std::uint32_t> chunk_ring::ended() const noexcept {
  auto reason = header_->ended.load(std::memory_order_acquire);
  return reason != 0 ? std::optional{reason} : std::nullopt;
}

} // namespace millrace::transport
