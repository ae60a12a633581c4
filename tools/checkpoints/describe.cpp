// Tables and JSON documents of checkpoints.
#include <millrace/core/box.hpp>
#include <millrace/tools/checkpoints/access.hpp>
#include <millrace/tools/checkpoints/describe.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <array>
#include <map>
#include <ostream>
#include <string_view>

namespace millrace::tools {

namespace {

std::string_view state_name(slot_state state) {
  constexpr std::array<std::string_view, 3> names = {"empty", "active", "done"};
  auto at = static_cast<std::size_t>(state);
  return at < names.size() ? names[at] : "unknown";
}

std::string job_of(const shard_summary& shard) {
  return shard.registered ? "attached" : shard.finished ? "finished" : "gone";
}

std::string axes_of(const std::vector<std::pair<std::string, std::string>>& axes) {
  std::string text;
  for (auto& [axis, place] : axes)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", axis, place);
  return text;
}

std::string steps_of(const checkpoint_summary& model) {
  return fmt::format("{}", fmt::join(model.complete_steps, " "));
}

// Returns the state of the model's job, over all shards.
std::string job_of(const checkpoint_summary& model) {
  std::size_t attached = 0, finished = 0;
  for (auto& shard : model.shards)
    attached += shard.registered, finished += shard.finished;
  return attached > 0 ? "attached" : finished == model.shards.size() ? "finished" : "gone";
}

std::map<std::string_view, const tensor_place*> places_of(const shard_spec& shard) {
  std::map<std::string_view, const tensor_place*> out;
  for (auto& place : shard.places)
    out.emplace(place.name, &place);
  return out;
}

json object_of(const std::vector<std::pair<std::string, std::string>>& pairs) {
  json object = json::object();
  for (auto& [key, value] : pairs)
    object[key] = value;
  return object;
}

json to_json(const shard_summary& shard) {
  json slots = json::array();
  for (auto& slot : shard.slots) {
    json one = {{"state", state_name(slot.state)}};
    if (slot.state != slot_state::empty)
      one["step"] = slot.step;
    if (slot.state == slot_state::done)
      one["saved_at_ns"] = slot.saved_at_ns;
    one["being_read"] = slot.being_read;
    slots.push_back(std::move(one));
  }
  return {
    {"rank", shard.rank},
    {"tensors", shard.tensors},
    {"size_bytes", shard.size_bytes},
    {"reserved_bytes", shard.reserved_bytes},
    {"job", job_of(shard)},
    {"axes", object_of(shard.axes)},
    {"slots", slots}};
}

} // namespace

json to_json(const checkpoint_summary& model) {
  json shards = json::array();
  for (auto& shard : model.shards)
    shards.push_back(to_json(shard));
  auto newest = newest_step(model);
  return {
    {"model", model.model},
    {"world_size", model.world_size},
    {"complete_steps", model.complete_steps},
    {"newest_step", newest ? json(*newest) : json(nullptr)},
    {"shards", shards}};
}

json to_json(const shard_spec& shard) {
  json tensors = json::array();
  auto places = places_of(shard);
  for (auto& tensor : shard.tensors.tensors) {
    json one = {
      {"name", tensor.name},
      {"dtype", to_string(tensor.type)},
      {"shape", tensor.shape},
      {"size_bytes", size_bytes(tensor).value_or(0)}};
    if (auto place = places.find(tensor.name); place != places.end()) {
      one["global_shape"] = place->second->global_shape;
      one["offset"] = place->second->offset;
    }
    tensors.push_back(std::move(one));
  }
  return {
    {"rank", shard.rank},
    {"keep", shard.keep},
    {"axes", object_of(shard.axes)},
    {"metadata", object_of(shard.metadata)},
    {"tensors", tensors}};
}

json to_json(const repack_report& report) {
  return {
    {"freed_bytes", report.freed_bytes},
    {"moved_bytes", report.moved_bytes},
    {"versions_freed", report.versions_freed},
    {"remains_freed", report.remains_freed},
    {"skipped", report.skipped},
    {"largest_free_bytes_before", report.largest_free_bytes_before},
    {"largest_free_bytes_after", report.largest_free_bytes_after},
    {"stopped_early", report.stopped_early}};
}

void print(std::ostream& out, const std::vector<listed<checkpoint_summary>::entry>& models) {
  table lines{
    {"model", ">ranks", ">newest", "complete steps", ">size", ">reserved", "job", "provider"}};
  for (auto& m : models) {
    std::uint64_t size = 0, reserved = 0;
    for (auto& shard : m.shards)
      size += shard.size_bytes, reserved += shard.reserved_bytes;
    auto newest = newest_step(m);
    auto ranks = std::to_string(m.world_size);
    if (m.shards.size() != m.world_size)
      ranks = fmt::format("{} of {}", m.shards.size(), m.world_size);
    lines.add(
      {m.model, ranks, newest ? std::to_string(*newest) : "none", steps_of(m), human_size(size),
       human_size(reserved), job_of(m), m.provider});
  }
  lines.print(out);
}

void print(std::ostream& out, const checkpoint_summary& model) {
  auto newest = newest_step(model);
  out << printable(model.model) << ": " << counted(model.shards.size(), "rank") << " of "
      << model.world_size << ", newest complete step "
      << (newest ? std::to_string(*newest) : "none") << '\n';
  table lines{{">rank", ">tensors", ">size", "job", "axes", "slot", ">step", "saved", "read"}};
  for (auto& shard : model.shards)
    for (std::size_t i = 0; i < shard.slots.size(); ++i) {
      auto& slot = shard.slots[i];
      bool first = i == 0, done = slot.state == slot_state::done;
      lines.add(
        {first ? std::to_string(shard.rank) : "", first ? std::to_string(shard.tensors) : "",
         first ? human_size(shard.size_bytes) : "", first ? job_of(shard) : "",
         first ? axes_of(shard.axes) : "", std::string{state_name(slot.state)},
         slot.state == slot_state::empty ? "" : std::to_string(slot.step),
         done ? human_time(slot.saved_at_ns) : "", slot.being_read ? "now" : ""});
    }
  lines.print(out, "  ");
}

void print(std::ostream& out, const shard_spec& shard) {
  if (!shard.metadata.empty()) {
    table metadata{{"metadata", "value"}};
    for (auto& [key, value] : shard.metadata)
      metadata.add({key, value});
    metadata.print(out);
  }
  out << "rank " << shard.rank << ": " << counted(shard.tensors.tensors.size(), "tensor") << '\n';
  auto places = places_of(shard);
  std::vector<std::string> heads{"tensor", "dtype and shape", ">size"};
  if (!places.empty())
    heads.emplace_back("place");
  table tensors{heads};
  for (auto& tensor : shard.tensors.tensors) {
    std::vector<std::string> line{
      tensor.name, describe(tensor), human_size(size_bytes(tensor).value_or(0))};
    if (auto place = places.find(tensor.name); place != places.end())
      line.push_back(fmt::format(
        "{} of [{}]", describe(tensor_box{place->second->offset, tensor.shape}),
        fmt::join(place->second->global_shape, ", ")));
    else if (!places.empty())
      line.emplace_back("whole");
    tensors.add(line);
  }
  tensors.print(out, "  ");
}

} // namespace millrace::tools
