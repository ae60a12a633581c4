// Reads the values of futures for C programs.
#include "request.hpp"

#include <string_view>
#include <unordered_map>

namespace millrace::bindings {

namespace {

// Of stores, saves and loads, which have most fields in common.
template <class Receipt>
findings of_moved(const Receipt& r) {
  findings f;
  f.receipt.name = r.model.c_str();
  f.receipt.provider = r.provider.c_str();
  f.receipt.driver = r.driver.c_str();
  f.receipt.size_bytes = r.size_bytes;
  return f;
}

millrace_tensor described(const tensor_desc& t) {
  millrace_tensor out{};
  out.name = t.name.c_str();
  out.dtype = static_cast<std::int32_t>(t.type);
  out.rank = static_cast<std::int32_t>(t.shape.size());
  out.shape = t.shape.data();
  return out;
}

std::vector<millrace_tensor> described(const layout& all) {
  std::vector<millrace_tensor> out;
  out.reserve(all.tensors.size());
  for (auto& t : all.tensors)
    out.push_back(described(t));
  return out;
}

findings of_record(const model_record& r) {
  findings f;
  f.receipt.name = r.spec.name.c_str();
  f.receipt.version = r.version;
  f.receipt.size_bytes = size_bytes(r.spec.tensors);
  f.receipt.stored_at_ns = r.stored_at_ns;
  f.tensors = described(r.spec.tensors);
  f.metadata = r.spec.metadata;
  return f;
}

std::vector<std::string> texts_of(const std::vector<silent_provider>& silent) {
  std::vector<std::string> texts;
  texts.reserve(silent.size());
  for (auto& one : silent)
    texts.push_back(one.name.empty() ? one.why.to_string() : one.why.within(one.name).to_string());
  return texts;
}

std::uint64_t version_bytes(const checkpoint_summary& r) {
  std::uint64_t sum = 0;
  for (auto& shard : r.shards)
    sum += shard.size_bytes;
  return sum;
}

millrace_run run_of(const listed<checkpoint_summary>::entry& r) {
  millrace_run run{};
  run.struct_size = sizeof(run);
  run.name = r.model.c_str();
  run.provider = r.provider.c_str();
  auto newest = newest_step(r);
  run.newest_step = newest ? static_cast<std::int64_t>(*newest) : -1;
  run.world_size = r.world_size;
  run.shards = static_cast<std::uint32_t>(r.shards.size());
  run.complete_steps = static_cast<std::uint32_t>(r.complete_steps.size());
  run.size_bytes = version_bytes(r);
  for (auto& shard : r.shards)
    run.in_use |= shard.registered;
  return run;
}

} // namespace

findings read(const receipt& r, counted) {
  auto f = of_moved(r);
  f.receipt.version = r.version;
  f.receipt.durable = r.durable;
  f.receipt.verified = r.checksums;
  return f;
}

findings read(const load_receipt& r, counted by) {
  auto f = of_moved(r);
  (by == counted::steps ? f.receipt.step : f.receipt.version) = r.version;
  f.receipt.stored_at_ns = r.stored_at_ns;
  f.receipt.verified = r.verified;
  f.extra = r.extra;
  return f;
}

findings read(const global_load_receipt& r, counted) {
  findings f;
  f.receipt.name = r.model.c_str();
  f.receipt.provider = r.provider.c_str();
  if (!r.drivers.empty())
    f.receipt.driver = r.drivers.front().c_str();
  f.receipt.step = r.step;
  f.receipt.size_bytes = r.size_bytes;
  f.receipt.verified = r.verified;
  f.receipt.complete = 1;
  return f;
}

findings read(const save_receipt& r, counted) {
  auto f = of_moved(r);
  f.receipt.step = r.step;
  f.receipt.durable = r.durable;
  f.receipt.complete = r.complete;
  return f;
}

findings read(const model_record& r, counted) { return of_record(r); }

findings read(const model_info& r, counted) {
  auto f = of_record(r.record);
  f.receipt.provider = r.provider.c_str();
  return f;
}

findings read(const checkpoint_summary& r, counted) {
  findings f;
  f.receipt.name = r.model.c_str();
  if (!r.complete_steps.empty()) {
    f.receipt.step = r.complete_steps.back();
    f.receipt.complete = 1;
  }
  for (auto step : r.complete_steps)
    f.steps.push_back(
      {.struct_size = sizeof(millrace_step),
       .step = step,
       .size_bytes = version_bytes(r),
       .saved_at_ns = saved_at_ns(r, step)});
  return f;
}

findings read(const shard_spec& r, counted) {
  findings f;
  f.receipt.name = r.model.c_str();
  f.receipt.size_bytes = size_bytes(r.tensors);
  f.tensors = described(r.tensors);
  std::unordered_map<std::string_view, const tensor_place*> places;
  for (auto& place : r.places)
    places.emplace(place.name, &place);
  for (auto& t : f.tensors)
    if (auto found = places.find(t.name); found != places.end()) {
      t.global_shape = found->second->global_shape.data();
      t.offsets = found->second->offset.data();
    }
  f.metadata = r.metadata;
  f.axes = r.axes;
  return f;
}

findings read(const listed<model_summary>& r, counted) {
  findings f;
  f.models.reserve(r.found.size());
  for (auto& m : r.found)
    f.models.push_back(
      {.struct_size = sizeof(millrace_model),
       .name = m.name.c_str(),
       .provider = m.provider.c_str(),
       .version = m.version,
       .size_bytes = m.size_bytes,
       .tensors = m.tensors,
       .stored_at_ns = m.stored_at_ns,
       .pinned = m.pinned,
       .reserved = 0});
  f.silent = texts_of(r.silent);
  return f;
}

findings read(const listed<checkpoint_summary>& r, counted) {
  findings f;
  for (auto& run : r.found)
    f.runs.push_back(run_of(run));
  f.silent = texts_of(r.silent);
  return f;
}

} // namespace millrace::bindings
