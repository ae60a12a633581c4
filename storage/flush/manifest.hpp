// What is written beside flushed shards: one description per shard, one manifest per step. Used by `storage/flush`.
#pragma once

#include <millrace/storage/archive/archive.hpp>

namespace millrace::storage::flush {

/// One shard of a flushed step.
struct flushed_shard {
  std::uint32_t rank = 0;
  std::string file;             // in the step's directory
  std::uint64_t size_bytes = 0; // of the file
  std::uint64_t saved_at_ns = 0;

  friend bool operator==(const flushed_shard&, const flushed_shard&) = default;
};

/// Written after the shard's file: it says that the file is there and durable.
struct shard_description {
  std::string model;
  std::uint64_t step = 0;
  std::uint32_t world_size = 1;
  flushed_shard shard;
  archive::text_pairs axes;
  archive::text_pairs metadata;
  /// xxHash3-64 of every tensor's bytes, in the order of the layout.
  std::vector<std::pair<std::string, std::uint64_t>> digests;

  friend bool operator==(const shard_description&, const shard_description&) = default;
};

/// A whole step. Its presence says that all shards are there and durable. What is known of every tensor stays in the
/// descriptions: a manifest grows with the ranks alone.
struct flush_manifest {
  std::string model;
  std::uint64_t step = 0;
  std::uint32_t world_size = 1;
  std::uint64_t saved_at_ns =
    0; // the last shard's: steps are in this order, whatever their numbers
  std::vector<flushed_shard> shards; // by rank

  friend bool operator==(const flush_manifest&, const flush_manifest&) = default;
};

/// JSON, versioned.
std::string to_json(const shard_description& description);
std::string to_json(const flush_manifest& manifest);
/// Errors: `corrupt_data`; `unsupported_version` for one of a later version.
result<shard_description> parse_shard_description(std::string_view text);
result<flush_manifest> parse_flush_manifest(std::string_view text);

} // namespace millrace::storage::flush
