// Groups that broadcast, which clients join.
#include "data.hpp"
#include "tensors.hpp"

namespace millrace::python {

namespace {

struct group {
  millrace_group* handle = nullptr;

  group() = default;
  group(group&&) = delete;
  ~group() { millrace_group_release(handle); }
};

PyObject* broadcast(PyObject* self, PyObject* args) {
  PyObject* list;
  unsigned int root;
  long long timeout_ms;
  if (!PyArg_ParseTuple(args, "O!IL:broadcast", type_of<tensors>, &list, &root, &timeout_ms))
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<group>(self).handle;
  auto& all = value_of<tensors>(list).all;
  return begun(list, [&](auto** out) {
    return millrace_group_broadcast(handle, all.data(), all.size(), root, timeout_ms, out);
  });
}

PyObject* renew(PyObject* self, PyObject* args) {
  long long timeout_ms;
  if (!PyArg_ParseTuple(args, "L:renew", &timeout_ms))
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<group>(self).handle;
  return begun(self, [&](auto** out) { return millrace_group_renew(handle, timeout_ms, out); });
}

PyObject* epoch(PyObject* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(millrace_group_epoch(value_of<group>(self).handle));
}

PyObject* ranks(PyObject* self, PyObject*) {
  auto* handle = value_of<group>(self).handle;
  auto size = millrace_group_size(handle);
  ref list{PyList_New(0)};
  for (std::size_t i = 0; list && i < size; ++i) {
    std::uint32_t rank = 0;
    if (auto code = millrace_group_rank(handle, i, &rank); code != MILLRACE_OK)
      return fail(code);
    ref item{PyLong_FromUnsignedLong(rank)};
    if (!item || PyList_Append(list.get(), item.get()) != 0)
      return nullptr;
  }
  return list.release();
}

PyMethodDef methods[] = {
  {"broadcast", safe<broadcast>, METH_VARARGS, nullptr},
  {"renew", safe<renew>, METH_VARARGS, nullptr},
  {"epoch", safe<epoch>, METH_NOARGS, nullptr},
  {"ranks", safe<ranks>, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

PyObject* begin_join_group(millrace_client* client, PyObject* args) {
  const char* name;
  long long timeout_ms;
  auto o = sized<millrace_group_options>();
  if (!PyArg_ParseTuple(
        args, "sIIzzL:join_group", &name, &o.rank, &o.size, &o.node, &o.who, &timeout_ms))
    return nullptr;
  o.timeout_ms = timeout_ms;
  return begun(nullptr, [&](auto** out) { return millrace_join_group(client, name, &o, out); });
}

PyObject* box_group(millrace_group* handle) {
  auto* made = box<group>();
  if (made)
    value_of<group>(made).handle = handle;
  else
    millrace_group_release(handle);
  return made;
}

bool add_groups(PyObject* module) {
  return add_type<group>(module, "millrace._native.Group", {{Py_tp_methods, methods}});
}

} // namespace millrace::python
