// Finds the parts of whole tensors among the shards of a checkpoint. Used by `global_load`.
#pragma once

#include <millrace/core/box.hpp>
#include <millrace/core/checkpoint.hpp>
#include <millrace/runtime/client/load_target.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace millrace::runtime {

/// What to load from each shard, by its rank.
using shard_targets = std::map<std::uint32_t, std::vector<load_target>>;

/// The places of the tensors that a load wants. Threads: one at a time.
class global_plan {
public:
  explicit global_plan(const std::vector<load_target>& targets);

  /// Takes note of the tensors of a shard, which must be valid. Shards may come in any order.
  void add(const shard_spec& shard);

  /// Divides the targets among the shards. Each byte is loaded once, from the lowest rank that has
  /// it. `step` is for errors.
  /// Errors:  those of `checkpoints::load_global` that concern targets and shards.
  result<shard_targets> divide(const std::vector<load_target>& targets, std::uint64_t step) const;

private:
  struct piece {
    std::uint32_t rank;
    tensor_desc whole; // without a name
    tensor_box box;    // of the whole tensor
  };

  result<std::vector<const piece*>> pieces_of(const std::string& name, std::uint64_t step) const;
  [[nodiscard]] status add_parts(
    const load_target& target, std::uint64_t step, shard_targets& out) const;

  std::map<std::string, std::vector<piece>, std::less<>> pieces_;
};

} // namespace millrace::runtime
