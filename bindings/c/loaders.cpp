// Loaders: the batches of a working set, in a ring of memory.
#include "data.hpp"

#include <algorithm>

using namespace millrace::bindings;
using millrace::status;

namespace {

status read_kinds(
  const call& here, const millrace_loader_options& o, millrace::loader_options& out) {
  auto bad = read_kind(here, o.shuffle, &millrace::shuffle_kind::parse, out.shuffle);
  if (bad.ok())
    bad = read_kind(here, o.remainder, &millrace::parse_remainder, out.remainder);
  return bad;
}

millrace::result<millrace::loader_options> loader_options_of(
  const call& here, const millrace_loader_options& o) {
  millrace::loader_options out;
  if (o.reserved != 0)
    return millrace::fail(
      here.wrong("options->reserved", "is set; this version of the library has no use for it"));
  if (auto bad = read_kinds(here, o, out); !bad.ok())
    return millrace::fail(bad);
  auto fields = here.texts("options->fields", o.fields, o.fields_count, millrace::set_fields_max);
  if (!fields)
    return millrace::fail(fields.error());
  out.batch_size = std::max<std::uint64_t>(o.batch_size, 1);
  out.rank = o.rank;
  out.world_size = std::max<std::uint64_t>(o.world_size, 1);
  out.seed = o.seed;
  out.epoch = o.epoch;
  out.fields = std::move(*fields);
  if (o.prefetch > 0)
    out.prefetch = o.prefetch;
  if (o.device)
    out.device = o.device;
  return out;
}

millrace_loader_info info_of(const millrace::loader& loader) {
  auto counts = loader.counts();
  auto at = loader.state();
  return {
    .struct_size = sizeof(millrace_loader_info),
    .batches_per_epoch = loader.batches_per_epoch(),
    .batches_left = loader.batches_left(),
    .epoch = at.epoch,
    .position = at.position,
    .batches = counts.batches,
    .samples = counts.samples,
    .bytes = counts.bytes,
    .ready = counts.ready,
    .reading = counts.reading,
    .held = counts.held,
    .waits = counts.waits,
    .waited_ns = counts.waited_ns,
    .ring_bytes = counts.ring_bytes,
    .samples_from_files = counts.samples_from_files,
    .remote_limit_bytes = counts.remote_limit_bytes,
    .remote_inflight_bytes = counts.remote_inflight_bytes,
    .remote_inflight_stages = counts.remote_inflight_stages,
    .remote_stages = counts.remote_stages,
    .samples_from_window = counts.samples_from_window};
}

millrace_batch_info info_of(const millrace_batch& batch) {
  auto ids = batch.of.ids();
  return {
    .struct_size = sizeof(millrace_batch_info),
    .epoch = batch.of.epoch(),
    .position = batch.of.position(),
    .rows = batch.of.rows(),
    .ids_count = ids.size(),
    .ids = ids.data(),
    .mask = reinterpret_cast<const unsigned char*>(batch.mask.data),
    .fields = batch.fields.size()};
}

status write_text(const call& here, const std::string& what, char* text, size_t text_bytes) {
  if (!text)
    return here.wrong("text", "is NULL");
  if (what.size() >= text_bytes)
    return here.wrong("text_bytes", fmt::format("is {}; give {}", text_bytes, what.size() + 1));
  std::copy_n(what.c_str(), what.size() + 1, text);
  return {};
}

} // namespace

millrace_code millrace_loader_create(
  millrace_set_reader* reader, const millrace_loader_options* options, millrace_loader** loader) {
  clear(loader);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, reader, "reader"); !bad.ok())
      return bad;
    if (!loader)
      return here.wrong("loader", "is NULL");
    auto given = here.options(options);
    if (!given)
      return given.error();
    auto how = loader_options_of(here, *given);
    if (!how)
      return how.error();
    auto made = reader->of.load_batches(*how);
    if (!made)
      return made.error();
    *loader = new millrace_loader{std::move(*made)};
    return {};
  });
}

millrace_code millrace_next(millrace_loader* loader, millrace_batch** batch) {
  clear(batch);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, loader, "loader"); !bad.ok())
      return bad;
    if (!batch)
      return here.wrong("batch", "is NULL");
    return await_batch(loader->of.next(), batch);
  });
}

millrace_code millrace_next_begin(millrace_loader* loader, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, loader, "loader"); !bad.ok())
      return bad;
    if (!request)
      return here.wrong("request", "is NULL");
    return begin_batch(loader->of.next(), request);
  });
}

millrace_code millrace_request_batch(millrace_request* request, millrace_batch** batch) {
  clear(batch);
  next_batch* taken = nullptr;
  auto code = give_made(__func__, request, "batch", batch ? &taken : nullptr);
  std::unique_ptr<next_batch> next{taken};
  if (code != MILLRACE_OK || !next->of)
    return code;
  return guarded(__func__, [&](const call&) -> status {
    *batch = new millrace_batch{std::move(*next->of)};
    return {};
  });
}

millrace_code millrace_loader_state(const millrace_loader* loader, char* text, size_t text_bytes) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = need_here(here, loader, "loader");
    return bad.ok() ? write_text(here, loader->of.state().to_json(), text, text_bytes) : bad;
  });
}

millrace_code millrace_loader_processors(
  const millrace_loader* loader, char* text, size_t text_bytes) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = need_here(here, loader, "loader");
    return bad.ok() ? write_text(here, loader->of.processors(), text, text_bytes) : bad;
  });
}

millrace_code millrace_loader_seek(millrace_loader* loader, const char* state) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, loader, "loader"); !bad.ok())
      return bad;
    if (!state)
      return here.wrong("state", "is NULL");
    auto to = millrace::loader_state::parse(state);
    return to ? loader->of.seek(*to) : to.error();
  });
}

millrace_code millrace_loader_set_epoch(millrace_loader* loader, uint64_t epoch) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, loader, "loader"); !bad.ok())
      return bad;
    return loader->of.set_epoch(epoch);
  });
}

millrace_code millrace_loader_describe(const millrace_loader* loader, millrace_loader_info* info) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, loader, "loader"); !bad.ok())
      return bad;
    if (!info)
      return here.wrong("info", "is NULL");
    return here.give(info, "info", info_of(loader->of));
  });
}

void millrace_loader_release(millrace_loader* loader) {
  // In a forked child a thread of the parent may have held the lock of the ring.
  if (loader && loader->made_in.is_here())
    end(loader);
}

millrace_code millrace_batch_describe(const millrace_batch* batch, millrace_batch_info* info) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{batch, "batch"}, {info, "info"}});
    return bad.ok() ? here.give(info, "info", info_of(*batch)) : bad;
  });
}

millrace_code millrace_batch_field(
  const millrace_batch* batch, size_t field, millrace_tensor* tensor) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{batch, "batch"}, {tensor, "tensor"}}); !bad.ok())
      return bad;
    if (auto bad = check_field(here, field, batch->fields.size()); !bad.ok())
      return bad;
    *tensor = described(batch->fields[field].desc);
    tensor->data = batch->fields[field].data;
    return {};
  });
}

millrace_code millrace_batch_offsets(
  const millrace_batch* batch, size_t field, const uint64_t** offsets, size_t* count) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{batch, "batch"}, {offsets, "offsets"}, {count, "count"}});
    if (bad.ok())
      bad = check_field(here, field, batch->fields.size());
    if (!bad.ok())
      return bad;
    auto all = batch->of.offsets(field);
    *offsets = all.empty() ? nullptr : all.data();
    *count = all.size();
    return {};
  });
}

millrace_code millrace_batch_follow(const millrace_batch* batch, void* cuda_stream) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{batch, "batch"}});
    return bad.ok() ? batch->of.follow({cuda_stream}) : bad;
  });
}

void millrace_batch_release(millrace_batch* batch) {
  // In a forked child a thread of the parent may have held the lock of the ring.
  if (batch && batch->made_in.is_here())
    delete batch;
}
