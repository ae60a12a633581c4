// Prints checkpoints as tables and as JSON.
// Used by `millrace checkpoints`.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/storage/checkpoint_store.hpp>
#include <millrace/tools/output.hpp>

#include <iosfwd>

namespace millrace::tools {

json to_json(const checkpoint_summary& model);
json to_json(const shard_spec& shard);
json to_json(const repack_report& report);

/// One line per model.
void print(std::ostream& out, const std::vector<listed<checkpoint_summary>::entry>& models);
/// A model's shards with their slots.
void print(std::ostream& out, const checkpoint_summary& model);
/// A shard's metadata and tensors.
void print(std::ostream& out, const shard_spec& shard);

} // namespace millrace::tools
