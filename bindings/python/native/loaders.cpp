// Loaders, batches, and the memory of a batch as a buffer, or as bytes of a GPU.
#include "data.hpp"

#include <array>

namespace millrace::python {

namespace {

struct loader {
  millrace_loader* handle = nullptr;

  loader() = default;
  loader(loader&&) = delete;
  ~loader() { millrace_loader_release(handle); }
};

struct batch {
  millrace_batch* handle = nullptr;

  batch() = default;
  batch(batch&&) = delete;
  ~batch() { millrace_batch_release(handle); }
};

// The memory of one field. It keeps the batch, and arrays keep it.
struct memory {
  ref of;
  void* data = nullptr;
  std::size_t size_bytes = 0;
  bool on_host = true;
};

PyObject* next(PyObject* self, PyObject*) {
  auto keep = ref::to(self);
  auto* handle = value_of<loader>(self).handle;
  return begun(nullptr, [&](auto** out) { return millrace_next_begin(handle, out); });
}

PyObject* state(PyObject* self, PyObject*) {
  std::array<char, MILLRACE_LOADER_STATE_BYTES> out{};
  auto code = millrace_loader_state(value_of<loader>(self).handle, out.data(), out.size());
  return code == MILLRACE_OK ? PyUnicode_FromString(out.data()) : fail(code);
}

PyObject* processors(PyObject* self, PyObject*) {
  std::array<char, 8192> out{}; // thousands of processors
  auto code = millrace_loader_processors(value_of<loader>(self).handle, out.data(), out.size());
  return code == MILLRACE_OK ? PyUnicode_FromString(out.data()) : fail(code);
}

PyObject* seek(PyObject* self, PyObject* args) {
  const char* to;
  if (!PyArg_ParseTuple(args, "s:seek", &to))
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<loader>(self).handle;
  if (!succeeds([&] { return millrace_loader_seek(handle, to); }))
    return nullptr;
  Py_RETURN_NONE;
}

PyObject* set_epoch(PyObject* self, PyObject* args) {
  unsigned long long epoch;
  if (!PyArg_ParseTuple(args, "K:set_epoch", &epoch))
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<loader>(self).handle;
  if (!succeeds([&] { return millrace_loader_set_epoch(handle, epoch); }))
    return nullptr;
  Py_RETURN_NONE;
}

PyObject* describe_loader(PyObject* self, PyObject*) {
  auto out = sized<millrace_loader_info>();
  auto code = millrace_loader_describe(value_of<loader>(self).handle, &out);
  if (code != MILLRACE_OK)
    return fail(code);
  return Py_BuildValue(
    "(KKKKKKKKKKKKKKKKKKK)", out.batches_per_epoch, out.batches_left, out.epoch, out.position,
    out.batches, out.samples, out.bytes, out.ready, out.reading, out.held, out.waits, out.waited_ns,
    out.ring_bytes, out.samples_from_files, out.remote_limit_bytes, out.remote_inflight_bytes,
    out.remote_inflight_stages, out.remote_stages, out.samples_from_window);
}

// (epoch, position, rows, fields, ids of 64 bits, mask); the last two are copies.
PyObject* describe_batch(PyObject* self, PyObject*) {
  auto out = sized<millrace_batch_info>();
  auto code = millrace_batch_describe(value_of<batch>(self).handle, &out);
  if (code != MILLRACE_OK)
    return fail(code);
  return Py_BuildValue(
    "(KKKKNN)", out.epoch, out.position, out.rows, out.fields,
    bytes_of(out.ids, out.ids_count * sizeof(std::uint64_t)), bytes_of(out.mask, out.rows));
}

std::size_t size_bytes_of(const millrace_tensor& t, std::size_t item_bytes) {
  auto bytes = item_bytes;
  for (std::int32_t i = 0; i < t.rank; ++i)
    bytes *= t.shape[i];
  return bytes;
}

// (memory, name, dtype, shape) of a field whose elements have so many bytes, on the host or not.
PyObject* field(PyObject* self, PyObject* args) {
  Py_ssize_t index, item_bytes;
  int on_host;
  if (!PyArg_ParseTuple(args, "nnp:field", &index, &item_bytes, &on_host))
    return nullptr;
  millrace_tensor t{};
  auto code =
    millrace_batch_field(value_of<batch>(self).handle, static_cast<std::size_t>(index), &t);
  if (code != MILLRACE_OK)
    return fail(code);
  ref made{box<memory>()};
  if (!made)
    return nullptr;
  auto& m = value_of<memory>(made.get());
  m.of = ref::to(self);
  m.data = t.data;
  m.size_bytes = size_bytes_of(t, static_cast<std::size_t>(item_bytes));
  m.on_host = on_host != 0;
  return Py_BuildValue(
    "(NsiN)", made.release(), t.name, t.dtype, tuple_of(t.shape, t.rank).release());
}

PyObject* follow(PyObject* self, PyObject* stream) {
  auto* handle = PyLong_AsVoidPtr(stream);
  if (PyErr_Occurred())
    return nullptr;
  auto code = millrace_batch_follow(value_of<batch>(self).handle, handle);
  return code == MILLRACE_OK ? ref::to(Py_None).release() : fail(code);
}

// A copy, in numbers of 64 bits; None for a field whose samples are of one size.
PyObject* offsets(PyObject* self, PyObject* args) {
  Py_ssize_t index;
  if (!PyArg_ParseTuple(args, "n:offsets", &index))
    return nullptr;
  const std::uint64_t* all = nullptr;
  std::size_t count = 0;
  auto code = millrace_batch_offsets(
    value_of<batch>(self).handle, static_cast<std::size_t>(index), &all, &count);
  if (code != MILLRACE_OK)
    return fail(code);
  return all ? bytes_of(all, count * sizeof(std::uint64_t)) : ref::to(Py_None).release();
}

int get_buffer(PyObject* self, Py_buffer* out, int flags) {
  auto& m = value_of<memory>(self);
  if (!m.on_host) {
    PyErr_SetString(PyExc_BufferError, "the memory of a GPU is no buffer");
    return -1;
  }
  return PyBuffer_FillInfo(out, self, m.data, static_cast<Py_ssize_t>(m.size_bytes), 0, flags);
}

PyObject* address(PyObject* self, PyObject*) {
  return PyLong_FromVoidPtr(value_of<memory>(self).data);
}

// The bytes as an array of CUDA. None of the work that fills them is left when a batch is given.
PyObject* cuda_array(PyObject* self, void*) {
  auto& m = value_of<memory>(self);
  if (m.on_host) {
    PyErr_SetString(
      PyExc_AttributeError, "__cuda_array_interface__: the memory is that of the host");
    return nullptr;
  }
  return Py_BuildValue(
    "{s:(n),s:s,s:(NO),s:O,s:i}", "shape", static_cast<Py_ssize_t>(m.size_bytes), "typestr", "|u1",
    "data", PyLong_FromVoidPtr(m.data), Py_False, "strides", Py_None, "version", 3);
}

PyMethodDef loader_methods[] = {
  {"next", safe<next>, METH_NOARGS, nullptr},
  {"state", safe<state>, METH_NOARGS, nullptr},
  {"processors", safe<processors>, METH_NOARGS, nullptr},
  {"seek", safe<seek>, METH_VARARGS, nullptr},
  {"set_epoch", safe<set_epoch>, METH_VARARGS, nullptr},
  {"describe", safe<describe_loader>, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyMethodDef batch_methods[] = {
  {"describe", safe<describe_batch>, METH_NOARGS, nullptr},
  {"field", safe<field>, METH_VARARGS, nullptr},
  {"follow", safe<follow>, METH_O, nullptr},
  {"offsets", safe<offsets>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef memory_attributes[] = {
  {"__cuda_array_interface__", cuda_array, nullptr, nullptr, nullptr},
  {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef memory_methods[] = {
  {"address", safe<address>, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

PyObject* box_loader(millrace_loader* handle) {
  auto* made = box<loader>();
  if (made)
    value_of<loader>(made).handle = handle;
  else
    millrace_loader_release(handle);
  return made;
}

PyObject* box_batch(millrace_batch* handle) {
  auto* made = box<batch>();
  if (made)
    value_of<batch>(made).handle = handle;
  else
    millrace_batch_release(handle);
  return made;
}

bool add_loaders(PyObject* module) {
  return add_type<loader>(module, "millrace._native.Loader", {{Py_tp_methods, loader_methods}}) &&
    add_type<batch>(module, "millrace._native.Batch", {{Py_tp_methods, batch_methods}}) &&
    add_type<memory>(
           module, "millrace._native.Memory",
           {{Py_tp_methods, memory_methods},
            {Py_tp_getset, memory_attributes},
            {Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}});
}

} // namespace millrace::python
