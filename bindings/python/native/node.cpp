// Nodes that run in this process.
#include "request.hpp"

namespace millrace::python {

namespace {

struct node {
  millrace_node* handle = nullptr;

  node() = default;
  node(node&&) = delete;
  ~node() { millrace_node_release(handle); }
};

PyObject* make_client(PyObject* self, PyObject*) {
  millrace_client* out = nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<node>(self).handle;
  if (!succeeds([&] { return millrace_node_client(handle, &out); }))
    return nullptr;
  return box_client(out);
}

PyObject* address(PyObject* self, PyObject*) {
  return PyUnicode_FromString(millrace_node_address(value_of<node>(self).handle));
}

PyObject* stop(PyObject* self, PyObject*) {
  auto keep = ref::to(self);
  auto* handle = value_of<node>(self).handle;
  return begun(nullptr, [&](auto** out) { return millrace_node_stop(handle, out); });
}

PyObject* embed(PyObject*, PyObject* args) {
  const char *file, *name;
  if (!PyArg_ParseTuple(args, "sz:embed", &file, &name))
    return nullptr;
  return begun(nullptr, [&](auto** out) { return millrace_embed_begin(file, name, out); });
}

PyMethodDef methods[] = {
  {"client", safe<make_client>, METH_NOARGS, nullptr},
  {"address", safe<address>, METH_NOARGS, nullptr},
  {"stop", safe<stop>, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyMethodDef functions[] = {
  {"embed", safe<embed>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

PyObject* box_node(millrace_node* handle) {
  auto* made = box<node>();
  if (made)
    value_of<node>(made).handle = handle;
  else
    millrace_node_release(handle);
  return made;
}

bool add_node(PyObject* module) {
  return add_type<node>(module, "millrace._native.Node", {{Py_tp_methods, methods}}) &&
    PyModule_AddFunctions(module, functions) == 0;
}

} // namespace millrace::python
