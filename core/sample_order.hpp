// The order in which an epoch visits the samples of a working set. Used by readers, and by servers
// that fetch samples ahead of them.
#pragma once

#include <millrace/core/digest.hpp>
#include <millrace/core/status.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

/// A permutation of the numbers below `size`, chosen by a key.
///
/// The same size and key give the same permutation on every machine and in every version, since
/// trainings resume in the middle of one.
/// Cost:    no memory; some 60 ns for a number.
/// Threads: any.
class keyed_permutation {
public:
  keyed_permutation() = default;
  keyed_permutation(std::uint64_t size, std::uint64_t key) noexcept;

  std::uint64_t size() const noexcept { return size_; }
  /// Returns the number at a place; both are below `size()`.
  std::uint64_t at(std::uint64_t place) const noexcept;
  /// Returns the place of a number.
  std::uint64_t place_of(std::uint64_t number) const noexcept;

private:
  static constexpr std::size_t rounds = 8;

  std::uint64_t size_ = 0;
  unsigned low_bits_ = 0, high_bits_ = 0;
  std::array<std::uint64_t, rounds> keys_{};
};

/// How the samples of an epoch are mixed.
struct shuffle_kind {
  /// 0: all samples with each other. 1: not at all. More: blocks of so many neighbours are mixed
  /// with each other, and the samples within each block, so that reads of files stay near each
  /// other.
  std::uint64_t block = 0;

  static constexpr shuffle_kind full() { return {0}; }
  static constexpr shuffle_kind none() { return {1}; }
  /// Reads "full", "none", or "block:N". Errors: `invalid_argument` naming the text.
  static result<shuffle_kind> parse(std::string_view text);
  std::string to_string() const;

  friend bool operator==(const shuffle_kind&, const shuffle_kind&) = default;
};

/// A checksum of samples in their order. They are hashed many at a time.
/// Threads: one at a time.
class samples_digest {
public:
  void add(std::uint64_t sample) noexcept;
  std::uint64_t value() noexcept;

private:
  void flush() noexcept;

  running_digest all_;
  std::array<std::uint64_t, 1024> some_;
  std::size_t count_ = 0; // of `some_`
};

/// The order of one epoch: a pure function of the set, the seed and the epoch, and of nothing else.
/// In particular it does not know the number of ranks.
/// Source:  the loading paper, section 4.3, has the order known to each worker; the function is
///          ours.
class sample_order {
public:
  struct key {
    std::uint64_t set = 0; // the identity of the working set
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
  };

  sample_order() = default;
  sample_order(std::uint64_t samples, const key& of, shuffle_kind shuffle = {}) noexcept;

  std::uint64_t size() const noexcept { return samples_; }
  /// Returns the sample at a position; both are below `size()`.
  std::uint64_t at(std::uint64_t position) const noexcept;
  /// Returns the position of a sample.
  std::uint64_t position_of(std::uint64_t sample) const noexcept;
  /// Returns the `samples_digest` of the first `count` samples; at most all.
  std::uint64_t digest(std::uint64_t count = ~std::uint64_t{0}) const noexcept;

private:
  keyed_permutation within(std::uint64_t block) const noexcept;

  std::uint64_t samples_ = 0;
  std::uint64_t block_ = 0; // 1: as they are
  std::uint64_t key_ = 0;
  keyed_permutation all_; // of samples; or of blocks
  // The last block may be short. Those that come after it begin earlier.
  std::uint64_t short_place_ = 0, missing_ = 0;
};

} // namespace millrace
