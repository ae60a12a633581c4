// Copies with streaming stores, in the widest vectors of the processor.
// Called by movers.
#include <millrace/transport/copy/copy.hpp>

#include <algorithm>
#include <cstdint>
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
// A longer part of a list is copied by itself: its beginning is a small part of it.
constexpr std::size_t alone_bytes_min = 128u << 10;

// A processor reads ahead only within a page, and waits at the beginning of the next one. So that
// beginning is fetched while the page before it is copied.
constexpr std::size_t page_bytes = 4096;
constexpr std::size_t fetched_bytes = 1024;

// Copies a run of `units`.
using stream_run = void (*)(std::byte* target, const std::byte* source, std::size_t units);

// While a list is copied, what comes so much later in it is fetched: short parts lie on pages of
// which the processor has read nothing yet.
constexpr std::uint64_t fetch_distance_bytes = 8192;

// Copies a run of `units`, and fetches as many bytes at `ahead`.
using fetching_run =
  void (*)(std::byte* target, const std::byte* source, const std::byte* ahead, std::size_t units);

inline void fetch_unit(const std::byte* from) {
  _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(from) + line_bytes, _MM_HINT_T0);
}

// `left_bytes` of the run are at `source`.
inline void fetch_next_page(const std::byte* source, std::size_t left_bytes) {
  auto at = reinterpret_cast<std::uintptr_t>(source) % page_bytes;
  if (at < fetched_bytes && left_bytes > page_bytes)
    fetch_unit(source + page_bytes);
}

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

__attribute__((target("avx2"))) void stream_run_avx2(
  std::byte* target, const std::byte* source, std::size_t units) {
  auto run_bytes = units * unit_bytes;
  for (std::size_t at = 0; at < run_bytes; at += unit_bytes) {
    fetch_next_page(source + at, run_bytes - at);
    stream_unit_avx2(target + at, source + at);
  }
}

__attribute__((target("avx2"))) void stream_fetching_avx2(
  std::byte* target, const std::byte* source, const std::byte* ahead, std::size_t units) {
  for (std::size_t at = 0; at < units * unit_bytes; at += unit_bytes) {
    fetch_unit(ahead + at);
    stream_unit_avx2(target + at, source + at);
  }
}

void stream_unit_sse2(std::byte* target, const std::byte* source) {
  for (std::size_t i = 0; i < unit_bytes; i += sizeof(__m128i))
    _mm_stream_si128(
      reinterpret_cast<__m128i*>(target + i),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
}

void stream_run_sse2(std::byte* target, const std::byte* source, std::size_t units) {
  auto run_bytes = units * unit_bytes;
  for (std::size_t at = 0; at < run_bytes; at += unit_bytes) {
    fetch_next_page(source + at, run_bytes - at);
    stream_unit_sse2(target + at, source + at);
  }
}

void stream_fetching_sse2(
  std::byte* target, const std::byte* source, const std::byte* ahead, std::size_t units) {
  for (std::size_t at = 0; at < units * unit_bytes; at += unit_bytes) {
    fetch_unit(ahead + at);
    stream_unit_sse2(target + at, source + at);
  }
}

// With ordinary stores.
void store_fetching(
  std::byte* target, const std::byte* source, const std::byte* ahead, std::size_t units) {
  for (std::size_t at = 0; at < units * unit_bytes; at += unit_bytes) {
    fetch_unit(ahead + at);
    std::memcpy(target + at, source + at, unit_bytes);
  }
}

const bool has_avx2 = __builtin_cpu_supports("avx2");
const stream_run widest = has_avx2 ? stream_run_avx2 : stream_run_sse2;
const fetching_run widest_fetching = has_avx2 ? stream_fetching_avx2 : stream_fetching_sse2;

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

// What comes later in a list.
class later_bytes {
public:
  later_bytes(std::span<const local_copy> parts, std::uint64_t by_bytes) : parts_(parts) {
    skip(by_bytes);
  }

  // Returns those that follow each other there; none behind the end of the list.
  std::span<const std::byte> here() const {
    if (parts_.empty())
      return {};
    return std::span{parts_.front().source, parts_.front().length}.subspan(done_);
  }

  void skip(std::uint64_t size_bytes) {
    done_ += size_bytes;
    for (; !parts_.empty() && done_ >= parts_.front().length; parts_ = parts_.subspan(1))
      done_ -= parts_.front().length;
  }

private:
  std::span<const local_copy> parts_;
  std::uint64_t done_ = 0; // of the first part
};

// Copies a list, and fetches what comes later in it.
class list_copy {
public:
  list_copy(std::span<const local_copy> parts, store_mode mode)
    : parts_(parts), mode_(mode), later_(parts, fetch_distance_bytes),
      run_(mode == store_mode::cached ? store_fetching : widest_fetching) {}

  void run() {
    for (auto& part : parts_)
      copy(part);
  }

private:
  void copy(local_copy part) {
    if (part.length >= alone_bytes_min) {
      copy_bytes(part.target, part.source, part.length, mode_);
      return later_.skip(part.length);
    }
    if (part.length < streaming_run_bytes_min)
      return copy_ragged_of(part, part.length);
    // Streaming stores need an aligned target.
    copy_ragged_of(part, -reinterpret_cast<std::uintptr_t>(part.target) % line_bytes);
    while (part.length >= unit_bytes)
      copy_units_of(part);
    copy_ragged_of(part, part.length);
  }

  // As many as follow each other here and later.
  void copy_units_of(local_copy& part) {
    auto later = later_.here();
    auto most = later.empty() ? part.length : std::max(later.size(), unit_bytes);
    auto units = std::min(part.length, most) / unit_bytes;
    run_(part.target, part.source, later.empty() ? part.source : later.data(), units);
    skip(part, units * unit_bytes);
  }

  void copy_ragged_of(local_copy& part, std::uint64_t size_bytes) {
    if (auto later = later_.here(); !later.empty())
      fetch_unit(later.data());
    copy_ragged(part.target, part.source, size_bytes, mode_);
    skip(part, size_bytes);
  }

  void skip(local_copy& part, std::uint64_t size_bytes) {
    part.target += size_bytes;
    part.source += size_bytes;
    part.length -= size_bytes;
    later_.skip(size_bytes);
  }

  const std::span<const local_copy> parts_;
  const store_mode mode_;
  later_bytes later_;
  const fetching_run run_;
};

} // namespace

void copy_bytes(
  std::byte* target, const std::byte* source, std::size_t size_bytes, store_mode mode) {
  if (mode == store_mode::cached || size_bytes < streaming_run_bytes_min)
    return copy_ragged(target, source, size_bytes, mode);
  // Streaming stores need an aligned target. The ragged ends use ordinary stores.
  auto head = -reinterpret_cast<std::uintptr_t>(target) % line_bytes;
  copy_ragged(target, source, head, mode);
  auto units = (size_bytes - head) / unit_bytes;
  widest(target + head, source + head, units);
  auto done = head + units * unit_bytes;
  copy_ragged(target + done, source + done, size_bytes - done, mode);
}

void copy_parts(std::span<const local_copy> parts, store_mode mode) {
  list_copy{parts, mode}.run();
}

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
