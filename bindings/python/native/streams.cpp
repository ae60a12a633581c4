// Streams: what clients begin with them, producers and readers.
#include "data.hpp"
#include "tensors.hpp"

namespace millrace::python {

namespace {

struct producer {
  millrace_producer* handle = nullptr;

  producer() = default;
  producer(producer&&) = delete;
  ~producer() { millrace_producer_release(handle); }
};

struct stream_reader {
  millrace_stream_reader* handle = nullptr;

  stream_reader() = default;
  stream_reader(stream_reader&&) = delete;
  ~stream_reader() { millrace_stream_reader_release(handle); }
};

// (name, dtype, shape of one sample)
PyObject* described(const millrace_tensor& t) {
  return Py_BuildValue("(siN)", t.name, t.dtype, tuple_of(t.shape, t.rank).release());
}

template <class T, auto call>
PyObject* field(PyObject* self, PyObject* args) {
  Py_ssize_t index;
  if (!PyArg_ParseTuple(args, "n:field", &index))
    return nullptr;
  millrace_tensor out{};
  auto code = call(value_of<T>(self).handle, static_cast<std::size_t>(index), &out);
  return code == MILLRACE_OK ? described(out) : fail(code);
}

template <class T, auto call>
PyObject* fields(PyObject* self, PyObject*) {
  return PyLong_FromSize_t(call(value_of<T>(self).handle));
}

// The tensors are copied before the library's call returns.
PyObject* append(PyObject* self, PyObject* args) {
  PyObject* list;
  if (!PyArg_ParseTuple(args, "O!:append", type_of<tensors>, &list))
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<producer>(self).handle;
  auto& all = value_of<tensors>(list).all;
  return begun(
    nullptr, [&](auto** out) { return millrace_append(handle, all.data(), all.size(), out); });
}

PyObject* end(PyObject* self, PyObject*) {
  auto keep = ref::to(self);
  auto* handle = value_of<producer>(self).handle;
  return begun(nullptr, [&](auto** out) { return millrace_producer_end(handle, out); });
}

PyObject* next(PyObject* self, PyObject* args) {
  unsigned long long samples;
  long long timeout_ms;
  if (!PyArg_ParseTuple(args, "KL:next", &samples, &timeout_ms))
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<stream_reader>(self).handle;
  return begun(nullptr, [&](auto** out) {
    return millrace_stream_next_begin(handle, samples, timeout_ms, out);
  });
}

PyMethodDef producer_methods[] = {
  {"fields", safe<fields<producer, millrace_producer_fields>>, METH_NOARGS, nullptr},
  {"field", safe<field<producer, millrace_producer_field>>, METH_VARARGS, nullptr},
  {"append", safe<append>, METH_VARARGS, nullptr},
  {"end", safe<end>, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyMethodDef reader_methods[] = {
  {"fields", safe<fields<stream_reader, millrace_stream_reader_fields>>, METH_NOARGS, nullptr},
  {"field", safe<field<stream_reader, millrace_stream_reader_field>>, METH_VARARGS, nullptr},
  {"next", safe<next>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

PyObject* begin_create_stream(millrace_client* client, PyObject* args) {
  const char* name;
  PyObject* list;
  unsigned long long capacity, producers, seed, threshold;
  auto o = sized<millrace_stream_options>();
  if (!PyArg_ParseTuple(
        args, "sO!KssKKK:create_stream", &name, type_of<tensors>, &list, &capacity, &o.policy,
        &o.when_full, &producers, &seed, &threshold))
    return nullptr;
  o.capacity = capacity;
  o.producers = producers;
  o.seed = seed;
  o.threshold = threshold;
  auto& all = value_of<tensors>(list).all;
  return begun(list, [&](auto** out) {
    return millrace_stream_create(client, name, all.data(), all.size(), &o, out);
  });
}

PyObject* tuple_of(const millrace_stream_info& o) {
  return Py_BuildValue(
    "(KKKKKKKKKKKKKKKi)", o.capacity, o.size_bytes, o.producers, o.producers_ended, o.readers,
    o.appended, o.given, o.repeated, o.dropped, o.replaced, o.present, o.writing, o.reading,
    o.append_waits, o.take_waits, o.ended);
}

PyObject* describe_stream(millrace_client* client, PyObject* args) {
  const char* name;
  if (!PyArg_ParseTuple(args, "s:describe_stream", &name))
    return nullptr;
  auto o = sized<millrace_stream_info>();
  if (!succeeds([&] { return millrace_stream_describe(client, name, &o); }))
    return nullptr;
  return tuple_of(o);
}

PyObject* open_producer(millrace_client* client, PyObject* args) {
  const char* name;
  auto o = sized<millrace_producer_options>();
  if (!PyArg_ParseTuple(args, "sI:open_producer", &name, &o.in_flight))
    return nullptr;
  ref made{box<producer>()};
  if (!made)
    return nullptr;
  auto& handle = value_of<producer>(made.get()).handle;
  if (!succeeds([&] { return millrace_open_producer(client, name, &o, &handle); }))
    return nullptr;
  return made.release();
}

PyObject* open_stream_reader(millrace_client* client, PyObject* args) {
  const char* name;
  unsigned long long batch_size;
  auto o = sized<millrace_stream_reader_options>();
  if (!PyArg_ParseTuple(args, "sKI:open_stream_reader", &name, &batch_size, &o.batches))
    return nullptr;
  o.batch_size = batch_size;
  ref made{box<stream_reader>()};
  if (!made)
    return nullptr;
  auto& handle = value_of<stream_reader>(made.get()).handle;
  if (!succeeds([&] { return millrace_open_stream_reader(client, name, &o, &handle); }))
    return nullptr;
  return made.release();
}

bool add_streams(PyObject* module) {
  return add_type<producer>(
           module, "millrace._native.Producer", {{Py_tp_methods, producer_methods}}) &&
    add_type<stream_reader>(
           module, "millrace._native.StreamReader", {{Py_tp_methods, reader_methods}});
}

} // namespace millrace::python
