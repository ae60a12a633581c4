// The stored format of a pool: the root, the table of models, the index of a shard or of a
// repository's version, their slots. Used by everything in storage/pmem.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/inspect.hpp>
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

/// A word that only libpmemobj's publish changes, with a check of its own, which detects a flipped
/// bit and a word copied to another place. Both halves change in one publish.
struct checked_word {
  std::uint64_t value = 0;
  std::uint64_t check = 0;
};

/// Which word it is, so that the check of one word does not match another one.
enum class word_kind : std::uint64_t { table = 1, flags = 2, object = 3, state = 4, version = 5 };

/// Returns the check of a word. `owner`: the random id of the pool or the shard.
std::uint64_t word_check(
  std::uint64_t owner, word_kind kind, std::uint64_t slot, std::uint64_t value) noexcept;

/// Slots may have room for the user's bytes. Set by the first save that has some. A build that does
/// not know it refuses the pool as `unsupported_version`.
inline constexpr std::uint64_t feature_extra = 1;
inline constexpr std::uint64_t features_known = feature_extra;

/// The root object. Only `features`, together with the checksum, and its last two words are ever
/// changed.
struct pool_root {
  static constexpr std::uint64_t magic_value = 0x4c4f4f505252494d; // "MIRRPOOL"

  std::uint64_t magic = magic_value;
  std::uint32_t format_version = pool_format_version;
  std::uint32_t header_bytes = 0;
  std::uint64_t features = 0; // bits that a reader must know
  std::array<std::uint8_t, 16> uuid{};
  std::uint64_t created_ns = 0;
  std::uint64_t size_bytes = 0; // the size of the file or device when it was made
  std::uint64_t id = 0;         // owner of `table`'s check
  std::uint64_t checksum = 0;   // over all the above
  checked_word table;           // offset of the table object, 0 while there is none
  checked_word last_version;    // the largest version number that the repository has used
};

/// The table of models: this header, then an encoded `table_body`. Every change replaces all of it.
struct table_header {
  static constexpr std::uint64_t magic_value = 0x454c4241544c444d; // "MDLTABLE"

  std::uint64_t magic = magic_value;
  std::uint64_t total_bytes = 0;
  std::uint64_t checksum = 0; // over the whole, with this field as 0
};

enum class entry_kind : std::uint8_t {
  shard = 0,  // a shard of a model's checkpoints
  stored = 1, // a version of a model of the repository
};

/// The key of an entry. Checkpoints and models of the repository have separate names.
struct table_key {
  entry_kind kind = entry_kind::shard;
  std::string model;
  std::uint64_t number = 0; // the shard's rank; the version

  friend auto operator<=>(const table_key&, const table_key&) = default;
};

/// Returns "model NAME, rank 3" or "model NAME, version 7 of the repository".
std::string describe(const table_key& key);

struct table_entry {
  table_key key;
  std::uint64_t index = 0; // offset of the index object
};

struct table_body {
  std::vector<table_entry> entries; // sorted by key
};

/// The state of a slot in one word that includes its check. libpmemobj changes a single word in
/// place, without its log, which on a disk is one wait instead of seven. From the top: 2 bits of
/// state, 38 of payload, 24 of check.
struct slot_word {
  slot_state state = slot_state::empty;
  /// Done: the sequence number of the version. Active: the step (`payload_max` for larger ones).
  /// Empty: 0.
  std::uint64_t payload = 0;

  static constexpr std::uint64_t payload_max = (std::uint64_t{1} << 38) - 1;
};

std::uint64_t pack(const slot_word& word, std::uint64_t owner, std::uint64_t slot) noexcept;
/// Returns the word; null when its check does not match.
std::optional<slot_word> unpack(
  std::uint64_t packed, std::uint64_t owner, std::uint64_t slot) noexcept;

/// The words of one slot, which publish changes.
struct slot_words {
  checked_word object;     // offset of the slot object; 0 when nothing is reserved
  std::uint64_t state = 0; // a packed `slot_word`
};

inline constexpr std::uint64_t flag_finished = 1;
inline constexpr std::uint64_t flag_erased = 2; // to be freed after its last reader
inline constexpr std::uint64_t flag_pinned = 4; // never evicted
inline constexpr std::uint64_t flags_known = flag_finished | flag_erased | flag_pinned;

/// The body of the index of a repository's version. Its number and wall clock are in the version's
/// record, and `pinned` is a flag.
struct stored_body {
  model_spec spec;
  /// All layers that its graph names, so that it does not depend on other models.
  std::vector<described_layer> layers;
};

/// The index of a shard, or of a version of the repository, which has one slot: this header, then
/// the encoded `shard_spec` or `stored_body`.
struct index_header {
  static constexpr std::uint64_t magic_value = 0x584449444c48534d; // "MSHLDIDX"

  std::uint64_t magic = magic_value;
  std::uint64_t total_bytes = 0;
  std::uint64_t body_bytes = 0;
  std::uint64_t id = 0;           // random: owner of the words' checks and of the slot objects
  std::uint64_t window_bytes = 0; // the packing's window
  std::uint64_t stream_bytes = 0; // what all extents of a slot hold
  std::uint64_t run = 0;          // that the registration joined; 0 for the repository
  std::uint64_t checksum = 0;     // over all the above and the body
  checked_word flags;
  std::array<slot_words, keep_max> slots;
};

/// A run of the pool's file that holds whole windows of a slot's stream.
struct data_extent {
  std::uint64_t object = 0; // the object that contains it, which starts earlier
  std::uint64_t offset = 0; // a multiple of 4096
  std::uint64_t length = 0; // likewise
};

/// The slot object: this header, the extents, then space for the version's record. A version with
/// more bytes of the user than fit has the object replaced by a larger one.
struct slot_header {
  static constexpr std::uint64_t magic_value = 0x53544f4c5352494d; // "MIRSLOTS"

  std::uint64_t magic = magic_value;
  std::uint64_t total_bytes = 0;
  std::uint64_t owner = 0; // id of the index
  std::uint64_t slot = 0;
  std::uint64_t extents = 0;
  std::uint64_t checksum = 0; // over all the above and the extents
};

/// The record of a version: this header, then its digests, those of the user's bytes last, then on
/// a border of `extra_alignment` the user's bytes. Valid while the slot's state is done and has its
/// sequence. Its space is reserved before the slot is marked active, so that a full pool can finish
/// every save that it began.
struct version_header {
  static constexpr std::uint64_t magic_value = 0x4e4f49535245564d; // "MVERSION"

  std::uint64_t magic = magic_value;
  std::uint64_t owner = 0;
  std::uint64_t slot = 0;
  std::uint64_t run = 0;  // in which it was saved; 0 for the repository
  std::uint64_t step = 0; // or the number of the repository's version
  std::uint64_t saved_at_ns = 0;
  std::uint64_t sequence = 0;   // counts the saves of a model; the same number
  std::uint64_t size_bytes = 0; // of the tensors and of the user's bytes
  std::uint64_t digests = 0;    // 0 for a model stored without digests
  std::uint64_t checksum = 0;   // over all the above and the digests
};

/// Returns the checksum of a header (its first `header_bytes`, with its `checksum` as 0) and the
/// body.
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

/// The user's bytes share no cache line with a record's other parts, nor with other objects.
inline constexpr std::uint64_t extra_alignment = 64;

/// Returns what a slot object has more for this many bytes of the user, with their digests.
constexpr std::uint64_t extra_room_of(std::uint64_t extra_bytes) noexcept {
  if (extra_bytes == 0)
    return 0;
  auto lines = (extra_bytes + extra_alignment - 1) / extra_alignment;
  return digest_count(extra_bytes) * sizeof(std::uint64_t) + (lines + 1) * extra_alignment;
}

static_assert(sizeof(pool_root) == 104 && sizeof(checked_word) == 16);
static_assert(sizeof(index_header) == 80 + keep_max * 24 && sizeof(slot_header) == 48);
static_assert(sizeof(version_header) == 80 && sizeof(data_extent) == 24);
static_assert(std::is_trivially_copyable_v<index_header>);

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, table_key& x) {
  return f(x.kind, x.model, x.number);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, table_entry& x) {
  return f(x.key, x.index);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, stored_body& x) {
  return f(x.spec, x.layers);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, table_body& x) {
  return f(x.entries);
}

} // namespace millrace::storage::pmem
