// Descriptions of checkpoints: shards, their versions, complete steps. Pools keep them, messages
// carry them.
#pragma once

#include <millrace/core/inspect.hpp>
#include <millrace/core/tensor.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

inline constexpr std::uint32_t world_size_max = 65536;
inline constexpr std::uint32_t keep_max = 64;
/// No configuration permits more bytes of the user with a version of a shard.
inline constexpr std::uint64_t extra_bytes_max = 256u << 20;

/// Describes the user's bytes of a version as a tensor.
inline tensor_desc extra_tensor(std::uint64_t size_bytes) {
  return {"the user's bytes", dtype::u8, {size_bytes}};
}

/// Where a shard's tensor lies in the whole tensor of the model, of which other shards may have
/// other parts.
struct tensor_place {
  std::string name;                        // of the tensor, here and in every shard
  std::vector<std::uint64_t> global_shape; // of the whole tensor, with as many dimensions
  std::vector<std::uint64_t> offset;       // the whole tensor's index of the shard's first element

  friend bool operator==(const tensor_place&, const tensor_place&) = default;
};

/// One rank's part of a model, registered once per training job. A step can be restored when every
/// shard from 0 to `world_size - 1` has it.
struct shard_spec {
  std::string model;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  layout tensors; // the tensors of this shard
  /// The rank's position along the parallel axes, as the user names them: {"tensor", "1/4"}. May be
  /// empty.
  std::vector<std::pair<std::string, std::string>> axes;
  std::vector<std::pair<std::string, std::string>> metadata; // free text of the user
  std::uint32_t keep = 2; // slots reserved at registration, 2 to `keep_max`
  /// Identifies one run of the job, or of this rank: the same value at every registration until the
  /// process ends. 0: unknown, so the next registration counts as another run.
  std::uint64_t life = 0;
  /// The places of tensors that are parts of larger ones. A tensor without a place is whole. Shards
  /// that older builds registered have none.
  std::vector<tensor_place> places = {};

  friend bool operator==(const shard_spec&, const shard_spec&) = default;
};

/// The `life` of shards that separate commands import from files, one rank after the other.
inline constexpr std::uint64_t life_of_imports = 1;

/// Checks names, layout, rank < world_size <= `world_size_max`, 2 <= keep <= `keep_max`, and that
/// each place is that of one tensor, which lies inside its global shape.
[[nodiscard]] status validate(const shard_spec& shard);

/// State of one slot of a shard.
enum class slot_state : std::uint8_t {
  empty = 0,  // reserved, holds no version
  active = 1, // bytes are arriving, or were arriving when the writer died
  done = 2,   // whole, durable, with checksums
};

/// One version of a shard in its slot.
struct version_summary {
  slot_state state = slot_state::empty;
  std::uint64_t step = 0;
  std::uint64_t saved_at_ns = 0; // wall clock; 0 unless done
  bool being_read = false;

  friend bool operator==(const version_summary&, const version_summary&) = default;
};

/// A shard in a pool, as a listing shows it.
struct shard_summary {
  std::uint32_t rank = 0;
  std::uint64_t tensors = 0;
  std::uint64_t size_bytes = 0;     // the size of one version
  std::uint64_t reserved_bytes = 0; // the size of all its slots
  bool registered = false;          // a job is attached
  bool finished = false;            // its job ended in order, so a repack keeps one version
  std::vector<std::pair<std::string, std::string>> axes;
  std::vector<version_summary> slots;

  friend bool operator==(const shard_summary&, const shard_summary&) = default;
};

/// A model with checkpoints, as a listing shows it.
struct checkpoint_summary {
  std::string model;
  std::uint32_t world_size = 1;
  std::vector<shard_summary> shards;         // those registered so far, by rank
  std::vector<std::uint64_t> complete_steps; // steps that every shard has; ascending

  friend bool operator==(const checkpoint_summary&, const checkpoint_summary&) = default;
};

/// Returns when the last shard of a step was saved, by the wall clock; 0 if no shard has it.
std::uint64_t saved_at_ns(const checkpoint_summary& model, std::uint64_t step);

/// Returns the complete step saved last; nothing if there is none.
std::optional<std::uint64_t> newest_step(const checkpoint_summary& model);

constexpr void is_message(const shard_spec&) {}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, tensor_place& x) {
  return f(x.name, x.global_shape, x.offset);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, shard_spec& x) {
  return f(x.model, x.rank, x.world_size, x.tensors, x.axes, x.metadata, x.keep, x.life, x.places);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, version_summary& x) {
  return f(x.state, x.step, x.saved_at_ns, x.being_read);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, shard_summary& x) {
  return f(
    x.rank, x.tensors, x.size_bytes, x.reserved_bytes, x.registered, x.finished, x.axes, x.slots);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, checkpoint_summary& x) {
  return f(x.model, x.world_size, x.shards, x.complete_steps);
}

} // namespace millrace
