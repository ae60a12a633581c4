// Copies with streaming stores, in the widest vectors of the processor.
// Called by movers.
#include <millrace/transport/copy/copy.hpp>

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace millrace::transport {

#if defined(__x86_64__)

namespace {

constexpr std::size_t line_bytes = 64;

// Two cache lines.
constexpr std::size_t unit_bytes = 2 * line_bytes;
// Units of one run, when several runs are copied at once. Shorter runs cost more, since each begins
// a page.
constexpr std::size_t run_units_min = (32u << 10) / unit_bytes;
constexpr std::size_t run_units_max = (256u << 10) / unit_bytes;

// Copies `places` runs of `units` each, which follow each other, all at the same time.
using stream_runs = void (*)(std::byte*, const std::byte*, std::size_t units, std::size_t places);

// Copies `units` of two runs, both at the same time.
using copy_pair = void (*)(const local_copy& one, const local_copy& other, std::size_t units);

__attribute__((target("avx2"))) inline void stream_unit_avx2(
  std::byte* target, const std::byte* source) {
  const auto* from = reinterpret_cast<const __m256i*>(source);
  auto* to = reinterpret_cast<__m256i*>(target);
  auto first = _mm256_loadu_si256(from), second = _mm256_loadu_si256(from + 1);
  auto third = _mm256_loadu_si256(from + 2), fourth = _mm256_loadu_si256(from + 3);
  _mm256_stream_si256(to, first);
  _mm256_stream_si256(to + 1, second);
  _mm256_stream_si256(to + 2, third);
  _mm256_stream_si256(to + 3, fourth);
}

__attribute__((target("avx2"))) void stream_runs_avx2(
  std::byte* target, const std::byte* source, std::size_t units, std::size_t places) {
  auto run_bytes = units * unit_bytes;
  for (std::size_t unit = 0; unit < run_bytes; unit += unit_bytes)
    for (auto at = unit; at < places * run_bytes; at += run_bytes)
      stream_unit_avx2(target + at, source + at);
}

__attribute__((target("avx2"))) void stream_pair_avx2(
  const local_copy& one, const local_copy& other, std::size_t units) {
  for (std::size_t at = 0; at < units * unit_bytes; at += unit_bytes) {
    stream_unit_avx2(one.target + at, one.source + at);
    stream_unit_avx2(other.target + at, other.source + at);
  }
}

void stream_unit_sse2(std::byte* target, const std::byte* source) {
  for (std::size_t i = 0; i < unit_bytes; i += sizeof(__m128i))
    _mm_stream_si128(
      reinterpret_cast<__m128i*>(target + i),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
}

void stream_runs_sse2(
  std::byte* target, const std::byte* source, std::size_t units, std::size_t places) {
  auto run_bytes = units * unit_bytes;
  for (std::size_t unit = 0; unit < run_bytes; unit += unit_bytes)
    for (auto at = unit; at < places * run_bytes; at += run_bytes)
      stream_unit_sse2(target + at, source + at);
}

void stream_pair_sse2(const local_copy& one, const local_copy& other, std::size_t units) {
  for (std::size_t at = 0; at < units * unit_bytes; at += unit_bytes) {
    stream_unit_sse2(one.target + at, one.source + at);
    stream_unit_sse2(other.target + at, other.source + at);
  }
}

// With ordinary stores.
void store_pair(const local_copy& one, const local_copy& other, std::size_t units) {
  for (std::size_t at = 0; at < units * unit_bytes; at += unit_bytes) {
    std::memcpy(one.target + at, one.source + at, unit_bytes);
    std::memcpy(other.target + at, other.source + at, unit_bytes);
  }
}

const bool has_avx2 = __builtin_cpu_supports("avx2");
const stream_runs widest = has_avx2 ? stream_runs_avx2 : stream_runs_sse2;
const copy_pair widest_pair = has_avx2 ? stream_pair_avx2 : stream_pair_sse2;

__attribute__((target("clwb"))) void back_clwb(const std::byte* line) {
  _mm_clwb(const_cast<std::byte*>(line));
}
__attribute__((target("clflushopt"))) void back_clflushopt(const std::byte* line) {
  _mm_clflushopt(const_cast<std::byte*>(line));
}
void back_clflush(const std::byte* line) { _mm_clflush(line); }

using write_line_back = void (*)(const std::byte*);

// Asks the processor itself, since not every compiler knows these features by name. Every x86-64
// has clflush.
write_line_back gentlest() {
  constexpr unsigned has_clflushopt = 1u << 23, has_clwb = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0)
    return back_clflush;
  if (b & has_clwb)
    return back_clwb;
  return b & has_clflushopt ? back_clflushopt : back_clflush;
}

const write_line_back line_back = gentlest();

void copy_ragged(
  std::byte* target, const std::byte* source, std::size_t size_bytes, store_mode mode) {
  if (size_bytes == 0)
    return;
  std::memcpy(target, source, size_bytes);
  if (mode == store_mode::written_back)
    write_back(target, size_bytes);
}

void skip(local_copy& part, std::size_t size_bytes) {
  part.target += size_bytes;
  part.source += size_bytes;
  part.length -= size_bytes;
}

// Copies parts of a list two at a time, as far as both have whole units.
class pairs {
public:
  pairs(std::span<const local_copy> parts, store_mode mode)
    : parts_(parts), mode_(mode), pair_(mode == store_mode::cached ? store_pair : widest_pair) {}

  void run() {
    while (fill(one_) && fill(other_)) {
      auto units = std::min(one_.length, other_.length) / unit_bytes;
      pair_(one_, other_, units);
      skip(one_, units * unit_bytes);
      skip(other_, units * unit_bytes);
    }
    copy_bytes(one_.target, one_.source, one_.length, mode_);
    copy_bytes(other_.target, other_.source, other_.length, mode_);
  }

private:
  // Goes on to the next part if this one has no unit left. Returns false if there is none.
  bool fill(local_copy& part) {
    while (part.length < unit_bytes) {
      copy_ragged(part.target, part.source, part.length, mode_);
      part = {};
      if (next_ == parts_.size())
        return false;
      part = parts_[next_++];
      if (next_ + 1 < parts_.size())
        _mm_prefetch(reinterpret_cast<const char*>(parts_[next_ + 1].source), _MM_HINT_T0);
      begin(part);
    }
    return true;
  }

  // Streaming stores need an aligned target. Long parts are copied in several places by themselves.
  void begin(local_copy& part) {
    auto alone = part.length >= copy_places * run_units_min * unit_bytes;
    auto head = -reinterpret_cast<std::uintptr_t>(part.target) % line_bytes;
    auto now = alone ? part.length : std::min<std::uint64_t>(head, part.length);
    copy_bytes(part.target, part.source, now, mode_);
    skip(part, now);
  }

  const std::span<const local_copy> parts_;
  const store_mode mode_;
  const copy_pair pair_;
  local_copy one_ = {}, other_ = {};
  std::size_t next_ = 0;
};

} // namespace

void copy_bytes(
  std::byte* target, const std::byte* source, std::size_t size_bytes, store_mode mode) {
  if (mode == store_mode::cached || size_bytes < streaming_run_bytes_min)
    return copy_ragged(target, source, size_bytes, mode);
  // Streaming stores need an aligned target. The ragged ends use ordinary stores.
  auto head = -reinterpret_cast<std::uintptr_t>(target) % line_bytes;
  copy_ragged(target, source, head, mode);
  auto done = head;
  auto left = (size_bytes - head) / unit_bytes;
  while (left > 0) {
    auto places = left < copy_places * run_units_min ? 1 : copy_places;
    auto units = places == 1 ? left : std::min(left / places, run_units_max);
    widest(target + done, source + done, units, places);
    done += places * units * unit_bytes;
    left -= places * units;
  }
  copy_ragged(target + done, source + done, size_bytes - done, mode);
}

void copy_parts(std::span<const local_copy> parts, store_mode mode) { pairs{parts, mode}.run(); }

bool can_write_back() noexcept { return true; }

void write_back(const std::byte* data, std::size_t size_bytes) noexcept {
  if (size_bytes == 0)
    return;
  const auto* end = data + size_bytes;
  for (data -= reinterpret_cast<std::uintptr_t>(data) % line_bytes; data < end; data += line_bytes)
    line_back(data);
}

void streaming_fence() noexcept { _mm_sfence(); }

#else

void copy_bytes(std::byte* target, const std::byte* source, std::size_t size_bytes, store_mode) {
  if (size_bytes > 0)
    std::memcpy(target, source, size_bytes);
}

void copy_parts(std::span<const local_copy> parts, store_mode mode) {
  for (auto& part : parts)
    copy_bytes(part.target, part.source, part.length, mode);
}

bool can_write_back() noexcept { return false; }

void write_back(const std::byte*, std::size_t) noexcept {}

void streaming_fence() noexcept { __atomic_thread_fence(__ATOMIC_RELEASE); }

#endif

} // namespace millrace::transport
