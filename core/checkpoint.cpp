// Checks of what a training job registers. Called by the checkpoint manager and by pools.
#include <millrace/core/box.hpp>
#include <millrace/core/checkpoint.hpp>
#include <millrace/core/model.hpp>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>

namespace millrace {

namespace {

status check_place(const tensor_place& place, const tensor_desc& tensor) {
  tensor_desc whole{tensor.name, tensor.type, place.global_shape};
  if (auto bad = validate(whole); !bad.ok())
    return bad.within("its global shape");
  return check_inside({place.offset, tensor.shape}, whole).within("its place in the global shape");
}

// Places are named after tensors of the shard, each at most once.
status check_places(const shard_spec& shard) {
  if (shard.places.empty())
    return {};
  std::unordered_map<std::string_view, const tensor_desc*> tensors;
  for (auto& tensor : shard.tensors.tensors)
    tensors.emplace(tensor.name, &tensor);
  std::set<std::string_view> seen;
  for (auto& place : shard.places) {
    auto found = tensors.find(place.name);
    if (found == tensors.end())
      return {
        errc::invalid_argument, "there is a place for tensor {}, which the shard does not have",
        place.name};
    if (!seen.insert(place.name).second)
      return {errc::invalid_argument, "tensor {} has two places", place.name};
    if (auto bad = check_place(place, *found->second); !bad.ok())
      return bad.within("tensor " + place.name);
  }
  return {};
}

} // namespace

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
  if (auto bad = validate(shard.tensors); !bad.ok())
    return bad;
  if (auto bad = check_places(shard); !bad.ok())
    return wrong(bad.detail());
  return {};
}

std::uint64_t saved_at_ns(const checkpoint_summary& model, std::uint64_t step) {
  std::uint64_t at = 0;
  for (auto& shard : model.shards)
    for (auto& slot : shard.slots)
      if (slot.state == slot_state::done && slot.step == step)
        at = std::max(at, slot.saved_at_ns);
  return at;
}

std::optional<std::uint64_t> newest_step(const checkpoint_summary& model) {
  std::optional<std::uint64_t> newest;
  std::uint64_t newest_at = 0;
  for (auto step : model.complete_steps) {
    auto at = saved_at_ns(model, step);
    if (!newest || at >= newest_at)
      newest = step, newest_at = at;
  }
  return newest;
}

} // namespace millrace
