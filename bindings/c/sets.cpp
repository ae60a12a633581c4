// Working sets: training data in the memory of data servers, and readers of them.
#include "data.hpp"

using namespace millrace::bindings;
using millrace::errc;
using millrace::status;

namespace {

// Of one call.
constexpr std::size_t files_max = 1u << 20;
constexpr std::size_t ids_max = std::size_t{1} << 31;

using opening = making<millrace::set_reader, millrace_set_reader>;

status read_kinds(
  const call& here, const millrace_preload_options& o, millrace::set_file_options& out) {
  auto bad = read_kind(here, o.kind, &millrace::parse_preload_kind, out.kind);
  if (bad.ok())
    bad = read_kind(here, o.on_error, &millrace::parse_damage_policy, out.on_error);
  return bad;
}

// Returns what tells a program how far a call is; it is empty without a function.
millrace::progress_callback progress_of(millrace_progress tell, void* context) {
  if (!tell)
    return {};
  return [tell, context](std::uint64_t done, std::uint64_t total) {
    return tell(context, done, total) != 0;
  };
}

// Reads what files are read as.
status read_file_options(
  const call& here, const millrace_preload_options& o, millrace::set_file_options& out) {
  if (auto bad = read_kinds(here, o, out); !bad.ok())
    return bad;
  auto fields = here.texts("options->fields", o.fields, o.fields_count, millrace::set_fields_max);
  if (!fields)
    return fields.error();
  auto decode = here.texts("options->decode", o.decode, o.decode_count, millrace::set_fields_max);
  if (!decode)
    return decode.error();
  out.fields = std::move(*fields);
  out.labels = text_or(o.labels, "");
  out.decode = std::move(*decode);
  if (o.image_pixels_max > 0)
    out.image_pixels_max = o.image_pixels_max;
  return {};
}

millrace::result<millrace::preload_options> preload_options_of(
  const call& here, const millrace_preload_options& o) {
  millrace::preload_options out;
  if (auto bad = read_file_options(here, o, out); !bad.ok())
    return millrace::fail(bad);
  auto timeout = here.timeout("options->timeout_ms", o.timeout_ms);
  if (!timeout)
    return millrace::fail(timeout.error());
  if (o.servers < -1)
    return millrace::fail(here.wrong(
      "options->servers", fmt::format("is {}; give a number, 0 for 1, or -1 for all", o.servers)));
  if (o.servers != 0)
    out.servers = o.servers == -1 ? 0 : static_cast<std::uint32_t>(o.servers);
  out.timeout = *timeout;
  out.window_bytes = o.window_bytes;
  out.while_used = o.while_used != 0;
  out.progress = progress_of(o.progress, o.context);
  return out;
}

millrace::result<millrace::append_options> append_options_of(
  const call& here, const millrace_preload_options& o) {
  if (o.servers != 0 || o.while_used != 0 || o.window_bytes != 0)
    return millrace::fail(here.wrong(
      "options", "has servers, while_used or window_bytes, which are those of the set; give 0"));
  auto how = preload_options_of(here, o);
  if (!how)
    return millrace::fail(how.error());
  millrace::append_options out;
  static_cast<millrace::set_file_options&>(out) = *how;
  out.timeout = how->timeout;
  out.progress = std::move(how->progress);
  return out;
}

// Reads files, and as what they were read.
template <class Files>
status read_files(const call& here, const millrace_open_set_options& given, Files& out) {
  auto preloaded = here.options(given.preloaded);
  if (!preloaded)
    return preloaded.error();
  if (auto bad = read_file_options(here, *preloaded, out); !bad.ok())
    return bad;
  auto files = here.texts("options->files", given.files, given.files_count, files_max);
  if (!files)
    return files.error();
  out.files = std::move(*files);
  return {};
}

status read_appended(
  const call& here, const millrace_open_set_options& given, millrace::open_options& out) {
  if (given.appended_count > millrace::appends_max)
    return here.wrong(
      "options->appended_count",
      fmt::format("is {}; at most {}", given.appended_count, millrace::appends_max));
  if (given.appended_count > 0 && !given.appended)
    return here.wrong("options->appended", "is NULL");
  out.appended.resize(given.appended_count);
  for (std::size_t i = 0; i < given.appended_count; ++i) {
    auto one = here.options(given.appended[i]);
    auto bad = one ? read_files(here, *one, out.appended[i]) : one.error();
    if (!bad.ok())
      return bad;
  }
  return {};
}

millrace::result<millrace::open_options> open_options_of(
  const call& here, const millrace_open_set_options* options) {
  auto given = here.options(options);
  if (!given)
    return millrace::fail(given.error());
  millrace::open_options out;
  auto bad = read_files(here, *given, out);
  if (bad.ok())
    bad = read_appended(here, *given, out);
  return bad.ok() ? millrace::result<millrace::open_options>{std::move(out)} : millrace::fail(bad);
}

// What a preload or an append is given.
struct bringing {
  millrace_preload_options options;
  std::vector<std::string> paths;
};

millrace::result<bringing> read_bringing(
  const call& here, const millrace_client* client, const char* set, const char* const* files,
  std::size_t count, const millrace_preload_options* options) {
  if (auto bad = here.need({{client, "client"}, {set, "set"}, {files, "files"}}); !bad.ok())
    return millrace::fail(bad);
  auto given = here.options(options);
  if (!given)
    return millrace::fail(given.error());
  auto paths = here.texts("files", files, count, files_max);
  if (!paths)
    return millrace::fail(paths.error());
  return bringing{*given, std::move(*paths)};
}

// Brings samples to a set, by a method of it. `read` makes its options of those of C.
template <class Read, class Method>
millrace_code bring(
  const char* function, const millrace_client* client, const char* set, const char* const* files,
  std::size_t count, const millrace_preload_options* options, millrace_request** request, Read read,
  Method method) {
  clear(request);
  return guarded(function, [&](const call& here) -> status {
    auto given = read_bringing(here, client, set, files, count, options);
    if (!given)
      return given.error();
    auto how = read(here, given->options);
    if (!how)
      return how.error();
    return begin<millrace::preloaded_set>(request, [&] {
      return (client->of.working_set(set).*method)(std::move(given->paths), std::move(*how));
    });
  });
}

// What is asked about samples, or read of them.
status check_ids(
  const call& here, const millrace_set_reader* reader, const std::uint64_t* ids,
  std::size_t count) {
  if (auto bad = need_here(here, reader, "reader"); !bad.ok())
    return bad;
  if (count > ids_max)
    return here.wrong("count", fmt::format("is {}; at most {}", count, ids_max));
  return count > 0 ? here.need({{ids, "ids"}}) : status{};
}

// What a request has found of each sample. `argument` is the name of `numbers`.
millrace_code give_numbers(
  const char* function, millrace_request* request, const char* argument,
  const std::uint64_t** numbers, std::size_t* count) {
  clear(numbers);
  return guarded(function, [&](const call& here) -> status {
    auto bad = here.need({{request, "request"}, {numbers, argument}, {count, "count"}});
    if (!bad.ok())
      return bad;
    *count = 0;
    auto found = request->found();
    if (!found)
      return found.error();
    auto all = (*found)->numbers;
    *numbers = all.empty() ? nullptr : all.data();
    *count = all.size();
    return {};
  });
}

std::unique_ptr<opening> begin_opening(
  const millrace_client& client, const char* set, millrace::open_options options = {}) {
  auto begun = std::make_unique<opening>(
    [](const millrace::set_reader& made) { return std::make_unique<millrace_set_reader>(made); });
  begun->begin(client.of.working_set(set).open(std::move(options)));
  return begun;
}

millrace_window_info info_of(const millrace::window_counts& counts) {
  return {
    .struct_size = sizeof(millrace_window_info),
    .size_bytes = counts.size_bytes,
    .kept_bytes = counts.kept_bytes,
    .kept = counts.kept,
    .given = counts.given,
    .missing = counts.missing,
    .written = counts.written,
    .refused = counts.refused,
    .evicted = counts.evicted,
    .damaged = counts.damaged};
}

} // namespace

millrace_code millrace_preload(
  millrace_client* client, const char* set, const char* const* files, size_t count,
  const millrace_preload_options* options, millrace_request** request) {
  return bring(
    __func__, client, set, files, count, options, request, preload_options_of,
    &millrace::working_set::preload);
}

millrace_code millrace_append_to_set(
  millrace_client* client, const char* set, const char* const* files, size_t count,
  const millrace_preload_options* options, millrace_request** request) {
  return bring(
    __func__, client, set, files, count, options, request, append_options_of,
    &millrace::working_set::append);
}

millrace_code millrace_describe_set(
  millrace_client* client, const char* set, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {set, "set"}}); !bad.ok())
      return bad;
    return begin<millrace::set_info>(
      request, [&] { return client->of.working_set(set).describe(); });
  });
}

millrace_code millrace_describe_window(
  millrace_client* client, const char* set, millrace_window_info* info) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{client, "client"}, {set, "set"}, {info, "info"}});
    if (!bad.ok())
      return bad;
    auto found = client->of.working_set(set).window().result();
    return found ? here.give(info, "info", info_of(*found)) : found.error();
  });
}

millrace_code millrace_describe_access(
  millrace_client* client, const char* set, const char* device, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {set, "set"}}); !bad.ok())
      return bad;
    return begin<millrace::set_access>(
      request, [&] { return client->of.working_set(set).access(text_or(device, "")); });
  });
}

millrace_code millrace_list_sets(
  millrace_client* client, const char* prefix, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (!client)
      return here.wrong("client", "is NULL");
    return begin<millrace::listed<millrace::set_info>>(
      request, [&] { return client->of.working_sets(text_or(prefix, "")); });
  });
}

millrace_code millrace_unload(
  millrace_client* client, const char* set, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {set, "set"}}); !bad.ok())
      return bad;
    return begin<void>(request, [&] { return client->of.working_set(set).unload(); });
  });
}

millrace_code millrace_request_skipped(
  millrace_request* request, size_t index, millrace_skipped_file* file) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{request, "request"}, {file, "file"}}); !bad.ok())
      return bad;
    auto found = request->found();
    if (!found)
      return found.error();
    auto& all = (*found)->skipped;
    if (index >= all.size())
      return {
        errc::not_found, "{}: the preload has left out {} files", "millrace_request_skipped",
        all.size()};
    return here.give(file, "file", all[index]);
  });
}

millrace_code millrace_open_set(
  millrace_client* client, const char* set, millrace_set_reader** reader) {
  clear(reader);
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{client, "client"}, {set, "set"}, {reader, "reader"}});
    return bad.ok() ? await_made(begin_opening(*client, set), reader) : bad;
  });
}

millrace_code millrace_open_set_begin(
  millrace_client* client, const char* set, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{client, "client"}, {set, "set"}, {request, "request"}});
    return bad.ok() ? hand_over<void>(begin_opening(*client, set), request) : bad;
  });
}

millrace_code millrace_open_set_with(
  millrace_client* client, const char* set, const millrace_open_set_options* options,
  millrace_set_reader** reader) {
  clear(reader);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {set, "set"}, {reader, "reader"}}); !bad.ok())
      return bad;
    auto how = open_options_of(here, options);
    return how ? await_made(begin_opening(*client, set, std::move(*how)), reader) : how.error();
  });
}

millrace_code millrace_open_set_with_begin(
  millrace_client* client, const char* set, const millrace_open_set_options* options,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {set, "set"}, {request, "request"}}); !bad.ok())
      return bad;
    auto how = open_options_of(here, options);
    return how ? hand_over<void>(begin_opening(*client, set, std::move(*how)), request)
               : how.error();
  });
}

millrace_code millrace_request_set_reader(millrace_request* request, millrace_set_reader** reader) {
  return give_made(__func__, request, "reader", reader);
}

millrace_code millrace_set_reader_describe(const millrace_set_reader* reader, millrace_set* set) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{reader, "reader"}, {set, "set"}});
    return bad.ok() ? here.give(set, "set", described(reader->of.info(), reader->left_out)) : bad;
  });
}

millrace_code millrace_set_reader_field(
  const millrace_set_reader* reader, size_t field, millrace_tensor* tensor) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{reader, "reader"}, {tensor, "tensor"}}); !bad.ok())
      return bad;
    auto& fields = reader->of.info().fields;
    if (auto bad = check_field(here, field, fields.size()); !bad.ok())
      return bad;
    *tensor = described(fields[field].sample);
    return {};
  });
}

uint64_t millrace_set_reader_samples_from_files(const millrace_set_reader* reader) {
  return reader ? reader->of.samples_from_files() : 0;
}

uint64_t millrace_set_reader_samples_from_window(const millrace_set_reader* reader) {
  return reader ? reader->of.samples_from_window() : 0;
}

millrace_code millrace_set_reader_sizes(
  millrace_set_reader* reader, size_t field, const uint64_t* ids, size_t count,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = check_ids(here, reader, ids, count); !bad.ok())
      return bad;
    return begin<std::vector<std::uint64_t>>(request, [&] {
      return reader->of.sizes(field, {ids, ids + count});
    });
  });
}

millrace_code millrace_request_sizes(
  millrace_request* request, const uint64_t** sizes, size_t* count) {
  return give_numbers(__func__, request, "sizes", sizes, count);
}

millrace_code millrace_find_samples(
  millrace_set_reader* reader, size_t field, const char* const* texts, size_t count,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, reader, "reader"); !bad.ok())
      return bad;
    auto wanted = here.texts("texts", texts, count, ids_max);
    if (!wanted)
      return wanted.error();
    return begin<std::vector<std::uint64_t>>(
      request, [&] { return reader->of.find(field, std::move(*wanted)); });
  });
}

millrace_code millrace_request_samples(
  millrace_request* request, const uint64_t** ids, size_t* count) {
  return give_numbers(__func__, request, "ids", ids, count);
}

millrace_code millrace_read_batch(
  millrace_set_reader* reader, size_t field, const uint64_t* ids, size_t count, void* into,
  size_t into_bytes, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = check_ids(here, reader, ids, count);
    if (bad.ok() && into_bytes > 0)
      bad = here.need({{into, "into"}});
    if (!bad.ok())
      return bad;
    return begin<void>(request, [&] {
      return reader->of.read_batch(
        field, {ids, ids + count}, {static_cast<std::byte*>(into), into_bytes});
    });
  });
}

millrace_code millrace_load_field(
  millrace_set_reader* reader, size_t field, void* into, size_t into_bytes,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = need_here(here, reader, "reader");
    if (bad.ok() && into_bytes > 0)
      bad = here.need({{into, "into"}});
    if (!bad.ok())
      return bad;
    return begin<void>(request, [&] {
      return reader->of.load(field, {static_cast<std::byte*>(into), into_bytes});
    });
  });
}

millrace_code millrace_verify_samples(
  millrace_set_reader* reader, millrace_progress progress, void* context,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, reader, "reader"); !bad.ok())
      return bad;
    return begin<millrace::set_damage>(
      request, [&] { return reader->of.verify(progress_of(progress, context)); });
  });
}

millrace_code millrace_request_damage(millrace_request* request, millrace_set_damage* damage) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{request, "request"}, {damage, "damage"}}); !bad.ok())
      return bad;
    auto found = request->found();
    if (!found)
      return found.error();
    if (!(*found)->damage)
      return here.wrong("request", "compares no samples");
    return here.give(damage, "damage", *(*found)->damage);
  });
}

void millrace_set_reader_release(millrace_set_reader* reader) { end(reader); }
