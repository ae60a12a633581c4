// Streaming sets: producers and readers of them.
#include "data.hpp"

#include <millrace/runtime/client/stream.hpp>

using namespace millrace::bindings;
using millrace::status;

struct millrace_producer : held<millrace::stream_producer> {
  using held::held;
};

struct millrace_stream_reader : held<millrace::stream_reader> {
  using held::held;
};

namespace {

millrace::result<millrace::stream_options> options_of(
  const call& here, const millrace_stream_options& o, const millrace_tensor* fields,
  std::size_t count) {
  millrace::stream_options out;
  if (count > millrace::set_fields_max)
    return millrace::fail(
      here.wrong("count", fmt::format("is {}; at most {}", count, millrace::set_fields_max)));
  auto bad = read_kind(here, o.policy, &millrace::parse_stream_policy, out.policy);
  if (bad.ok())
    bad = read_kind(here, o.when_full, &millrace::parse_full_policy, out.when_full);
  if (!bad.ok())
    return millrace::fail(bad);
  auto described = here.tensors(fields, count);
  if (!described)
    return millrace::fail(described.error());
  for (auto& field : *described)
    out.fields.push_back(std::move(field.desc));
  if (o.capacity > 0)
    out.capacity = o.capacity;
  out.producers = o.producers;
  out.seed = o.seed;
  out.threshold = o.threshold;
  return out;
}

// Checks what opens a stream, for a producer or a reader, and reads its options.
template <class Options, class Handle>
millrace::result<Options> opening_options(
  const call& here, const millrace_client* client, const char* stream, const Options* options,
  Handle** out, const char* name) {
  if (auto bad = here.need({{client, "client"}, {stream, "stream"}, {out, name}}); !bad.ok())
    return millrace::fail(bad);
  auto given = here.options(options);
  if (given && given->reserved != 0)
    return millrace::fail(
      here.wrong("options->reserved", "is set; this version of the library has no use for it"));
  return given;
}

template <class Handle>
std::size_t fields_of(const Handle* handle) {
  return handle ? handle->of.stream().options.fields.size() : 0;
}

// Describes a field of a stream that is open.
template <class Handle>
status give_field(
  const call& here, const Handle* handle, const char* name, std::size_t field,
  millrace_tensor* tensor) {
  auto bad = here.need({{handle, name}, {tensor, "tensor"}});
  if (bad.ok())
    bad = check_field(here, field, fields_of(handle));
  if (bad.ok())
    *tensor = described(handle->of.stream().options.fields[field]);
  return bad;
}

// Waits for what was opened, and gives its handle.
template <class Handle, class T>
status await_opened(const millrace::future<T>& opening, Handle** out) {
  auto& made = opening.result();
  if (made)
    *out = new Handle{*made};
  return made ? status{} : made.error();
}

} // namespace

millrace_code millrace_stream_create(
  millrace_client* client, const char* stream, const millrace_tensor* fields, size_t count,
  const millrace_stream_options* options, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {stream, "stream"}}); !bad.ok())
      return bad;
    auto given = here.options(options);
    if (!given)
      return given.error();
    auto how = options_of(here, *given, fields, count);
    if (!how)
      return how.error();
    return begin<millrace::stream_status>(
      request, [&] { return client->of.stream(stream).create(*how); });
  });
}

millrace_code millrace_stream_describe(
  millrace_client* client, const char* stream, millrace_stream_info* info) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{client, "client"}, {stream, "stream"}, {info, "info"}});
    if (!bad.ok())
      return bad;
    auto found = client->of.stream(stream).status().result();
    return found ? here.give(info, "info", numbers_of(*found)) : found.error();
  });
}

millrace_code millrace_list_streams(
  millrace_client* client, const char* prefix, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (!client)
      return here.wrong("client", "is NULL");
    return begin<millrace::listed<millrace::stream_status>>(
      request, [&] { return client->of.streams(text_or(prefix, "")); });
  });
}

millrace_code millrace_stream_end(
  millrace_client* client, const char* stream, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {stream, "stream"}}); !bad.ok())
      return bad;
    return begin<void>(request, [&] { return client->of.stream(stream).end(); });
  });
}

millrace_code millrace_stream_remove(
  millrace_client* client, const char* stream, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {stream, "stream"}}); !bad.ok())
      return bad;
    return begin<void>(request, [&] { return client->of.stream(stream).remove(); });
  });
}

millrace_code millrace_open_producer(
  millrace_client* client, const char* stream, const millrace_producer_options* options,
  millrace_producer** producer) {
  clear(producer);
  return guarded(__func__, [&](const call& here) -> status {
    auto given = opening_options(here, client, stream, options, producer, "producer");
    if (!given)
      return given.error();
    millrace::producer_options how;
    if (given->in_flight > 0)
      how.in_flight = given->in_flight;
    return await_opened(client->of.stream(stream).producer(how), producer);
  });
}

size_t millrace_producer_fields(const millrace_producer* producer) { return fields_of(producer); }

millrace_code millrace_producer_field(
  const millrace_producer* producer, size_t field, millrace_tensor* tensor) {
  return guarded(__func__, [&](const call& here) {
    return give_field(here, producer, "producer", field, tensor);
  });
}

millrace_code millrace_append(
  millrace_producer* producer, const millrace_tensor* sample, size_t count,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, producer, "producer"); !bad.ok())
      return bad;
    auto tensors = here.tensors(sample, count);
    if (!tensors)
      return tensors.error();
    return begin<void>(request, [&] { return producer->of.append(*tensors); });
  });
}

millrace_code millrace_producer_end(millrace_producer* producer, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, producer, "producer"); !bad.ok())
      return bad;
    return begin<void>(request, [&] { return producer->of.end(); });
  });
}

void millrace_producer_release(millrace_producer* producer) { end(producer); }

millrace_code millrace_open_stream_reader(
  millrace_client* client, const char* stream, const millrace_stream_reader_options* options,
  millrace_stream_reader** reader) {
  clear(reader);
  return guarded(__func__, [&](const call& here) -> status {
    auto given = opening_options(here, client, stream, options, reader, "reader");
    if (!given)
      return given.error();
    millrace::stream_reader_options how;
    if (given->batch_size > 0)
      how.batch_size = given->batch_size;
    if (given->batches > 0)
      how.batches = given->batches;
    return await_opened(client->of.stream(stream).reader(how), reader);
  });
}

size_t millrace_stream_reader_fields(const millrace_stream_reader* reader) {
  return fields_of(reader);
}

millrace_code millrace_stream_reader_field(
  const millrace_stream_reader* reader, size_t field, millrace_tensor* tensor) {
  return guarded(
    __func__, [&](const call& here) { return give_field(here, reader, "reader", field, tensor); });
}

millrace_code millrace_stream_next(
  millrace_stream_reader* reader, uint64_t samples, int64_t timeout_ms, millrace_batch** batch) {
  clear(batch);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, reader, "reader"); !bad.ok())
      return bad;
    if (!batch)
      return here.wrong("batch", "is NULL");
    auto timeout = here.timeout("timeout_ms", timeout_ms);
    if (!timeout)
      return timeout.error();
    return await_batch(reader->of.next(samples, *timeout), batch);
  });
}

millrace_code millrace_stream_next_begin(
  millrace_stream_reader* reader, uint64_t samples, int64_t timeout_ms,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, reader, "reader"); !bad.ok())
      return bad;
    if (!request)
      return here.wrong("request", "is NULL");
    auto timeout = here.timeout("timeout_ms", timeout_ms);
    if (!timeout)
      return timeout.error();
    return begin_batch(reader->of.next(samples, *timeout), request);
  });
}

void millrace_stream_reader_release(millrace_stream_reader* reader) { end(reader); }
