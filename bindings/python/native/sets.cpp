// Working sets: what clients begin with them, and readers.
#include "data.hpp"
#include "tensors.hpp"

#include <atomic>
#include <deque>
#include <string>

namespace millrace::python {

namespace {

// What a preload has told last. A thread of the library writes it, and Python reads it.
struct progress {
  std::atomic<std::uint64_t> done = 0, total = 0;
};

std::int32_t note(void* context, std::uint64_t done, std::uint64_t total) {
  auto& p = *static_cast<progress*>(context);
  p.total = total;
  p.done = done;
  return 1;
}

PyObject* make_progress(PyObject*, PyObject*) { return box<progress>(); }

PyObject* value(PyObject* self, PyObject*) {
  auto& p = value_of<progress>(self);
  return Py_BuildValue(
    "(KK)", static_cast<unsigned long long>(p.done), static_cast<unsigned long long>(p.total));
}

// Files, and as what they are read. The options point into it.
struct read_files {
  texts paths, fields, decode;

  bool read(
    PyObject* files, PyObject* names, PyObject* images, std::uint64_t pixels_max,
    millrace_preload_options& into) {
    if (!paths.read(files) || !fields.read(names) || !decode.read(images))
      return false;
    into.fields = fields.all.data();
    into.fields_count = fields.all.size();
    into.decode = decode.all.data();
    into.decode_count = decode.all.size();
    into.image_pixels_max = pixels_max;
    return true;
  }
};

// Files that stand for lost servers, as arguments give them. The options point into it.
struct files_to_open {
  read_files files;
  millrace_preload_options how = sized<millrace_preload_options>();
  millrace_open_set_options options = sized<millrace_open_set_options>();

  files_to_open() = default;
  files_to_open(files_to_open&&) = delete;

  // (files, kind or None, fields, labels or None, on_error or None, decode, pixels), with the
  // name of the set before them and more after them where the format says so.
  template <class... More>
  bool parse(PyObject* args, const char* format, const char** set = nullptr, More*... more) {
    PyObject *paths, *names, *images;
    unsigned long long pixels_max;
    auto parsed = set ? PyArg_ParseTuple(
                          args, format, set, &paths, &how.kind, &names, &how.labels, &how.on_error,
                          &images, &pixels_max, more...)
                      : PyArg_ParseTuple(
                          args, format, &paths, &how.kind, &names, &how.labels, &how.on_error,
                          &images, &pixels_max);
    if (!parsed || !files.read(paths, names, images, pixels_max, how))
      return false;
    options.files = files.paths.all.data();
    options.files_count = files.paths.all.size();
    options.preloaded = &how;
    return true;
  }
};

// Reads an object of progress, or None: null.
bool read_progress(PyObject* told, progress*& known) {
  return told == Py_None || need<progress>(told, &known);
}

// Begins what brings samples of files to a set.
template <class Begin>
PyObject* bring(
  Begin begin, millrace_client* client, const char* set, const read_files& how,
  millrace_preload_options& o, PyObject* told) {
  progress* known = nullptr;
  if (!read_progress(told, known))
    return nullptr;
  if (known) {
    o.progress = &note;
    o.context = known;
  }
  return begun(known ? told : nullptr, [&](auto** out) {
    return begin(client, set, how.paths.all.data(), how.paths.all.size(), &o, out);
  });
}

struct set_reader {
  millrace_set_reader* handle = nullptr;

  set_reader() = default;
  set_reader(set_reader&&) = delete;
  ~set_reader() { millrace_set_reader_release(handle); }
};

PyObject* describe(PyObject* self, PyObject*) {
  auto out = sized<millrace_set>();
  auto code = millrace_set_reader_describe(value_of<set_reader>(self).handle, &out);
  return code == MILLRACE_OK ? tuple_of(out) : fail(code);
}

PyObject* samples_from_files(PyObject* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(
    millrace_set_reader_samples_from_files(value_of<set_reader>(self).handle));
}

PyObject* samples_from_window(PyObject* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(
    millrace_set_reader_samples_from_window(value_of<set_reader>(self).handle));
}

// (name, dtype, shape of one sample)
PyObject* field(PyObject* self, PyObject* args) {
  Py_ssize_t index;
  if (!PyArg_ParseTuple(args, "n:field", &index))
    return nullptr;
  millrace_tensor out{};
  auto code = millrace_set_reader_field(
    value_of<set_reader>(self).handle, static_cast<std::size_t>(index), &out);
  if (code != MILLRACE_OK)
    return fail(code);
  return Py_BuildValue("(siN)", out.name, out.dtype, tuple_of(out.shape, out.rank).release());
}

PyObject* sizes(PyObject* self, PyObject* args) {
  Py_ssize_t index, ids_bytes;
  const char* ids;
  if (!PyArg_ParseTuple(args, "ny#:sizes", &index, &ids, &ids_bytes))
    return nullptr;
  auto numbers = numbers_of(ids, ids_bytes);
  auto keep = ref::to(self);
  auto* handle = value_of<set_reader>(self).handle;
  return begun(nullptr, [&](auto** out) {
    return millrace_set_reader_sizes(
      handle, static_cast<std::size_t>(index), numbers.data(), numbers.size(), out);
  });
}

PyObject* find(PyObject* self, PyObject* args) {
  Py_ssize_t index;
  PyObject* list;
  if (!PyArg_ParseTuple(args, "nO:find", &index, &list))
    return nullptr;
  texts wanted;
  if (!wanted.read(list))
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<set_reader>(self).handle;
  return begun(nullptr, [&](auto** out) {
    return millrace_find_samples(
      handle, static_cast<std::size_t>(index), wanted.all.data(), wanted.all.size(), out);
  });
}

// `ids` are numbers of 64 bits; the first one of the tensors is what is written, so many bytes.
PyObject* read_batch(PyObject* self, PyObject* args) {
  Py_ssize_t index, ids_bytes, into_bytes;
  const char* ids;
  PyObject* list;
  if (!PyArg_ParseTuple(
        args, "ny#O!n:read_batch", &index, &ids, &ids_bytes, type_of<tensors>, &list, &into_bytes))
    return nullptr;
  auto numbers = numbers_of(ids, ids_bytes);
  auto keep = ref::to(self);
  auto* handle = value_of<set_reader>(self).handle;
  auto* into = value_of<tensors>(list).all.at(0).data;
  return begun(list, [&](auto** out) {
    return millrace_read_batch(
      handle, static_cast<std::size_t>(index), numbers.data(), numbers.size(), into,
      static_cast<std::size_t>(into_bytes), out);
  });
}

// The first one of the tensors is what is written, so many bytes.
PyObject* load(PyObject* self, PyObject* args) {
  Py_ssize_t index, into_bytes;
  PyObject* list;
  if (!PyArg_ParseTuple(args, "nO!n:load", &index, type_of<tensors>, &list, &into_bytes))
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<set_reader>(self).handle;
  auto* into = value_of<tensors>(list).all.at(0).data;
  return begun(list, [&](auto** out) {
    return millrace_load_field(
      handle, static_cast<std::size_t>(index), into, static_cast<std::size_t>(into_bytes), out);
  });
}

// (progress or None)
PyObject* verify(PyObject* self, PyObject* told) {
  progress* known = nullptr;
  if (!read_progress(told, known))
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<set_reader>(self).handle;
  return begun(known ? told : nullptr, [&](auto** out) {
    return millrace_verify_samples(handle, known ? &note : nullptr, known, out);
  });
}

// (seed, epoch, shuffle, first position, count), the samples as numbers of 64 bits.
PyObject* order(PyObject* self, PyObject* args) {
  auto o = sized<millrace_order_options>();
  unsigned long long seed, epoch, first;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(args, "KKsKn:order", &seed, &epoch, &o.shuffle, &first, &count))
    return nullptr;
  o.seed = seed;
  o.epoch = epoch;
  auto keep = ref::to(self);
  auto* handle = value_of<set_reader>(self).handle;
  std::vector<std::uint64_t> ids(static_cast<std::size_t>(count));
  if (!succeeds(
        [&] { return millrace_set_reader_order(handle, &o, first, ids.size(), ids.data()); }))
    return nullptr;
  return bytes_of(ids.data(), ids.size() * sizeof(std::uint64_t));
}

// (seed, epoch, shuffle, samples), the positions; both are numbers of 64 bits.
PyObject* positions(PyObject* self, PyObject* args) {
  auto o = sized<millrace_order_options>();
  unsigned long long seed, epoch;
  const char* ids;
  Py_ssize_t ids_bytes;
  if (!PyArg_ParseTuple(args, "KKsy#:positions", &seed, &epoch, &o.shuffle, &ids, &ids_bytes))
    return nullptr;
  o.seed = seed;
  o.epoch = epoch;
  auto keep = ref::to(self);
  auto* handle = value_of<set_reader>(self).handle;
  auto numbers = numbers_of(ids, ids_bytes);
  if (!succeeds([&] {
        return millrace_set_reader_positions(
          handle, &o, numbers.data(), numbers.size(), numbers.data());
      }))
    return nullptr;
  return bytes_of(numbers.data(), numbers.size() * sizeof(std::uint64_t));
}

PyObject* load_batches(PyObject* self, PyObject* args) {
  auto o = sized<millrace_loader_options>();
  PyObject* names;
  unsigned long long batch_size, rank, world_size, seed, epoch;
  if (!PyArg_ParseTuple(
        args, "KKKKKssOIz:load_batches", &batch_size, &rank, &world_size, &seed, &epoch, &o.shuffle,
        &o.remainder, &names, &o.prefetch, &o.device))
    return nullptr;
  texts fields;
  if (!fields.read(names))
    return nullptr;
  o.batch_size = batch_size;
  o.rank = rank;
  o.world_size = world_size;
  o.seed = seed;
  o.epoch = epoch;
  o.fields = fields.all.data();
  o.fields_count = fields.all.size();
  auto keep = ref::to(self);
  auto* handle = value_of<set_reader>(self).handle;
  millrace_loader* out = nullptr;
  if (!succeeds([&] { return millrace_loader_create(handle, &o, &out); }))
    return nullptr;
  return box_loader(out);
}

PyMethodDef progress_methods[] = {
  {"value", safe<value>, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyMethodDef reader_methods[] = {
  {"describe", safe<describe>, METH_NOARGS, nullptr},
  {"samples_from_files", safe<samples_from_files>, METH_NOARGS, nullptr},
  {"samples_from_window", safe<samples_from_window>, METH_NOARGS, nullptr},
  {"field", safe<field>, METH_VARARGS, nullptr},
  {"sizes", safe<sizes>, METH_VARARGS, nullptr},
  {"find", safe<find>, METH_VARARGS, nullptr},
  {"read_batch", safe<read_batch>, METH_VARARGS, nullptr},
  {"load", safe<load>, METH_VARARGS, nullptr},
  {"verify", safe<verify>, METH_O, nullptr},
  {"order", safe<order>, METH_VARARGS, nullptr},
  {"positions", safe<positions>, METH_VARARGS, nullptr},
  {"load_batches", safe<load_batches>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyMethodDef functions[] = {
  {"progress", safe<make_progress>, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

namespace {

ref texts_of(const char* const* all, std::size_t count) {
  ref out{PyTuple_New(static_cast<Py_ssize_t>(count))};
  for (std::size_t i = 0; out && i < count; ++i) {
    auto* one = text(all[i]);
    if (!one || PyTuple_SetItem(out.get(), static_cast<Py_ssize_t>(i), one) != 0)
      return {};
  }
  return out;
}

} // namespace

PyObject* tuple_of(const millrace_set& set) {
  auto left_out = texts_of(set.left_out, set.left_out_count);
  if (!left_out)
    return nullptr;
  return Py_BuildValue(
    "(szsKKKKKOOiiKO)", set.name, set.provider, set.owner, set.samples, set.fields, set.size_bytes,
    set.identity, set.preloaded_at_ns, set.existed ? Py_True : Py_False,
    set.while_used ? Py_True : Py_False, set.servers, set.appends, set.window_bytes,
    left_out.get());
}

PyObject* describe_window(millrace_client* client, PyObject* args) {
  const char* set;
  if (!PyArg_ParseTuple(args, "s:describe_window", &set))
    return nullptr;
  auto o = sized<millrace_window_info>();
  if (!succeeds([&] { return millrace_describe_window(client, set, &o); }))
    return nullptr;
  return Py_BuildValue(
    "(KKKKKKKKK)", o.size_bytes, o.kept_bytes, o.kept, o.given, o.missing, o.written, o.refused,
    o.evicted, o.damaged);
}

PyObject* begin_describe_access(millrace_client* client, PyObject* args) {
  const char *set, *device;
  if (!PyArg_ParseTuple(args, "sz:describe_access", &set, &device))
    return nullptr;
  return begun(
    nullptr, [&](auto** out) { return millrace_describe_access(client, set, device, out); });
}

PyObject* begin_preload(millrace_client* client, PyObject* args) {
  const char* set;
  PyObject *files, *names, *images, *told;
  long long timeout_ms;
  auto o = sized<millrace_preload_options>();
  unsigned long long pixels_max, window_bytes;
  if (!PyArg_ParseTuple(
        args, "sOLzOzzpOKiKO:preload", &set, &files, &timeout_ms, &o.kind, &names, &o.labels,
        &o.on_error, &o.while_used, &images, &pixels_max, &o.servers, &window_bytes, &told))
    return nullptr;
  read_files how;
  if (!how.read(files, names, images, pixels_max, o))
    return nullptr;
  o.timeout_ms = timeout_ms;
  o.window_bytes = window_bytes;
  return bring(millrace_preload, client, set, how, o, told);
}

PyObject* begin_append_to_set(millrace_client* client, PyObject* args) {
  const char* set;
  PyObject *files, *names, *images, *told;
  long long timeout_ms;
  auto o = sized<millrace_preload_options>();
  unsigned long long pixels_max;
  if (!PyArg_ParseTuple(
        args, "sOLzOzzOKO:append_to_set", &set, &files, &timeout_ms, &o.kind, &names, &o.labels,
        &o.on_error, &images, &pixels_max, &told))
    return nullptr;
  read_files how;
  if (!how.read(files, names, images, pixels_max, o))
    return nullptr;
  o.timeout_ms = timeout_ms;
  return bring(millrace_append_to_set, client, set, how, o, told);
}

PyObject* begin_open_set(millrace_client* client, PyObject* args) {
  const char* set;
  files_to_open preloaded;
  PyObject* appended;
  if (!preloaded.parse(args, "sOzOzzOKO:open_set", &set, &appended))
    return nullptr;
  std::deque<files_to_open> all; // each stays where it is
  std::vector<const millrace_open_set_options*> options;
  auto read = each(appended, [&](PyObject* item) {
    auto parsed = all.emplace_back().parse(item, "OzOzzOK:appended");
    options.push_back(&all.back().options);
    return parsed;
  });
  if (!read)
    return nullptr;
  auto& o = preloaded.options;
  o.appended = options.data();
  o.appended_count = options.size();
  return begun(
    nullptr, [&](auto** out) { return millrace_open_set_with_begin(client, set, &o, out); });
}

PyObject* box_set_reader(millrace_set_reader* handle) {
  auto* made = box<set_reader>();
  if (made)
    value_of<set_reader>(made).handle = handle;
  else
    millrace_set_reader_release(handle);
  return made;
}

bool add_sets(PyObject* module) {
  return add_type<progress>(
           module, "millrace._native.Progress", {{Py_tp_methods, progress_methods}}) &&
    add_type<set_reader>(module, "millrace._native.SetReader", {{Py_tp_methods, reader_methods}}) &&
    PyModule_AddFunctions(module, functions) == 0;
}

} // namespace millrace::python
