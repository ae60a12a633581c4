// The messages about streaming sets. Sent by clients; they hold descriptors only.
#pragma once

#include <millrace/actors/loader/stream_buffer.hpp>
#include <millrace/actors/service.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/sample_stream.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::actors {

/// Requests of one reader for samples that wait at once. One more gets `busy`.
inline constexpr std::size_t takes_of_reader_max = 64;

/// Makes a stream. One with the same options that is there already is left as it is.
struct create_stream_request {
  std::string name;
  stream_options options;
  std::uint32_t timeout_ms = 0;
  asker from = {};
};
MILLRACE_INSPECT(create_stream_request, x.name, x.options, x.timeout_ms)

/// Opens a stream for one producer or one reader.
struct open_stream_request {
  std::string name;
  bool writes = false;
  std::uint32_t timeout_ms = 0;
  /// Chosen by the asker, at random: by it `leave_stream_request` names the lease of an answer that
  /// came too late. Nil: it will not.
  set_id mark = {};
  asker from = {};
};
MILLRACE_INSPECT(open_stream_request, x.name, x.writes, x.timeout_ms, x.mark)

struct opened_stream {
  stream_status stream;
  set_info places; // where each place of each field lies, in regions as a working set does
  /// Keeps the memory until `leave_stream_request` or the end of the connection.
  std::uint64_t lease = 0;
  std::vector<bulk_handle> regions;

  friend bool operator==(const opened_stream&, const opened_stream&) = default;
};
MILLRACE_INSPECT(opened_stream, x.stream, x.places, x.lease, x.regions)

/// A place that its producer has written.
struct written_sample {
  std::uint32_t place = 0;
  std::uint64_t digest = 0;

  friend bool operator==(const written_sample&, const written_sample&) = default;
};
MILLRACE_INSPECT(written_sample, x.place, x.digest)

/// Appends samples, and asks for places for the next ones. The samples are appended in any case;
/// then the answer waits until there is a place, or for `patience_ms`. 0: it does not wait. The
/// asker waits longer for the answer: one that comes too late would be lost with its places.
struct append_samples_request {
  std::uint64_t lease = 0;
  std::vector<written_sample> written = {};
  std::vector<std::uint32_t> unused = {}; // places that are not needed any more
  std::uint64_t wanted = 0;
  std::uint32_t patience_ms = 0;
  std::uint32_t timeout_ms = 0; // after which the asker hears no answer
  asker from = {};
};
MILLRACE_INSPECT(
  append_samples_request, x.lease, x.written, x.unused, x.wanted, x.patience_ms, x.timeout_ms)

struct places_to_write {
  std::vector<std::uint32_t> places; // `wanted` of them at most; perhaps none

  friend bool operator==(const places_to_write&, const places_to_write&) = default;
};
MILLRACE_INSPECT(places_to_write, x.places)

/// Asks for `count` samples. The answer waits until they are there, or for `patience_ms`, as for
/// `append_samples_request`.
struct take_samples_request {
  std::uint64_t lease = 0;
  std::uint64_t count = 0;
  std::uint32_t patience_ms = 0;
  std::uint32_t timeout_ms = 0; // after which the asker hears no answer
  asker from = {};
};
MILLRACE_INSPECT(take_samples_request, x.lease, x.count, x.patience_ms, x.timeout_ms)

struct taken_samples {
  std::vector<given_sample>
    samples; // fewer at the end of the stream; none: ask again, or it is over
  bool is_over = false;

  friend bool operator==(const taken_samples&, const taken_samples&) = default;
};
MILLRACE_INSPECT(taken_samples, x.samples, x.is_over)

/// Returns the places of samples that were taken.
struct release_samples_request {
  std::uint64_t lease = 0;
  std::vector<std::uint32_t> read = {};
  std::vector<std::uint32_t> put_back = {}; // not used: others get them
  asker from = {};
};
MILLRACE_INSPECT(release_samples_request, x.lease, x.read, x.put_back)

/// Gives back a lease.
struct leave_stream_request {
  std::uint64_t lease = 0;
  bool ends = false; // the producer has appended all of its samples
  set_id mark = {};  // with a lease of 0: the one that was opened with this mark
  asker from = {};
};
MILLRACE_INSPECT(leave_stream_request, x.lease, x.ends, x.mark)

/// Ends a stream, however many producers it has.
struct end_stream_request {
  std::string name;
  asker from = {};
};
MILLRACE_INSPECT(end_stream_request, x.name)

/// Removes a stream and its samples at once.
struct remove_stream_request {
  std::string name;
  asker from = {};
};
MILLRACE_INSPECT(remove_stream_request, x.name)

struct list_streams_request {
  std::string prefix;
  std::string after; // the names after this one
  std::uint32_t count_max = 0;
};
MILLRACE_INSPECT(list_streams_request, x.prefix, x.after, x.count_max)

struct stream_list {
  std::vector<stream_status> streams; // by name

  friend bool operator==(const stream_list&, const stream_list&) = default;
};
MILLRACE_INSPECT(stream_list, x.streams)

/// The service of a node's stream server.
struct stream_service
  : service<
      "streams", 128,
      // Errors: already_exists, no_space, invalid_argument.
      method<create_stream_request, stream_status>,
      // Errors: not_found; invalid_argument after the end; busy when all producers are there, or
      // the asker has too many leases.
      method<open_stream_request, opened_stream>,
      // Errors: not_found for a lease or a place that the asker does not have; invalid_argument
      // after the end; busy for a second request that waits.
      method<append_samples_request, places_to_write>,
      // Errors: not_found; invalid_argument for more samples than the capacity; busy.
      method<take_samples_request, taken_samples>,
      // Errors: not_found.
      method<release_samples_request, done_reply>, method<leave_stream_request, done_reply>,
      // Errors: not_found; permission_denied naming the owner.
      method<end_stream_request, done_reply>, method<remove_stream_request, done_reply>,
      method<list_streams_request, stream_list>> {};

} // namespace millrace::actors
