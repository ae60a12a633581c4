// Copy with streaming stores, in the widest vectors the processor has.
#include <millrace/transport/copy.hpp>

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::transport {

#if defined(__x86_64__)

namespace {

constexpr std::size_t line_bytes = 64;

__attribute__((target("avx2"))) void stream_lines_avx2(
  std::byte* target, const std::byte* source, std::size_t lines) {
  for (; lines > 0; --lines, target += line_bytes, source += line_bytes) {
    auto low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
    auto high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + 32), high);
  }
}

void stream_lines_sse2(std::byte* target, const std::byte* source, std::size_t lines) {
  for (; lines > 0; --lines, target += line_bytes, source += line_bytes)
    for (std::size_t i = 0; i < line_bytes; i += 16)
      _mm_stream_si128(
        reinterpret_cast<__m128i*>(target + i),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
}

using stream_lines = void (*)(std::byte*, const std::byte*, std::size_t);
const stream_lines widest = __builtin_cpu_supports("avx2") ? stream_lines_avx2 : stream_lines_sse2;

} // namespace

void copy_bytes(
  std::byte* target, const std::byte* source, std::size_t size_bytes, store_mode mode) {
  if (mode == store_mode::cached || size_bytes < 4 * line_bytes) {
    if (size_bytes > 0)
      std::memcpy(target, source, size_bytes);
    return;
  }
  // Streaming stores need an aligned target; the ragged ends go the ordinary way.
  auto head = -reinterpret_cast<std::uintptr_t>(target) % line_bytes;
  std::memcpy(target, source, head);
  auto lines = (size_bytes - head) / line_bytes;
  widest(target + head, source + head, lines);
  auto done = head + lines * line_bytes;
  std::memcpy(target + done, source + done, size_bytes - done);
}

void streaming_fence() noexcept { _mm_sfence(); }

#else

void copy_bytes(std::byte* target, const std::byte* source, std::size_t size_bytes, store_mode) {
  if (size_bytes > 0)
    std::memcpy(target, source, size_bytes);
}

void streaming_fence() noexcept { __atomic_thread_fence(__ATOMIC_RELEASE); }

#endif

} // namespace millrace::transport
