// What lies in a pool: the root, the table of models, the index of a shard or of a repository's version, their slots.
// Part of the stored format.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/model.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace millrace::storage::pmem {

/// The layout name that libpmemobj keeps in the pool's own header.
inline constexpr char pool_layout[] = "millrace-pool";
inline constexpr std::uint32_t pool_format_version = 3;

/// Type numbers of objects in the pool.
enum class object_type : std::uint64_t {
  table = 1,
  index = 2,
  slot = 3,
  data = 4,
  stored_index = 5
};

/// A word that is changed by libpmemobj's publish alone, with a check of its own: a flipped bit anywhere shows, and
/// so does a word copied to another place. Both halves change in one publish.
struct checked_word {
  std::uint64_t value = 0;
  std::uint64_t check = 0;
};

/// Which word it is, so that no word passes for another one.
enum class word_kind : std::uint64_t { table = 1, flags = 2, object = 3, state = 4, version = 5 };

/// `owner`: the pool's or the shard's random id.
std::uint64_t word_check(
  std::uint64_t owner, word_kind kind, std::uint64_t slot, std::uint64_t value) noexcept;

/// The root object. Never rewritten but for its last two words.
struct pool_root {
  static constexpr std::uint64_t magic_value = 0x4c4f4f505252494d; // "MIRRPOOL"

  std::uint64_t magic = magic_value;
  std::uint32_t format_version = pool_format_version;
  std::uint32_t header_bytes = 0;
  std::uint64_t features = 0; // bits a reader must know
  std::array<std::uint8_t, 16> uuid{};
  std::uint64_t created_ns = 0;
  std::uint64_t size_bytes = 0; // of the file or device when it was made
  std::uint64_t id = 0;         // owner of `table`'s check
  std::uint64_t checksum = 0;   // of all the above
  checked_word table;           // offset of the table object, 0 while there is none
  checked_word last_version;    // the newest version of a repository's model ever given out
};

/// The table of models: this, then an encoded `table_body`. Replaced whole at every change.
struct table_header {
  static constexpr std::uint64_t magic_value = 0x454c4241544c444d; // "MDLTABLE"

  std::uint64_t magic = magic_value;
  std::uint64_t total_bytes = 0;
  std::uint64_t checksum = 0; // of the whole, this field as 0
};

enum class entry_kind : std::uint8_t {
  shard = 0,  // of a model's checkpoints
  stored = 1, // a version of a model of the repository
};

/// What an entry is called: so a checkpointed model and one of the repository never meet under one name.
struct table_key {
  entry_kind kind = entry_kind::shard;
  std::string model;
  std::uint64_t number = 0; // the shard's rank; the version

  friend auto operator<=>(const table_key&, const table_key&) = default;
};

/// "model NAME, rank 3", "model NAME, version 7 of the repository".
std::string describe(const table_key& key);

struct table_entry {
  table_key key;
  std::uint64_t index = 0; // offset of the index object
};

struct table_body {
  std::vector<table_entry> entries; // sorted by key
};

/// The state of a slot in one word, its check included: libpmemobj changes a single word in place, without its log,
/// which on a disk is one wait instead of seven. From the top: 2 bits of state, 38 of payload, 24 of check.
struct slot_word {
  slot_state state = slot_state::empty;
  /// Done: the sequence number of the version. Active: the step (`payload_max` for larger ones). Empty: 0.
  std::uint64_t payload = 0;

  static constexpr std::uint64_t payload_max = (std::uint64_t{1} << 38) - 1;
};

std::uint64_t pack(const slot_word& word, std::uint64_t owner, std::uint64_t slot) noexcept;
/// Null when the check does not match.
std::optional<slot_word> unpack(
  std::uint64_t packed, std::uint64_t owner, std::uint64_t slot) noexcept;

/// What is changed of one slot, each word by publish.
struct slot_words {
  checked_word object;     // offset of the slot object; 0 when nothing is reserved
  std::uint64_t state = 0; // a packed `slot_word`
};

inline constexpr std::uint64_t flag_finished = 1;
inline constexpr std::uint64_t flag_erased = 2; // freed as soon as nobody reads it
inline constexpr std::uint64_t flag_pinned = 4; // never evicted
inline constexpr std::uint64_t flags_known = flag_finished | flag_erased | flag_pinned;

/// What a version of the repository is, beside its slot. Its number and its wall clock are in the version's record, its
/// `pinned` is in the flags.
struct stored_body {
  model_spec spec;
  std::vector<described_layer>
    layers; // all that its graph names: erasing another model takes none of them away
};

/// The index of a shard, or of a version of the repository, which has one slot: this, then the encoded `shard_spec` or
/// `stored_body`.
struct index_header {
  static constexpr std::uint64_t magic_value = 0x584449444c48534d; // "MSHLDIDX"

  std::uint64_t magic = magic_value;
  std::uint64_t total_bytes = 0;
  std::uint64_t body_bytes = 0;
  std::uint64_t id = 0;           // random: owner of the words' checks and of the slot objects
  std::uint64_t window_bytes = 0; // of the packing
  std::uint64_t stream_bytes = 0; // of the packing: what all extents of a slot hold
  std::uint64_t run = 0; // of its model's jobs, joined with the registration; 0 for the repository
  std::uint64_t checksum = 0; // of all the above and the body
  checked_word flags;
  std::array<slot_words, keep_max> slots;
};

/// A run of the pool's file that holds whole windows of a slot's stream.
struct data_extent {
  std::uint64_t object = 0; // the object it lies in, which starts earlier
  std::uint64_t offset = 0; // a multiple of 4096
  std::uint64_t length = 0; // likewise
};

/// What a slot is made of: this, its extents, then room for the version's record.
struct slot_header {
  static constexpr std::uint64_t magic_value = 0x53544f4c5352494d; // "MIRSLOTS"

  std::uint64_t magic = magic_value;
  std::uint64_t total_bytes = 0;
  std::uint64_t owner = 0; // id of the index
  std::uint64_t slot = 0;
  std::uint64_t extents = 0;
  std::uint64_t checksum = 0; // of all the above and the extents
};

/// The record of a version: this, then its digests. Valid while the slot's state says done and names its sequence.
///
/// The room for it is reserved with the slot: so a full pool can still finish every save it has begun.
struct version_header {
  static constexpr std::uint64_t magic_value = 0x4e4f49535245564d; // "MVERSION"

  std::uint64_t magic = magic_value;
  std::uint64_t owner = 0;
  std::uint64_t slot = 0;
  std::uint64_t run = 0;  // in which it was saved; 0 for the repository
  std::uint64_t step = 0; // or the number of the repository's version
  std::uint64_t saved_at_ns = 0;
  std::uint64_t sequence = 0; // counts the saves of a model; the same number
  std::uint64_t size_bytes = 0;
  std::uint64_t digests = 0;  // none when the repository was given none
  std::uint64_t checksum = 0; // of all the above and the digests
};

/// Checksum of a header (the first `header_bytes` of it, its `checksum` as 0) and what follows.
std::uint64_t header_checksum(
  const void* header, std::size_t header_bytes, std::size_t checksum_at,
  std::span<const std::byte> body) noexcept;

std::uint64_t checksum_of(const pool_root& root) noexcept;
std::uint64_t checksum_of(const table_header& header, std::span<const std::byte> body) noexcept;
std::uint64_t checksum_of(const index_header& header, std::span<const std::byte> body) noexcept;
std::uint64_t checksum_of(const slot_header& header, std::span<const std::byte> extents) noexcept;
std::uint64_t checksum_of(
  const version_header& header, std::span<const std::byte> digests) noexcept;

inline std::uint64_t slot_object_bytes(std::uint64_t extents, std::uint64_t digests) noexcept {
  return sizeof(slot_header) + extents * sizeof(data_extent) + sizeof(version_header) +
    digests * sizeof(std::uint64_t);
}

static_assert(sizeof(pool_root) == 104 && sizeof(checked_word) == 16);
static_assert(sizeof(index_header) == 80 + keep_max * 24 && sizeof(slot_header) == 48);
static_assert(sizeof(version_header) == 80 && sizeof(data_extent) == 24);
static_assert(std::is_trivially_copyable_v<index_header>);

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, table_key& x) {
  return f(x.kind, x.model, x.number);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, table_entry& x) {
  return f(x.key, x.index);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, stored_body& x) {
  return f(x.spec, x.layers);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, table_body& x) {
  return f(x.entries);
}

} // namespace millrace::storage::pmem
