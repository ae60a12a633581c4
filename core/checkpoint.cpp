// Checks of what a training job registers. Called by the checkpoint manager and by pools.
#include <millrace/core/checkpoint.hpp>
#include <millrace/core/model.hpp>

namespace millrace {

status validate(const shard_spec& shard) {
  if (auto bad = validate_model_name(shard.model); !bad.ok())
    return bad;
  auto wrong = [&](const std::string& what) {
    return status{errc::invalid_argument, "checkpoints of {}: {}", shard.model, what};
  };
  if (shard.world_size == 0 || shard.world_size > world_size_max)
    return wrong(
      fmt::format("world size {} is not between 1 and {}", shard.world_size, world_size_max));
  if (shard.rank >= shard.world_size)
    return wrong(fmt::format("there is no rank {} of {} ranks", shard.rank, shard.world_size));
  if (shard.keep < 2 || shard.keep > keep_max)
    return wrong(fmt::format(
      "keep {} is not between 2 and {} (one slot is filled while another one stays)", shard.keep,
      keep_max));
  for (auto* words : {&shard.axes, &shard.metadata})
    for (auto& [key, value] : *words)
      if (!is_utf8(key) || !is_utf8(value))
        return wrong("axes and metadata must be UTF-8");
  return validate(shard.tensors);
}

} // namespace millrace
