// Decides about the memory of a window: which samples it keeps, where, and which ones make room.
// Used by the data server; knows no time, network or memory.
#pragma once

#include <millrace/core/free_runs.hpp>
#include <millrace/core/working_set.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace millrace::actors {

/// One field of one sample.
struct value_key {
  std::uint32_t field = 0;
  std::uint64_t sample = 0;

  friend auto operator<=>(const value_key&, const value_key&) = default;
};

/// Where a value lies in the window, and the digest of its bytes.
struct value_place {
  std::uint64_t address = 0;
  std::uint64_t digest = 0;

  friend bool operator==(const value_place&, const value_place&) = default;
};

/// The values of one window. A value is being written by one reader; or it is *kept*, and can be
/// given to any number of readers at once. What is being written or read does not move or go.
///
/// Readers say when a value is needed next, as the number of samples that are read before it. If
/// there is no room for a value, the kept value that is needed last goes, unless the new one is
/// needed later: then it is not kept, and nothing goes. A value that was needed an epoch ago, and
/// that nobody has asked for, goes first.
///
/// The caller releases, commits and abandons only what it has got from here. What readers say may
/// be any number: a step of more than an epoch counts as one, a need in more than two epochs as in
/// two, and the clock stops at the largest number, after which only the order of values suffers.
/// Equal calls give equal answers.
/// Cost:    O(log kept) for each call, and for each value that makes room.
/// Threads: one at a time.
/// Source:  Belady's rule; the loading paper, section 4.3, has the order known in advance.
class window_buffer {
public:
  /// Values lie at multiples of this.
  static constexpr std::uint64_t alignment = 64;
  /// Each value needs some heap beside the window, so there is at most one for so many bytes.
  static constexpr std::uint64_t bytes_of_value_min = 256;
  /// So many values make room for one at most.
  static constexpr std::size_t makes_room_max = 65'536;

  /// `samples`: of an epoch.
  window_buffer(std::uint64_t size_bytes, std::uint64_t samples);

  /// Notes that readers have gone on by so many samples.
  void pass(std::uint64_t samples) noexcept;

  /// Gives a value to a reader, until `release` or `drop`. Returns none if it is not kept.
  std::optional<value_place> take(
    const value_key& key, std::uint64_t bytes, std::uint64_t needed_in);
  void release(const value_key& key) { let_go(key); }
  /// Releases a value that the reader has found damaged. Nobody gets it any more.
  void drop(const value_key& key);

  /// Lends a place for a value that is not kept. Returns none if another one writes it, or if it is
  /// not worth its room.
  std::optional<std::uint64_t> begin_write(
    const value_key& key, std::uint64_t bytes, std::uint64_t needed_in);
  void commit(const value_key& key, std::uint64_t digest);
  void abandon(const value_key& key);

  window_counts counts() const noexcept { return counts_; }

private:
  struct value {
    value_place place;
    std::uint64_t bytes = 0;
    std::uint64_t needed_at = 0;
    std::uint64_t readers = 0;
    bool kept = false; // it can be given
  };
  using values = std::map<value_key, value>;

  std::uint64_t time_of(std::uint64_t needed_in) const noexcept;
  std::optional<std::uint64_t> place_for(std::uint64_t space, std::uint64_t needed_at);
  void evict(values::iterator which);
  std::optional<value_key> last_needed(std::uint64_t needed_at) const;
  void let_go(const value_key& key);
  void remove(values::iterator which);

  const std::uint64_t size_bytes_;
  const std::uint64_t samples_;
  const std::uint64_t values_max_;
  std::uint64_t now_ = 0;
  values values_;
  std::set<std::pair<std::uint64_t, value_key>> idle_; // kept, without readers: by `needed_at`
  free_runs free_;
  window_counts counts_;
};

} // namespace millrace::actors
