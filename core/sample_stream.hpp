// Descriptions of streaming sets: samples that producers append while trainings read them. Data
// servers keep them, messages carry them, programs get them from `stream`.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/core/inspect.hpp>
#include <millrace/core/tensor.hpp>
#include <millrace/core/working_set.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

inline constexpr std::uint64_t stream_capacity_max = 1u << 30; // samples

/// Which sample of a stream a reader gets next, and how often.
/// Source:  Melissa, "Training deep surrogate models with large scale online learning": FIFO, FIRO
///          and Reservoir.
enum class stream_policy : std::uint8_t {
  fifo,     // each once, the oldest first
  firo,     // each once, at random among those that are there
  reservoir // at random among those that are there, and again, until newer ones need their places
};

/// What becomes of a new sample when all places are taken.
/// Source:  ADIOS2 SST: QueueFullPolicy, Block and Discard.
enum class full_policy : std::uint8_t {
  block,      // the producer waits
  drop_oldest // the oldest sample that no reader is reading makes room, given or not
};

/// Reads "fifo", "firo" or "reservoir". Errors: `invalid_argument` naming the text.
result<stream_policy> parse_stream_policy(std::string_view text);
std::string_view to_string(stream_policy policy) noexcept;
/// Reads "block" or "drop_oldest". Errors: `invalid_argument` naming the text.
result<full_policy> parse_full_policy(std::string_view text);
std::string_view to_string(full_policy policy) noexcept;

/// How a stream works, which its creator says once.
struct stream_options {
  std::vector<tensor_desc> fields; // name, dtype and shape of one sample
  /// Places for samples. A sample that is being written or read has a place as well.
  std::uint64_t capacity = 1024;
  stream_policy policy = stream_policy::fifo;
  full_policy when_full = full_policy::block;
  /// The stream ends when so many producers have ended. 0: only `stream::end` ends it.
  std::uint64_t producers = 0;
  std::uint64_t seed = 0; // of random choices
  /// Samples that must be there before firo and reservoir give any, at each call, until the stream
  /// has ended.
  std::uint64_t threshold = 0;

  friend bool operator==(const stream_options&, const stream_options&) = default;
};
MILLRACE_INSPECT(
  stream_options, x.fields, x.capacity, x.policy, x.when_full, x.producers, x.seed, x.threshold)

/// Checks options that a program or a peer gives. The fields are checked by `place_fields`.
/// Errors:  `invalid_argument` naming the option.
[[nodiscard]] status validate(const stream_options& options);

/// Returns the places of a stream as a working set has its samples, for `place_fields`.
set_info places_of(const std::string& name, const stream_options& options);

/// What has happened to the samples of a stream, and where they are now.
struct stream_counts {
  std::uint64_t appended = 0;
  std::uint64_t given = 0;    // to readers; a sample that is put back is not
  std::uint64_t repeated = 0; // of these, the second and later times of a sample
  std::uint64_t dropped = 0;  // lost: removed for newer ones before any reader got them
  std::uint64_t replaced = 0; // of a reservoir: removed for newer ones after they were given
  std::uint64_t present = 0;  // can be given now
  std::uint64_t writing = 0;  // places that producers have
  std::uint64_t reading = 0;  // places of samples that readers have

  friend bool operator==(const stream_counts&, const stream_counts&) = default;
};
MILLRACE_INSPECT(
  stream_counts, x.appended, x.given, x.repeated, x.dropped, x.replaced, x.present, x.writing,
  x.reading)

/// A stream now.
struct stream_status {
  std::string name;
  set_id id; // one life of the stream, until it is removed
  stream_options options;
  std::string owner;               // who has created it: "user 1000"
  std::uint64_t created_at_ns = 0; // wall clock
  std::uint64_t size_bytes = 0;    // of all places
  std::uint64_t producers = 0;     // that are open
  std::uint64_t producers_ended = 0;
  std::uint64_t readers = 0;
  bool ended = false; // no sample is added any more
  stream_counts counts;
  std::uint64_t append_waits = 0; // requests of producers that found no place
  std::uint64_t take_waits = 0;   // requests of readers that found too few samples

  friend bool operator==(const stream_status&, const stream_status&) = default;
};
MILLRACE_INSPECT(
  stream_status, x.name, x.id, x.options, x.owner, x.created_at_ns, x.size_bytes, x.producers,
  x.producers_ended, x.readers, x.ended, x.counts, x.append_waits, x.take_waits)

} // namespace millrace
