// Checks of what a training job registers.
#include <millrace/core/checkpoint.hpp>
#include <millrace/core/model.hpp>

namespace millrace {

status validate(const shard_spec& shard) {
  if (auto bad = validate_model_name(shard.model); !bad.ok())
    return bad;
  auto wrong = [&](const std::string& what) {
    return status{errc::invalid_argument, "checkpoints of " + shard.model + ": " + what};
  };
  if (shard.world_size == 0 || shard.world_size > world_size_max)
    return wrong(
      "a world size of " + std::to_string(shard.world_size) + ", which must be 1 to " +
      std::to_string(world_size_max));
  if (shard.rank >= shard.world_size)
    return wrong(
      "rank " + std::to_string(shard.rank) + " of a world of " + std::to_string(shard.world_size));
  if (shard.keep < 2 || shard.keep > keep_max)
    return wrong(
      "keep " + std::to_string(shard.keep) + ", which must be 2 to " + std::to_string(keep_max) +
      " (one slot fills while another one stays)");
  for (auto* words : {&shard.axes, &shard.metadata})
    for (auto& [key, value] : *words)
      if (!is_utf8(key) || !is_utf8(value))
        return wrong("axes and metadata must be UTF-8");
  return validate(shard.tensors);
}

} // namespace millrace
