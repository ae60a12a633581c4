// What producers have appended to a stream and readers have got of it, and what they must get: the
// oracle of the scenario of streams.
#pragma once

#include <millrace/core/sample_stream.hpp>
#include <millrace/core/status.hpp>

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace millrace::sim {

/// A sample by who has appended it: each opening of a stream by a producer has a number of its own.
struct sample_label {
  std::uint64_t producer = 0;
  std::uint64_t sequence = 0; // from 0, in the order of its appends

  friend auto operator<=>(const sample_label&, const sample_label&) = default;
};

/// One life of a stream, from its creation until it is removed or its node dies.
///
/// Breaks the promise if a sample comes that nobody has appended, or more often than the policy
/// says; if the samples of one producer change their order, or those of a fifo are not given by
/// age; if a batch is smaller before the end; if a sample is left out that was neither dropped nor
/// taken by a reader that was lost.
class stream_ledger {
public:
  explicit stream_ledger(const stream_options& options) : options_(options) {}

  const stream_options& options() const noexcept { return options_; }

  /// An append begins; then its outcome is there. One that has failed may have been appended.
  void begins(const sample_label& sample) { appends_[sample] = state::unknown; }
  void appended(const sample_label& sample) { appends_[sample] = state::appended; }

  /// A reader got a batch: the samples, and their numbers in the stream. It asked for so many.
  /// `reader` is another number for each opening of the stream.
  void got(
    std::uint64_t reader, std::span<const std::uint64_t> numbers,
    const std::vector<sample_label>& samples, std::uint64_t wanted);

  /// A sample that was taken may come back, so that its number comes later than greater ones.
  void may_put_back() noexcept { puts_back_ = true; }
  /// A reader was lost that may have taken so many samples which the program did not get.
  void may_lose(std::uint64_t samples) noexcept { lost_max_ += samples; }
  /// Nothing is appended any more: the last producer, or the owner, ends the stream.
  void ends() noexcept { ending_ = true; }
  bool is_ending() const noexcept { return ending_; }

  /// Returns the number of batches.
  std::uint64_t batches() const noexcept { return batches_; }
  std::uint64_t samples_appended() const;

  /// All readers have got the end, and what the stream counts then.
  void check_end(const stream_counts& counts) const;

private:
  enum class state : std::uint8_t { unknown, appended };

  void got_one(std::uint64_t reader, std::uint64_t number, const sample_label& sample);
  void check_order(const sample_label& sample, std::uint64_t number) const;
  std::uint64_t left_out() const;

  const stream_options options_;
  std::map<sample_label, state> appends_;
  std::map<sample_label, std::uint64_t> numbers_; // of the samples that were given
  std::map<std::uint64_t, sample_label> labels_;  // by number
  std::map<std::uint64_t, std::uint64_t> newest_; // of a fifo: the last number of each reader
  std::uint64_t batches_ = 0;
  std::uint64_t lost_max_ = 0;
  bool puts_back_ = false;
  bool ending_ = false;
};

} // namespace millrace::sim
