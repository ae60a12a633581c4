// Decides about the places of a stream: which sample is given, which one makes room, and whether
// there is anything to wait for. Used by the stream server; knows no time, network or memory.
#pragma once

#include <millrace/core/sample_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace millrace::actors {

/// A sample that a reader gets. Its place is not written until the reader has released it.
struct given_sample {
  std::uint32_t place = 0;
  std::uint64_t number = 0; // in the order in which samples were appended, from 0
  std::uint64_t digest = 0; // of its bytes, field after field

  friend bool operator==(const given_sample&, const given_sample&) = default;
};
MILLRACE_INSPECT(given_sample, x.place, x.number, x.digest)

/// Some of the numbers below a bound: one of them is added, removed or found in constant time.
class place_bag {
public:
  explicit place_bag(std::uint32_t bound) : where_(bound, absent) {}

  std::size_t size() const noexcept { return items_.size(); }
  bool contains(std::uint32_t item) const { return where_[item] != absent; }
  std::uint32_t at(std::size_t index) const { return items_[index]; }
  void insert(std::uint32_t item);
  void erase(std::uint32_t item);
  void swap(std::size_t a, std::size_t b);

private:
  static constexpr std::uint32_t absent = UINT32_MAX;

  std::vector<std::uint32_t> items_;
  std::vector<std::uint32_t> where_;
};

/// The places of one stream. A place is free; or a producer writes it; or its sample is *present*,
/// and can be given; or its sample was given for the last time, and readers still have it.
///
/// - fifo and firo: a sample that is given is no longer present.
/// - reservoir: it stays present until the stream has ended. If no place is free, a sample that was
///   given, and that no reader has, makes room: one of these at random.
/// - After the end each sample that is present is given once more, and then no longer present.
///
/// The caller names only places that it has got from here. Equal calls give equal answers.
/// Threads: one at a time.
class stream_buffer {
public:
  /// `options` are valid.
  explicit stream_buffer(const stream_options& options);

  /// Lends a place to a producer, of a sample that makes room if it must be.
  /// Returns none while the producer has to wait.
  std::optional<std::uint32_t> begin_write();
  /// Makes the sample present. Returns its number.
  std::uint64_t commit(std::uint32_t place, std::uint64_t digest);
  /// Takes a place back that was not written.
  void abandon(std::uint32_t place);

  /// Gives `count` different samples, or what is left after the end. Empty: there are too few now;
  /// or none will come, see `is_over`.
  std::vector<given_sample> take(std::uint64_t count);
  /// A reader has a sample no longer.
  void release(std::uint32_t place);
  /// The same where the reader has not used it: as if it had not been given.
  void put_back(std::uint32_t place);

  /// No sample is appended any more.
  void end() noexcept { ended_ = true; }
  bool has_ended() const noexcept { return ended_; }
  /// Returns true if no sample is left to be given, and none can be put back.
  bool is_over() const noexcept { return ended_ && by_age_.empty() && counts_.reading == 0; }

  const stream_options& options() const noexcept { return options_; }
  /// Returns the places that `begin_write` lends without removing a sample.
  std::uint64_t free_places() const noexcept { return free_.size(); }
  stream_counts counts() const;

private:
  struct sample {
    std::uint64_t number = 0;
    std::uint64_t digest = 0;
    std::uint64_t times_given = 0;
    std::uint32_t readers = 0;
    bool present = false;
  };

  bool stays() const noexcept { return options_.policy == stream_policy::reservoir && !ended_; }
  void appear(std::uint32_t place);
  void vanish(std::uint32_t place);
  void let_go(std::uint32_t place);
  std::optional<std::uint32_t> make_room();
  std::optional<std::uint32_t> oldest_idle() const;
  std::vector<std::uint32_t> choose(std::uint64_t count);
  std::size_t random_below(std::size_t bound) { return random_() % bound; }

  const stream_options options_;
  std::mt19937_64 random_;
  std::vector<sample> samples_; // by place
  std::vector<std::uint32_t> free_;
  std::map<std::uint64_t, std::uint32_t> by_age_; // present ones, by number
  place_bag present_;
  place_bag replaceable_; // of a reservoir: present, given, and no reader has them
  std::uint64_t next_number_ = 0;
  bool ended_ = false;
  stream_counts counts_; // `present` is known from the places
};

} // namespace millrace::actors
