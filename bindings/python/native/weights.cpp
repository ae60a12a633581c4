// Weights: publishers and followers, which clients make.
#include "data.hpp"
#include "tensors.hpp"

namespace millrace::python {

namespace {

struct publisher {
  millrace_publisher* handle = nullptr;
  /// The registered tensors. Publications that read them keep them, too.
  ref keeps;

  publisher() = default;
  publisher(publisher&&) = delete;
  ~publisher() { millrace_publisher_release(handle); }
};

struct follower {
  millrace_follower* handle = nullptr;

  follower() = default;
  follower(follower&&) = delete;
  ~follower() { millrace_follower_release(handle); }
};

// Returns the two requests of a publication: staged, stored.
PyObject* publish(PyObject* self, PyObject* args) {
  unsigned long long version;
  if (!PyArg_ParseTuple(args, "K:publish", &version))
    return nullptr;
  auto keep = ref::to(self);
  auto& p = value_of<publisher>(self);
  return begun_in_two(p.keeps.get(), [&](auto** staged, auto** stored) {
    return millrace_publish(p.handle, version, staged, stored);
  });
}

PyObject* rebind(PyObject* self, PyObject* args) {
  PyObject* list;
  if (!PyArg_ParseTuple(args, "O!:rebind", type_of<tensors>, &list))
    return nullptr;
  auto keep = ref::to(self);
  auto& p = value_of<publisher>(self);
  auto& all = value_of<tensors>(list).all;
  if (!succeeds([&] { return millrace_publisher_rebind(p.handle, all.data(), all.size()); }))
    return nullptr;
  p.keeps = ref::to(list);
  Py_RETURN_NONE;
}

PyObject* next(PyObject* self, PyObject* args) {
  long long timeout_ms;
  if (!PyArg_ParseTuple(args, "L:next", &timeout_ms))
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<follower>(self).handle;
  return begun(
    nullptr, [&](auto** out) { return millrace_follower_next(handle, timeout_ms, out); });
}

PyObject* load(PyObject* self, PyObject* args) {
  PyObject* list;
  long long timeout_ms;
  if (!PyArg_ParseTuple(args, "O!L:load", type_of<tensors>, &list, &timeout_ms))
    return nullptr;
  auto keep = ref::to(self);
  auto* handle = value_of<follower>(self).handle;
  auto& all = value_of<tensors>(list).all;
  return begun(list, [&](auto** out) {
    return millrace_follower_load(handle, all.data(), all.size(), timeout_ms, out);
  });
}

PyMethodDef publisher_methods[] = {
  {"publish", safe<publish>, METH_VARARGS, nullptr},
  {"rebind", safe<rebind>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyMethodDef follower_methods[] = {
  {"next", safe<next>, METH_VARARGS, nullptr},
  {"load", safe<load>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

PyObject* make_publisher(millrace_client* client, PyObject* args) {
  const char* name;
  PyObject *list, *metadata;
  long long timeout_ms;
  auto o = sized<millrace_publisher_options>();
  if (!PyArg_ParseTuple(
        args, "ssO!OiL:publisher", &o.group, &name, type_of<tensors>, &list, &metadata,
        &o.checksums, &timeout_ms))
    return nullptr;
  pairs meta;
  if (!meta.read(metadata))
    return nullptr;
  o.timeout_ms = timeout_ms;
  o.metadata = meta.all.data();
  o.metadata_count = meta.all.size();
  ref made{box<publisher>()};
  if (!made)
    return nullptr;
  auto& p = value_of<publisher>(made.get());
  p.keeps = ref::to(list);
  auto& all = value_of<tensors>(list).all;
  if (!succeeds([&] {
        return millrace_publisher_create(client, name, all.data(), all.size(), &o, &p.handle);
      }))
    return nullptr;
  return made.release();
}

PyObject* make_follower(millrace_client* client, PyObject* args) {
  const char *group, *name;
  if (!PyArg_ParseTuple(args, "ss:follow", &group, &name))
    return nullptr;
  ref made{box<follower>()};
  if (!made)
    return nullptr;
  auto& handle = value_of<follower>(made.get()).handle;
  if (!succeeds([&] { return millrace_follow(client, group, name, &handle); }))
    return nullptr;
  return made.release();
}

bool add_weights(PyObject* module) {
  return add_type<publisher>(
           module, "millrace._native.Publisher", {{Py_tp_methods, publisher_methods}}) &&
    add_type<follower>(module, "millrace._native.Follower", {{Py_tp_methods, follower_methods}});
}

} // namespace millrace::python
