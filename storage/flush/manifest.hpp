// The files beside flushed shards: one description per shard, one manifest per step. Used by
// `storage/flush`.
#pragma once

#include <millrace/storage/archive/archive.hpp>

namespace millrace::storage::flush {

/// One shard of a flushed step.
struct flushed_shard {
  std::uint32_t rank = 0;
  std::string file;             // in the step's directory
  std::uint64_t size_bytes = 0; // the file's size
  std::uint64_t saved_at_ns = 0;

  friend bool operator==(const flushed_shard&, const flushed_shard&) = default;
};

/// The description of a shard. It is written after the shard's file, so it tells that the file is
/// durable.
struct shard_description {
  std::string model;
  std::uint64_t step = 0;
  std::uint32_t world_size = 1;
  flushed_shard shard;
  archive::text_pairs axes;
  archive::text_pairs metadata;
  /// The xxHash3-64 of every tensor's bytes, in the order of the layout.
  std::vector<std::pair<std::string, std::uint64_t>> digests;

  friend bool operator==(const shard_description&, const shard_description&) = default;
};

/// The manifest of a whole step. Its presence tells that all shards are durable. Details of tensors
/// are in the descriptions, so a manifest grows with the number of ranks only.
struct flush_manifest {
  std::string model;
  std::uint64_t step = 0;
  std::uint32_t world_size = 1;
  /// The time of the last save of a shard. Steps are ordered by it, whatever their numbers.
  std::uint64_t saved_at_ns = 0;
  std::vector<flushed_shard> shards; // by rank

  friend bool operator==(const flush_manifest&, const flush_manifest&) = default;
};

/// Returns JSON that names its format version.
std::string to_json(const shard_description& description);
std::string to_json(const flush_manifest& manifest);
/// Errors: `corrupt_data`; `unsupported_version` for one of a later version.
result<shard_description> parse_shard_description(std::string_view text);
result<flush_manifest> parse_flush_manifest(std::string_view text);

} // namespace millrace::storage::flush
