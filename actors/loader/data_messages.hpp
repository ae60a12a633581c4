// The messages about working sets: preload, open, unload. Sent by clients; they hold descriptors
// only.
#pragma once

#include <millrace/actors/service.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/working_set.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::actors {

/// Reserves the regions of a working set, whole or not at all. The asker then writes the samples
/// and their digests into them, and publishes the set. What is not published by the end of the
/// asker's connection is given up. A set that is `while_used` stays until then at least, also if it
/// was there already. With `set_info::extension` it appends samples to a set that is there.
struct reserve_set_request {
  /// Name, samples, source, `while_used`, each field's `sample`, the division, and the extension;
  /// the server says the rest, and of an extension's first part the number.
  set_info set;
  std::uint32_t timeout_ms = 0;
  asker from = {};
};
MILLRACE_INSPECT(reserve_set_request, x.set, x.timeout_ms)

struct set_reservation {
  set_info set;
  bool exists = false;              // the same set is there already: nothing is reserved
  std::uint64_t number = 0;         // of the reservation; cannot be guessed
  std::vector<bulk_handle> regions; // writable, in their order

  friend bool operator==(const set_reservation&, const set_reservation&) = default;
};
MILLRACE_INSPECT(set_reservation, x.set, x.exists, x.number, x.regions)

/// Ends the writing, and lets readers open the set. If blocks were claimed, all are written.
struct publish_set_request {
  std::uint64_t reservation = 0;
  std::uint32_t timeout_ms = 0;
  asker from = {};
};
MILLRACE_INSPECT(publish_set_request, x.reservation, x.timeout_ms)

/// Asks to write some of a set that another client fills. The answer has the asker's own handles,
/// and exists if the part is there already.
struct join_set_request {
  set_info set; // as for `reserve_set_request`; without a division: the set, or its first part
  std::uint32_t timeout_ms = 0;
  asker from = {};
};
MILLRACE_INSPECT(join_set_request, x.set, x.timeout_ms)

/// Some blocks of a set that follow each other.
struct block_range {
  std::uint64_t first = 0;
  std::uint64_t count = 0;

  friend bool operator==(const block_range&, const block_range&) = default;
};
MILLRACE_INSPECT(block_range, x.first, x.count)

struct written_blocks {
  block_range blocks;           // as they were claimed
  std::uint64_t data_bytes = 0; // of their samples

  friend bool operator==(const written_blocks&, const written_blocks&) = default;
};
MILLRACE_INSPECT(written_blocks, x.blocks, x.data_bytes)

/// Tells what the asker has written of a set that is being filled, and claims what it writes next.
/// All clients that fill a set cut it into the same blocks; the server only counts them.
struct claim_blocks_request {
  std::uint64_t number = 0; // of the reservation, or of the joining
  std::uint64_t blocks = 0; // that the set has
  std::uint64_t cut = 0;    // a digest of how it is cut
  std::uint64_t below = 0;  // only blocks before this one
  std::uint32_t wanted = 0; // at most
  std::vector<written_blocks> written = {};
  std::uint32_t timeout_ms = 0;
  asker from = {};
};
MILLRACE_INSPECT(
  claim_blocks_request, x.number, x.blocks, x.cut, x.below, x.wanted, x.written, x.timeout_ms)

struct claimed_blocks {
  block_range blocks;              // count 0: none
  bool more = false;               // nobody has claimed others before `below`
  std::uint64_t unclaimed = 0;     // blocks of the set that nobody has claimed
  std::uint64_t elsewhere = 0;     // that other clients are writing
  std::uint64_t written_bytes = 0; // of samples, by all clients

  friend bool operator==(const claimed_blocks&, const claimed_blocks&) = default;
};
MILLRACE_INSPECT(claimed_blocks, x.blocks, x.more, x.unclaimed, x.elsewhere, x.written_bytes)

struct open_set_request {
  std::string name;
  std::uint32_t timeout_ms = 0;
  set_id id = {}; // only this one, or the part of this whole or extension; nil: any set
  /// Chosen by the asker, at random: by it `close_set_request` names the lease of an answer that
  /// came too late. Nil: it will not.
  set_id mark = {};
  asker from = {};
};
MILLRACE_INSPECT(open_set_request, x.name, x.timeout_ms, x.id, x.mark)

/// A region of an open set. Its bytes are those of the set while the word number `slot` behind
/// `opened_set::generations` is `generation`.
struct open_region {
  bulk_handle memory;
  std::uint64_t slot = 0;
  std::uint64_t generation = 0;

  friend bool operator==(const open_region&, const open_region&) = default;
};
MILLRACE_INSPECT(open_region, x.memory, x.slot, x.generation)

struct opened_set {
  set_info set;
  /// Keeps the regions until `close_set_request` or the end of the connection.
  std::uint64_t lease = 0;
  std::vector<open_region> regions;
  bulk_handle generations;

  friend bool operator==(const opened_set&, const opened_set&) = default;
};
MILLRACE_INSPECT(opened_set, x.set, x.lease, x.regions, x.generations)

/// Gives back a lease, or gives up a reservation.
struct close_set_request {
  std::uint64_t number = 0;
  set_id mark = {}; // with the number 0: the lease that was opened with this mark
  asker from = {};
};
MILLRACE_INSPECT(close_set_request, x.number, x.mark)

/// Hides a set at once. Readers that have it open go on; its regions are free after them. A set
/// that is being filled is given up if `id` names it.
struct unload_set_request {
  std::string name;
  set_id id; // only this one, or the part of this whole or extension; nil: any set
  asker from = {};
};
MILLRACE_INSPECT(unload_set_request, x.name, x.id)

struct list_sets_request {
  std::string prefix;
  std::string after; // the names after this one
  std::uint32_t count_max = 0;
  bool parts = false; // also parts of divided sets after the first one, which stands for the set
};
MILLRACE_INSPECT(list_sets_request, x.prefix, x.after, x.count_max, x.parts)

struct set_list {
  std::vector<set_info> sets; // by name

  friend bool operator==(const set_list&, const set_list&) = default;
};
MILLRACE_INSPECT(set_list, x.sets)

/// Asks for the right to write to a window that the asker has open.
struct write_window_request {
  std::uint64_t lease = 0;
  asker from = {};
};
MILLRACE_INSPECT(write_window_request, x.lease)

struct writable_window {
  std::vector<bulk_handle> regions; // writable until the lease ends, in their order

  friend bool operator==(const writable_window&, const writable_window&) = default;
};
MILLRACE_INSPECT(writable_window, x.regions)

struct wanted_value {
  std::uint64_t sample = 0;
  std::uint64_t bytes = 0;
  std::uint64_t needed_in = 0; // samples that are read before this one is needed again

  friend bool operator==(const wanted_value&, const wanted_value&) = default;
};
MILLRACE_INSPECT(wanted_value, x.sample, x.bytes, x.needed_in)

/// Asks for one field of samples. What is kept is given until it is returned. For what is not, the
/// asker gets a place if it may write and the window is to keep it.
struct take_values_request {
  std::uint64_t lease = 0;
  std::uint32_t field = 0;
  std::uint64_t passed = 0; // samples by which the asker has gone on, see `window_buffer::pass`
  bool writes = false;
  std::vector<wanted_value> values = {};
  asker from = {};
};
MILLRACE_INSPECT(take_values_request, x.lease, x.field, x.passed, x.writes, x.values)

struct kept_value {
  std::uint32_t index = 0;   // in the request
  std::uint64_t address = 0; // in the window
  std::uint64_t digest = 0;  // of its bytes

  friend bool operator==(const kept_value&, const kept_value&) = default;
};
MILLRACE_INSPECT(kept_value, x.index, x.address, x.digest)

struct value_to_write {
  std::uint32_t index = 0; // in the request
  std::uint64_t address = 0;

  friend bool operator==(const value_to_write&, const value_to_write&) = default;
};
MILLRACE_INSPECT(value_to_write, x.index, x.address)

struct taken_values {
  std::vector<kept_value> kept;
  std::vector<value_to_write> to_write;

  friend bool operator==(const taken_values&, const taken_values&) = default;
};
MILLRACE_INSPECT(taken_values, x.kept, x.to_write)

struct written_value {
  std::uint64_t sample = 0;
  std::uint64_t digest = 0;

  friend bool operator==(const written_value&, const written_value&) = default;
};
MILLRACE_INSPECT(written_value, x.sample, x.digest)

/// Returns values that were given, and places that were lent.
struct return_values_request {
  std::uint64_t lease = 0;
  std::uint32_t field = 0;
  std::vector<std::uint64_t> read = {};    // samples
  std::vector<std::uint64_t> damaged = {}; // given, and not as their digests say
  std::vector<written_value> written = {};
  std::vector<std::uint64_t> unused = {}; // not written
  asker from = {};
};
MILLRACE_INSPECT(return_values_request, x.lease, x.field, x.read, x.damaged, x.written, x.unused)

struct count_window_request {
  std::string name;
};
MILLRACE_INSPECT(count_window_request, x.name)

/// The service of a node's data server.
struct data_service
  : service<
      "data", 96,
      // Errors: already_exists, busy, no_space, invalid_argument; for an extension not_found, and
      // permission_denied naming the owner.
      method<reserve_set_request, set_reservation>,
      // Errors: not_found for a number that the asker does not have.
      method<publish_set_request, set_info>,
      // Errors: not_found; busy when the asker has too many leases.
      method<open_set_request, opened_set>, method<close_set_request, done_reply>,
      // Errors: not_found; permission_denied naming the owner.
      method<unload_set_request, done_reply>, method<list_sets_request, set_list>,
      // Errors: not_found; invalid_argument for a set that is no window; permission_denied naming
      // the owner.
      method<write_window_request, writable_window>,
      // Errors: not_found; invalid_argument for a field or a sample that the set does not have.
      method<take_values_request, taken_values>,
      // Errors: not_found for a value that the asker does not have.
      method<return_values_request, done_reply>,
      // Errors: not_found; invalid_argument for a set that is no window.
      method<count_window_request, window_counts>,
      // Errors: not_found if nobody fills the set; busy before the one who does has claimed blocks;
      // already_exists for other samples; permission_denied naming the owner.
      method<join_set_request, set_reservation>,
      // Errors: not_found, also for blocks that the asker has not claimed; invalid_argument when
      // others have cut the set differently.
      method<claim_blocks_request, claimed_blocks>> {};

} // namespace millrace::actors
