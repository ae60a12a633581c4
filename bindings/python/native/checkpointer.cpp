// Checkpointers: saves, fences and restores of a registered shard.
#include "request.hpp"
#include "tensors.hpp"

namespace millrace::python {

namespace {

struct checkpointer {
  millrace_checkpointer* handle = nullptr;
  /// The registered tensors. Requests that read or write them keep them, too.
  ref keeps;

  checkpointer() = default;
  checkpointer(checkpointer&&) = delete;
  ~checkpointer() { millrace_checkpointer_release(handle); }
};

// Returns the two requests of a save: staged, durable. `stream` is the number of a CUDA stream, or
// None.
PyObject* save(PyObject* self, PyObject* args) {
  unsigned long long step;
  unsigned flags;
  const char* extra;
  Py_ssize_t extra_bytes;
  PyObject* stream;
  if (!PyArg_ParseTuple(args, "KIy#O:save", &step, &flags, &extra, &extra_bytes, &stream))
    return nullptr;
  void* cuda_stream = nullptr;
  if (stream != Py_None) {
    cuda_stream = PyLong_AsVoidPtr(stream);
    if (PyErr_Occurred())
      return nullptr;
  }
  auto& c = value_of<checkpointer>(self);
  auto size = static_cast<std::size_t>(extra_bytes);
  return begun_in_two(c.keeps.get(), [&](auto** staged, auto** durable) {
    return stream == Py_None
      ? millrace_save(c.handle, step, flags, extra, size, staged, durable)
      : millrace_save_after(c.handle, cuda_stream, step, flags, extra, size, staged, durable);
  });
}

PyObject* fence(PyObject* self, PyObject*) {
  auto* handle = value_of<checkpointer>(self).handle;
  auto keep = ref::to(self);
  return begun(nullptr, [&](auto** out) { return millrace_fence(handle, out); });
}

PyObject* fence_stream(PyObject* self, PyObject* stream) {
  auto* cuda_stream = PyLong_AsVoidPtr(stream);
  if (PyErr_Occurred())
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<checkpointer>(self).handle;
  if (!succeeds([&] { return millrace_fence_stream(handle, cuda_stream); }))
    return nullptr;
  Py_RETURN_NONE;
}

PyObject* rebind(PyObject* self, PyObject* args) {
  PyObject* list;
  if (!PyArg_ParseTuple(args, "O!:rebind", type_of<tensors>, &list))
    return nullptr;
  auto keep = ref::to(self);
  auto& c = value_of<checkpointer>(self);
  auto& all = value_of<tensors>(list).all;
  if (!succeeds([&] { return millrace_rebind(c.handle, all.data(), all.size()); }))
    return nullptr;
  c.keeps = ref::to(list);
  Py_RETURN_NONE;
}

PyObject* restore(PyObject* self, PyObject* args) {
  long long step;
  if (!PyArg_ParseTuple(args, "L:restore", &step))
    return nullptr;
  auto& c = value_of<checkpointer>(self);
  auto keep = ref::to(self);
  return begun(c.keeps.get(), [&](auto** out) { return millrace_restore(c.handle, step, out); });
}

PyObject* close(PyObject* self, PyObject* args) {
  int finished;
  if (!PyArg_ParseTuple(args, "p:close", &finished))
    return nullptr;
  auto& c = value_of<checkpointer>(self);
  auto keep = ref::to(self);
  // A save in flight still reads them.
  return begun(c.keeps.get(), [&](auto** out) { return millrace_close(c.handle, finished, out); });
}

PyMethodDef methods[] = {
  {"save", safe<save>, METH_VARARGS, nullptr},
  {"fence", safe<fence>, METH_NOARGS, nullptr},
  {"fence_stream", safe<fence_stream>, METH_O, nullptr},
  {"rebind", safe<rebind>, METH_VARARGS, nullptr},
  {"restore", safe<restore>, METH_VARARGS, nullptr},
  {"close", safe<close>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

PyObject* box_checkpointer(millrace_checkpointer* handle, PyObject* keeps) {
  auto* made = box<checkpointer>();
  if (!made) {
    millrace_checkpointer_release(handle);
    return nullptr;
  }
  auto& c = value_of<checkpointer>(made);
  c.handle = handle;
  c.keeps = ref::to(keeps);
  return made;
}

bool add_checkpointer(PyObject* module) {
  return add_type<checkpointer>(
    module, "millrace._native.Checkpointer", {{Py_tp_methods, methods}});
}

} // namespace millrace::python
