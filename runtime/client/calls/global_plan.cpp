// Intersects boxes of targets with those of shards.
#include <millrace/runtime/client/calls/global_plan.hpp>
#include <millrace/runtime/client/calls/selected.hpp>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

namespace millrace::runtime {

namespace {

tensor_box all_of(const std::vector<std::uint64_t>& shape) {
  return {std::vector<std::uint64_t>(shape.size()), shape};
}

// Returns where `inner`, which lies inside `outer`, begins in it.
std::vector<std::uint64_t> offsets_in(const tensor_box& outer, const tensor_box& inner) {
  std::vector<std::uint64_t> out;
  for (std::size_t i = 0; i < outer.offsets.size(); ++i)
    out.push_back(inner.offsets[i] - outer.offsets[i]);
  return out;
}

std::vector<std::int64_t> dense_strides(const tensor_desc& desc) {
  std::vector<std::int64_t> strides(desc.shape.size());
  auto stride = static_cast<std::int64_t>(bits_per_element(desc.type) / 8);
  for (auto i = strides.size(); i-- > 0; stride *= static_cast<std::int64_t>(desc.shape[i]))
    strides[i] = stride;
  return strides;
}

// Returns the memory of a part of a target, which is for `box`.
result<tensor_view> part_of(
  const tensor_view& target, const tensor_box& box, const tensor_box& part) {
  if (part == box)
    return target;
  auto offsets = offsets_in(box, part);
  tensor_view out{{target.desc.name, target.desc.type, part.extents}, target.data, {}};
  if (bits_per_element(target.desc.type) % 8 != 0) {
    auto runs = runs_of(target.desc, {offsets, part.extents});
    if (!runs || runs->count() != 1)
      return fail(
        errc::unsupported,
        "tensor {}: its elements are smaller than a byte, and the part {} of a shard is not one "
        "run of whole bytes",
        target.desc.name, describe(part));
    out.data += runs->first_byte();
    return out;
  }
  out.strides_bytes =
    target.strides_bytes.empty() ? dense_strides(target.desc) : target.strides_bytes;
  for (std::size_t i = 0; i < offsets.size(); ++i)
    out.data += static_cast<std::int64_t>(offsets[i]) * out.strides_bytes[i];
  return out;
}

// Returns the box of the whole tensor that a target is for.
result<tensor_box> box_of(const load_target& target, const tensor_desc& whole) {
  auto& desc = target.into.desc;
  auto differs = status{
    errc::invalid_argument, "tensor {} is {}, not {}", desc.name, describe(whole), describe(desc)};
  if (desc.type != whole.type || desc.shape.size() != whole.shape.size())
    return fail(differs);
  auto box = all_of(desc.shape);
  if (!target.offsets.empty()) {
    box.offsets = target.offsets;
  } else {
    std::size_t same = target.first_row ? 1 : 0;
    if (
      desc.shape.size() < same ||
      !std::equal(desc.shape.begin() + same, desc.shape.end(), whole.shape.begin() + same))
      return fail(differs);
    if (target.first_row)
      box.offsets[0] = *target.first_row;
  }
  auto named = whole;
  named.name = desc.name;
  if (auto bad = check_inside(box, named); !bad.ok())
    return fail(bad);
  return box;
}

} // namespace

global_plan::global_plan(const std::vector<load_target>& targets) {
  for (auto& target : targets)
    pieces_[target.into.desc.name];
}

void global_plan::add(const shard_spec& shard) {
  std::map<std::string_view, const tensor_place*> places;
  for (auto& place : shard.places)
    places.emplace(place.name, &place);
  for (auto& tensor : shard.tensors.tensors) {
    auto wanted = pieces_.find(tensor.name);
    if (wanted == pieces_.end())
      continue;
    auto place = places.find(tensor.name);
    if (place == places.end())
      wanted->second.push_back({shard.rank, {{}, tensor.type, tensor.shape}, all_of(tensor.shape)});
    else
      wanted->second.push_back(
        {shard.rank,
         {{}, tensor.type, place->second->global_shape},
         {place->second->offset, tensor.shape}});
  }
}

result<std::vector<const global_plan::piece*>> global_plan::pieces_of(
  const std::string& name, std::uint64_t step) const {
  std::vector<const piece*> out;
  for (auto& one : pieces_.find(name)->second)
    out.push_back(&one);
  if (out.empty())
    return fail(errc::not_found, "tensor {} is in no shard of step {}", name, step);
  std::ranges::sort(out, {}, [](auto* one) { return one->rank; });
  for (auto* one : out)
    if (one->whole != out.front()->whole)
      return fail(
        errc::invalid_argument,
        "tensor {} as a whole is {} by the shard of rank {}, but {} by that of rank {}", name,
        describe(out.front()->whole), out.front()->rank, describe(one->whole), one->rank);
  return out;
}

status global_plan::add_parts(
  const load_target& target, std::uint64_t step, shard_targets& out) const {
  auto& desc = target.into.desc;
  auto pieces = pieces_of(desc.name, step);
  if (!pieces)
    return pieces.error();
  auto box = box_of(target, pieces->front()->whole);
  if (!box)
    return box.error();
  std::vector<tensor_box> missing;
  if (!is_empty(*box))
    missing.push_back(*box);
  for (auto* one : *pieces)
    for (auto& hole : std::exchange(missing, {})) {
      auto part = intersection(hole, one->box);
      if (!part) {
        missing.push_back(std::move(hole));
        continue;
      }
      auto into = part_of(target.into, *box, *part);
      if (!into)
        return into.error();
      // The whole tensor of a shard is no box, so that older providers load it, too.
      auto offsets = *part == one->box ? std::vector<std::uint64_t>{} : offsets_in(one->box, *part);
      out[one->rank].push_back({std::move(*into), {}, std::move(offsets)});
      std::ranges::move(without(hole, *part), std::back_inserter(missing));
    }
  if (missing.empty())
    return {};
  return {
    errc::not_found, "tensor {}: {} is in no shard of step {}", desc.name,
    describe(missing.front()), step};
}

result<shard_targets> global_plan::divide(
  const std::vector<load_target>& targets, std::uint64_t step) const {
  shard_targets out;
  if (auto bad = check_targets(targets); !bad.ok())
    return fail(bad);
  for (auto& target : targets) {
    if (auto bad = validate(target.into); !bad.ok())
      return fail(bad);
    if (auto bad = add_parts(target, step, out); !bad.ok())
      return fail(bad);
  }
  return out;
}

} // namespace millrace::runtime
