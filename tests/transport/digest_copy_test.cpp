// Tests that copying and digesting in one pass gives the copy and the digest, whatever the size,
// the place and the processor.
#include <millrace/core/digest.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/transport/copy/copy.hpp>
#include <millrace/transport/copy/digest_copy.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::transport;

namespace {

struct lines {
  explicit lines(std::size_t size_bytes)
    : data(static_cast<std::byte*>(std::aligned_alloc(64, (size_bytes + 191) / 64 * 64))) {}
  ~lines() { std::free(data); }
  lines(const lines&) = delete;
  lines& operator=(const lines&) = delete;
  std::byte* data;
};

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> out = {
    1024,
    1025,
    1087,
    1088,
    1089,
    2047,
    2048,
    2049,
    3000,
    digest_block_bytes - 1,
    digest_block_bytes,
    digest_block_bytes + 1,
    1'000'003,
    4 * digest_block_bytes - 1,
    4 * digest_block_bytes,
    4 * digest_block_bytes + 1,
    9 * digest_block_bytes + 4321};
  std::mt19937_64 random{7};
  for (int i = 0; i < 200; ++i)
    out.push_back(1024 + random() % 20'000);
  return out;
}

// Copies between odd places and looks at the bytes beside the target.
template <class F>
void check(F copy, std::size_t size_bytes, std::size_t source_shift, std::size_t target_shift) {
  auto source = pattern(size_bytes + source_shift, 5);
  lines target{size_bytes + target_shift};
  std::fill_n(target.data, target_shift + size_bytes + 64, std::byte{0xee});
  std::vector<std::uint64_t> sums(digest_count(size_bytes));
  copy(target.data + target_shift, source.data() + source_shift, size_bytes, sums.data());
  streaming_fence();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    auto at = i * digest_block_bytes;
    auto length = std::min(size_bytes - at, std::size_t{digest_block_bytes});
    BOOST_TEST(sums[i] == digest(source.data() + source_shift + at, length), size_bytes);
  }
  BOOST_TEST(std::equal(
    source.begin() + static_cast<std::ptrdiff_t>(source_shift), source.end(),
    target.data + target_shift));
  BOOST_TEST((target.data[target_shift + size_bytes] == std::byte{0xee}));
  BOOST_TEST((target_shift == 0 || target.data[target_shift - 1] == std::byte{0xee}));
}

} // namespace

BOOST_AUTO_TEST_SUITE(digest_copies_suite)

// About where copies change their ways, and where digest blocks end.
BOOST_AUTO_TEST_CASE(copies_of_any_length_and_place_are_exact) {
  constexpr std::size_t kib = 1024;
  std::vector<std::size_t> lengths = sizes();
  for (auto about : {256 * std::size_t{1}, 128 * kib, 256 * kib, kib * kib, 1200 * kib, 2048 * kib})
    for (auto more : {0, 1, 63, 64, 127, 128, 191})
      lengths.insert(
        lengths.end(),
        {about - static_cast<std::size_t>(more), about + static_cast<std::size_t>(more)});
  for (auto mode : {store_mode::streaming, store_mode::written_back, store_mode::cached})
    for (auto length : lengths)
      for (std::size_t shift : {0, 1, 33, 63}) {
        auto copy = [&](auto* target, auto* source, auto size_bytes, std::uint64_t* sums) {
          copy_bytes(target, source, size_bytes, mode);
          for (std::size_t at = 0; at < size_bytes; at += digest_block_bytes)
            *sums++ =
              digest(source + at, std::min(size_bytes - at, std::size_t{digest_block_bytes}));
        };
        check(copy, length, (shift * 7) % 64, shift);
      }
}

BOOST_AUTO_TEST_CASE(every_way_of_this_processor_agrees_with_the_library) {
  if (digest_copies().empty())
    millrace::testing::skipped("copying and digesting in one pass: the processor has no AVX2");
  for (auto way : digest_copies())
    for (auto mode : {store_mode::streaming, store_mode::written_back})
      for (auto size : sizes())
        for (auto shift : {0u, 1u, 32u})
          check(
            [&](auto* to, auto* from, auto bytes, auto* sums) { way(to, from, bytes, mode, sums); },
            size, shift, 0);
}

BOOST_AUTO_TEST_CASE(any_size_and_place_is_copied_and_digested) {
  for (auto mode : {store_mode::cached, store_mode::streaming, store_mode::written_back})
    for (std::size_t size :
         {0u, 1u, 63u, 64u, 240u, 241u, 1023u, 1024u, 5000u, 300'001u, 1'400'000u})
      for (auto shift : {0u, 1u, 64u, 65u})
        check(
          [&](auto* to, auto* from, auto bytes, auto* sums) {
            copy_and_digest(to, from, bytes, mode, sums);
          },
          size, 3, shift);
}

BOOST_AUTO_TEST_SUITE_END()
