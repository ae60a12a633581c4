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

std::vector<millrace_tensor> all_described(const layout& all) {
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
  f.tensors = all_described(r.spec.tensors);
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

std::uint64_t samples_bytes(const set_info& set) {
  std::uint64_t sum = 0;
  for (auto& field : set.fields)
    sum += field.data_bytes;
  return sum;
}

// The names of policies are literals.
millrace_stream_info described(const stream_status& s) {
  auto out = numbers_of(s);
  out.name = s.name.c_str();
  out.owner = s.owner.c_str();
  out.policy = to_string(s.options.policy).data();
  out.when_full = to_string(s.options.when_full).data();
  return out;
}

} // namespace

millrace_tensor described(const tensor_desc& t) {
  millrace_tensor out{};
  out.name = t.name.c_str();
  out.dtype = static_cast<std::int32_t>(t.type);
  out.rank = static_cast<std::int32_t>(t.shape.size());
  out.shape = t.shape.data();
  return out;
}

std::vector<const char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<const char*> out;
  out.reserve(texts.size());
  for (auto& text : texts)
    out.push_back(text.c_str());
  return out;
}

millrace_set described(const set_info& set, const std::vector<const char*>& left_out) {
  millrace_set out{};
  out.struct_size = sizeof(out);
  out.name = set.name.c_str();
  out.owner = set.owner.c_str();
  out.samples = set.samples;
  out.fields = set.fields.size();
  out.size_bytes = samples_bytes(set);
  out.identity = set.identity;
  out.preloaded_at_ns = set.preloaded_at_ns;
  out.while_used = set.while_used ? 1 : 0;
  out.servers = static_cast<std::int32_t>(std::max<std::size_t>(set.division.nodes.size(), 1));
  out.appends = static_cast<std::int32_t>(set.appended.size());
  out.window_bytes = set.window_bytes;
  out.left_out = left_out.empty() ? nullptr : left_out.data();
  out.left_out_count = left_out.size();
  return out;
}

millrace_stream_info numbers_of(const stream_status& s) {
  auto& c = s.counts;
  return {
    .struct_size = sizeof(millrace_stream_info),
    .capacity = s.options.capacity,
    .size_bytes = s.size_bytes,
    .producers = s.producers,
    .producers_ended = s.producers_ended,
    .readers = s.readers,
    .appended = c.appended,
    .given = c.given,
    .repeated = c.repeated,
    .dropped = c.dropped,
    .replaced = c.replaced,
    .present = c.present,
    .writing = c.writing,
    .reading = c.reading,
    .append_waits = s.append_waits,
    .take_waits = s.take_waits,
    .ended = s.ended,
    .reserved = 0,
    .name = nullptr,
    .provider = nullptr,
    .owner = nullptr,
    .policy = nullptr,
    .when_full = nullptr,
    .created_at_ns = s.created_at_ns};
}

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

findings read(const weights_version& r, counted) {
  findings f;
  f.receipt.version = r.stored_as;
  f.receipt.step = r.version;
  f.receipt.size_bytes = r.size_bytes;
  f.receipt.stored_at_ns = r.stored_at_ns;
  f.metadata = r.metadata;
  return f;
}

findings read(const broadcast_receipt& r, counted) {
  findings f;
  f.receipt.version = r.number;
  f.receipt.size_bytes = r.size_bytes;
  return f;
}

findings read(const model_info& r, counted) {
  auto f = of_record(r.record);
  f.receipt.provider = r.provider.c_str();
  f.model = &r;
  f.tensor_layers = r.record.spec.tensor_layers;
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
  f.tensors = all_described(r.tensors);
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

findings read(const set_info& r, counted) {
  findings f;
  f.left_out.push_back(pointers_to(r.left_out));
  f.sets.push_back(described(r, f.left_out.front()));
  f.receipt.name = r.name.c_str();
  f.receipt.size_bytes = f.sets.front().size_bytes;
  f.receipt.stored_at_ns = r.preloaded_at_ns;
  for (auto& field : r.fields)
    f.tensors.push_back(described(field.sample));
  return f;
}

findings read(const preloaded_set& r, counted by) {
  auto f = read(r.set, by);
  f.sets.front().existed = r.existed;
  for (auto& file : r.skipped)
    f.skipped.push_back(
      {.struct_size = sizeof(millrace_skipped_file),
       .path = file.path.c_str(),
       .why = file.why.detail().c_str(),
       .code = static_cast<millrace_code>(file.why.code()),
       .reserved = 0});
  return f;
}

findings read(const listed<set_info>& r, counted) {
  findings f;
  for (auto& set : r.found) {
    f.left_out.push_back(pointers_to(set.left_out));
    f.sets.emplace_back(described(set, f.left_out.back())).provider = set.provider.c_str();
  }
  f.silent = texts_of(r.silent);
  return f;
}

findings read(const set_damage& r, counted) {
  findings f;
  f.damage = {
    .struct_size = sizeof(millrace_set_damage),
    .samples = r.samples,
    .damaged = r.damaged,
    .first = r.first.empty() ? nullptr : r.first.data(),
    .first_count = r.first.size()};
  return f;
}

findings read(const set_access& r, counted) {
  findings f;
  f.parts.reserve(r.parts.size());
  for (auto& part : r.parts)
    f.parts.push_back(
      {.struct_size = sizeof(millrace_part_access),
       .node = part.node.c_str(),
       .by = part.by.empty() ? nullptr : part.by.c_str(),
       .why = part.why.ok() ? nullptr : part.why.detail().c_str(),
       .code = static_cast<millrace_code>(part.why.code()),
       .reserved = 0});
  f.processors = r.processors.c_str();
  return f;
}

findings read(const stream_status& r, counted) {
  findings f;
  f.streams.push_back(described(r));
  return f;
}

findings read(const listed<stream_status>& r, counted) {
  findings f;
  for (auto& stream : r.found)
    f.streams.emplace_back(described(stream)).provider = stream.provider.c_str();
  f.silent = texts_of(r.silent);
  return f;
}

findings read(const std::vector<std::uint64_t>& numbers, counted) {
  findings f;
  f.numbers = numbers;
  return f;
}

} // namespace millrace::bindings
