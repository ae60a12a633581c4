// Copies that compute xxHash3 over the registers that they store, which the library cannot do. It
// begins and ends the hash, and a test compares the results. Called by copy jobs.
#include <millrace/core/digest.hpp>
#include <millrace/core/never_destroyed.hpp>
#include <millrace/transport/copy/digest_copy.hpp>

#include <algorithm>

#if defined(__x86_64__)
#define XXH_INLINE_ALL
#include <immintrin.h>
#include <xxhash.h>
#endif

namespace millrace::transport {

namespace {

// Alternates between reading for the digest and writing past the caches, in steps small enough that
// one proceeds while the other drains.
std::uint64_t copy_in_turns(
  std::byte* target, const std::byte* source, std::uint64_t size_bytes, store_mode mode) {
  constexpr std::uint64_t step_bytes = 1024;
  running_digest sum;
  for (std::uint64_t at = 0; at < size_bytes; at += step_bytes) {
    auto part = std::min(step_bytes, size_bytes - at);
    sum.add(source + at, part);
    copy_bytes(target + at, source + at, part, mode);
  }
  return sum.value();
}

#if defined(__x86_64__)

constexpr std::size_t stripe_bytes = XXH_STRIPE_LEN;
constexpr std::size_t secret_bytes = XXH_SECRET_DEFAULT_SIZE;
// The number of stripes before the accumulators are scrambled. Each stripe uses the secret from 8
// bytes further on.
constexpr std::size_t block_stripes = (secret_bytes - stripe_bytes) / XXH_SECRET_CONSUME_RATE;
// Digest blocks that follow each other and are copied at once: one waits for memory while the other
// computes. More of them are slower, by up to a half on recent processors.
constexpr std::size_t copy_places = 2;
// The distance of prefetching. The streaming stores suppress the processor's own prefetching.
template <std::size_t places>
constexpr std::size_t ahead_bytes = places == 1 ? 1024 : 256;
constexpr std::uint64_t one_pass_bytes_min = 1024;

struct alignas(64) accumulators {
  xxh_u64 lanes[8] = {XXH_PRIME32_3, XXH_PRIME64_1, XXH_PRIME64_2, XXH_PRIME64_3,
                      XXH_PRIME64_4, XXH_PRIME32_2, XXH_PRIME64_5, XXH_PRIME32_1};
};

#define MILLRACE_AVX512 __attribute__((target("avx512f"), always_inline)) inline
#define MILLRACE_AVX2 __attribute__((target("avx2"), always_inline)) inline

MILLRACE_AVX512 __m512i add_stripe(__m512i sum, __m512i data, const xxh_u8* secret) {
  auto keyed = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
  auto high = _mm512_srli_epi64(keyed, 32);
  auto swapped = _mm512_shuffle_epi32(data, static_cast<_MM_PERM_ENUM>(_MM_SHUFFLE(1, 0, 3, 2)));
  return _mm512_add_epi64(_mm512_mul_epu32(keyed, high), _mm512_add_epi64(sum, swapped));
}

MILLRACE_AVX512 __m512i scramble(__m512i sum) {
  auto prime = _mm512_set1_epi64(XXH_PRIME32_1);
  auto mixed = _mm512_xor_si512(sum, _mm512_srli_epi64(sum, 47));
  mixed = _mm512_xor_si512(mixed, _mm512_loadu_si512(XXH3_kSecret + secret_bytes - stripe_bytes));
  auto high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
  return _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(high, 32));
}

MILLRACE_AVX2 __m256i add_half(__m256i sum, __m256i data, const xxh_u8* secret) {
  auto key = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret));
  auto keyed = _mm256_xor_si256(data, key);
  auto high = _mm256_srli_epi64(keyed, 32);
  auto swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
  return _mm256_add_epi64(_mm256_mul_epu32(keyed, high), _mm256_add_epi64(sum, swapped));
}

MILLRACE_AVX2 __m256i scramble_half(__m256i sum, const xxh_u8* secret) {
  auto prime = _mm256_set1_epi64x(XXH_PRIME32_1);
  auto mixed = _mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47));
  mixed = _mm256_xor_si256(mixed, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret)));
  auto high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
  return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(high, 32));
}

MILLRACE_AVX512 __m512i
copy_stripe_avx512(std::byte* target, const std::byte* source, __m512i sum, const xxh_u8* secret) {
  auto data = _mm512_loadu_si512(source);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(target), data);
  return add_stripe(sum, data, secret);
}

struct halves {
  __m256i low, high;
};

MILLRACE_AVX2 void copy_stripe_avx2(
  std::byte* target, const std::byte* source, halves& sum, const xxh_u8* secret) {
  const auto* from = reinterpret_cast<const __m256i*>(source);
  auto* to = reinterpret_cast<__m256i*>(target);
  auto first = _mm256_loadu_si256(from), second = _mm256_loadu_si256(from + 1);
  _mm256_stream_si256(to, first);
  _mm256_stream_si256(to + 1, second);
  sum.low = add_half(sum.low, first, secret);
  sum.high = add_half(sum.high, second, secret + 32);
}

// Both structs copy and accumulate `stripes` stripes in each of `places` digest blocks that follow
// each other, two by two. The first stripe begins an xxHash block. The sums stay in registers: a
// round through memory for each xxHash block costs a tenth.

struct with_avx512 {
  template <std::size_t places>
  __attribute__((target("avx512f"))) static void stream_stripes(
    std::byte* target, const std::byte* source, std::size_t stripes, accumulators* a) {
    __m512i sums[places];
    for (std::size_t p = 0; p < places; ++p)
      sums[p] = _mm512_load_si512(a[p].lanes);
    for (std::size_t done = 0; done < stripes;) {
      auto last = std::min(stripes, done + block_stripes);
      const auto* secret = XXH3_kSecret;
      for (auto i = done; i < last; i += 2, secret += std::size_t{2} * XXH_SECRET_CONSUME_RATE)
        for (std::size_t p = 0; p < places; ++p) {
          auto at = p * digest_block_bytes + i * stripe_bytes;
          const auto* ahead = reinterpret_cast<const char*>(source + at) + ahead_bytes<places>;
          _mm_prefetch(ahead, _MM_HINT_T0);
          _mm_prefetch(ahead + stripe_bytes, _MM_HINT_T0);
          sums[p] = copy_stripe_avx512(target + at, source + at, sums[p], secret);
          at += stripe_bytes;
          if (i + 1 < last)
            sums[p] = copy_stripe_avx512(
              target + at, source + at, sums[p], secret + XXH_SECRET_CONSUME_RATE);
        }
      done = last;
      if (done % block_stripes == 0)
        for (auto& sum : sums)
          sum = scramble(sum);
    }
    for (std::size_t p = 0; p < places; ++p)
      _mm512_store_si512(a[p].lanes, sums[p]);
  }
};

struct with_avx2 {
  template <std::size_t places>
  __attribute__((target("avx2"))) static void stream_stripes(
    std::byte* target, const std::byte* source, std::size_t stripes, accumulators* a) {
    halves sums[places];
    for (std::size_t p = 0; p < places; ++p) {
      const auto* lanes = reinterpret_cast<const __m256i*>(a[p].lanes);
      sums[p] = {_mm256_load_si256(lanes), _mm256_load_si256(lanes + 1)};
    }
    for (std::size_t done = 0; done < stripes;) {
      auto last = std::min(stripes, done + block_stripes);
      const auto* secret = XXH3_kSecret;
      for (auto i = done; i < last; i += 2, secret += std::size_t{2} * XXH_SECRET_CONSUME_RATE)
        for (std::size_t p = 0; p < places; ++p) {
          auto at = p * digest_block_bytes + i * stripe_bytes;
          const auto* ahead = reinterpret_cast<const char*>(source + at) + ahead_bytes<places>;
          _mm_prefetch(ahead, _MM_HINT_T0);
          _mm_prefetch(ahead + stripe_bytes, _MM_HINT_T0);
          copy_stripe_avx2(target + at, source + at, sums[p], secret);
          at += stripe_bytes;
          if (i + 1 < last)
            copy_stripe_avx2(target + at, source + at, sums[p], secret + XXH_SECRET_CONSUME_RATE);
        }
      done = last;
      if (done % block_stripes == 0)
        for (auto& sum : sums) {
          sum.low = scramble_half(sum.low, XXH3_kSecret + secret_bytes - stripe_bytes);
          sum.high = scramble_half(sum.high, XXH3_kSecret + secret_bytes - 32);
        }
    }
    for (std::size_t p = 0; p < places; ++p) {
      auto* lanes = reinterpret_cast<__m256i*>(a[p].lanes);
      _mm256_store_si256(lanes, sums[p].low);
      _mm256_store_si256(lanes + 1, sums[p].high);
    }
  }
};

#undef MILLRACE_AVX512
#undef MILLRACE_AVX2

// Copies and digests `places` blocks of `size_bytes` each. The last stripe of each ends with its
// last byte, overlaps the stripe before it, and is never the end of an xxHash block.
template <class Way, std::size_t places>
void copy_blocks(
  std::byte* target, const std::byte* source, std::uint64_t size_bytes, store_mode mode,
  std::uint64_t* digests) {
  accumulators a[places];
  auto stripes = (size_bytes - 1) / stripe_bytes;
  Way::template stream_stripes<places>(target, source, stripes, a);
  auto done = stripes * stripe_bytes;
  for (auto& sums : a) {
    copy_bytes(target + done, source + done, size_bytes - done, mode);
    XXH3_accumulate_512(
      sums.lanes, reinterpret_cast<const xxh_u8*>(source) + size_bytes - stripe_bytes,
      XXH3_kSecret + secret_bytes - stripe_bytes - XXH_SECRET_LASTACC_START);
    *digests++ = XXH3_mergeAccs(
      sums.lanes, XXH3_kSecret + XXH_SECRET_MERGEACCS_START, size_bytes * XXH_PRIME64_1);
    target += size_bytes;
    source += size_bytes;
  }
}

template <class Way>
void copy_in_one_pass(
  std::byte* target, const std::byte* source, std::uint64_t size_bytes, store_mode mode,
  std::uint64_t* digests) {
  for (std::size_t blocks = 0; size_bytes > 0; digests += blocks) {
    blocks = size_bytes < copy_places * digest_block_bytes ? 1 : copy_places;
    auto length = std::min(size_bytes, blocks * digest_block_bytes);
    if (blocks > 1)
      copy_blocks<Way, copy_places>(target, source, digest_block_bytes, mode, digests);
    else if (length >= one_pass_bytes_min)
      copy_blocks<Way, 1>(target, source, length, mode, digests);
    else
      *digests = copy_in_turns(target, source, length, mode);
    target += length;
    source += length;
    size_bytes -= length;
  }
}

std::vector<digest_copy> find_copies() {
  std::vector<digest_copy> out;
  if (__builtin_cpu_supports("avx512f"))
    out.push_back(copy_in_one_pass<with_avx512>);
  if (__builtin_cpu_supports("avx2"))
    out.push_back(copy_in_one_pass<with_avx2>);
  return out;
}

#else

std::vector<digest_copy> find_copies() { return {}; }

#endif

} // namespace

void copy_and_digest(
  std::byte* target, const std::byte* source, std::uint64_t size_bytes, store_mode mode,
  std::uint64_t* digests) {
  auto aligned = reinterpret_cast<std::uintptr_t>(target) % 64 == 0;
  auto& copies = digest_copies();
  if (mode != store_mode::cached && aligned && !copies.empty())
    return copies.front()(target, source, size_bytes, mode, digests);
  for (std::uint64_t at = 0; at < size_bytes; at += digest_block_bytes) {
    auto length = std::min(size_bytes - at, digest_block_bytes);
    if (mode == store_mode::cached) {
      copy_bytes(target + at, source + at, length, mode);
      *digests++ = digest(target + at, length);
    } else {
      *digests++ = copy_in_turns(target + at, source + at, length, mode);
    }
  }
}

const std::vector<digest_copy>& digest_copies() {
  return never_destroyed([] { return find_copies(); });
}

} // namespace millrace::transport
