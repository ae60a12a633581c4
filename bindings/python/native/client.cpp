// Clients: what they begin, as methods that return requests.
#include "data.hpp"
#include "tensors.hpp"

#include <string>

namespace millrace::python {

namespace {

struct client {
  millrace_client* handle = nullptr;

  client() = default;
  client(client&&) = delete;
  ~client() { millrace_release(handle); }
};

// Begins `call(handle, &request)`. The object of the client stays as long as the call.
template <class F>
PyObject* begin(PyObject* self, PyObject* keeps, F&& call) {
  auto keep = ref::to(self);
  auto* handle = value_of<client>(self).handle;
  return begun(keeps, [&](millrace_request** out) { return call(handle, out); });
}

PyObject* put(PyObject* self, PyObject* args) {
  const char *model, *group;
  PyObject *list, *metadata, *graph;
  int pinned, checksums;
  long long timeout_ms;
  if (!PyArg_ParseTuple(
        args, "sO!zLpiOO:put", &model, type_of<tensors>, &list, &group, &timeout_ms, &pinned,
        &checksums, &metadata, &graph))
    return nullptr;
  layers* its_layers = nullptr;
  if (graph != Py_None && !need<layers>(graph, &its_layers))
    return nullptr;
  pairs meta;
  if (!meta.read(metadata))
    return nullptr;
  millrace_put_options o{};
  o.struct_size = sizeof(o);
  o.group = group;
  o.timeout_ms = timeout_ms;
  o.pinned = pinned;
  o.checksums = checksums;
  o.metadata = meta.all.data();
  o.metadata_count = meta.all.size();
  if (its_layers) {
    o.layers = its_layers->all.data();
    o.layers_count = its_layers->all.size();
  }
  auto& all = value_of<tensors>(list).all;
  return begin(self, list, [&](auto* c, auto** out) {
    return millrace_put(c, model, all.data(), all.size(), &o, out);
  });
}

millrace_get_options get_options(const char* group, long long timeout_ms, std::uint64_t version) {
  millrace_get_options o{};
  o.struct_size = sizeof(o);
  o.group = group;
  o.timeout_ms = timeout_ms;
  o.version = version;
  return o;
}

PyObject* get(PyObject* self, PyObject* args) {
  const char *model, *group;
  PyObject* list;
  long long timeout_ms;
  unsigned long long version;
  if (!PyArg_ParseTuple(
        args, "sO!zLK:get", &model, type_of<tensors>, &list, &group, &timeout_ms, &version))
    return nullptr;
  auto o = get_options(group, timeout_ms, version);
  auto& all = value_of<tensors>(list).all;
  return begin(self, list, [&](auto* c, auto** out) {
    return millrace_get(c, model, all.data(), all.size(), &o, out);
  });
}

PyObject* await_newer(PyObject* self, PyObject* args) {
  const char *group, *model;
  unsigned long long newer_than;
  long long timeout_ms;
  if (!PyArg_ParseTuple(args, "zsKL:await_newer", &group, &model, &newer_than, &timeout_ms))
    return nullptr;
  return begin(self, nullptr, [&](auto* c, auto** out) {
    return millrace_await(c, group, model, newer_than, timeout_ms, out);
  });
}

PyObject* describe(PyObject* self, PyObject* args) {
  const char *group, *model;
  unsigned long long version;
  if (!PyArg_ParseTuple(args, "zsK:describe", &group, &model, &version))
    return nullptr;
  return begin(self, nullptr, [&](auto* c, auto** out) {
    return millrace_describe(c, group, model, version, out);
  });
}

// The calls that take a group and a name or a prefix.
using named = millrace_code (*)(millrace_client*, const char*, const char*, millrace_request**);
template <named call>
PyObject* by_name(PyObject* self, PyObject* args) {
  const char *group, *name;
  if (!PyArg_ParseTuple(args, "zz", &group, &name))
    return nullptr;
  return begin(self, nullptr, [&](auto* c, auto** out) { return call(c, group, name, out); });
}

PyObject* pin(PyObject* self, PyObject* args) {
  const char *group, *model;
  int pinned;
  if (!PyArg_ParseTuple(args, "zsp:pin", &group, &model, &pinned))
    return nullptr;
  return begin(
    self, nullptr, [&](auto* c, auto** out) { return millrace_pin(c, group, model, pinned, out); });
}

PyObject* register_shard(PyObject* self, PyObject* args) {
  PyObject *list, *axes, *metadata;
  millrace_checkpoint_options o{};
  long long timeout_ms;
  unsigned long long life;
  if (!PyArg_ParseTuple(
        args, "O!szIIIiLKOO:register", type_of<tensors>, &list, &o.name, &o.group, &o.rank,
        &o.world_size, &o.keep, &o.busy, &timeout_ms, &life, &axes, &metadata))
    return nullptr;
  pairs axis, meta;
  if (!axis.read(axes) || !meta.read(metadata))
    return nullptr;
  o.struct_size = sizeof(o);
  o.timeout_ms = timeout_ms;
  o.life = life;
  o.axes = axis.all.data();
  o.axes_count = axis.all.size();
  o.metadata = meta.all.data();
  o.metadata_count = meta.all.size();
  auto& all = value_of<tensors>(list).all;
  return begin(self, list, [&](auto* c, auto** out) {
    return millrace_register_begin(c, &o, all.data(), all.size(), out);
  });
}

PyObject* await_step(PyObject* self, PyObject* args) {
  const char *group, *model;
  long long newer_than, timeout_ms;
  if (!PyArg_ParseTuple(args, "zsLL:await_step", &group, &model, &newer_than, &timeout_ms))
    return nullptr;
  return begin(self, nullptr, [&](auto* c, auto** out) {
    return millrace_await_step(c, group, model, newer_than, timeout_ms, out);
  });
}

PyObject* get_shard(PyObject* self, PyObject* args) {
  const char *model, *group;
  unsigned rank;
  long long step, timeout_ms;
  PyObject* list;
  if (!PyArg_ParseTuple(
        args, "sILO!zL:get_shard", &model, &rank, &step, type_of<tensors>, &list, &group,
        &timeout_ms))
    return nullptr;
  auto o = get_options(group, timeout_ms, 0);
  auto& all = value_of<tensors>(list).all;
  return begin(self, list, [&](auto* c, auto** out) {
    return millrace_get_shard(c, model, rank, step, all.data(), all.size(), &o, out);
  });
}

PyObject* get_global(PyObject* self, PyObject* args) {
  const char *model, *group;
  long long step, timeout_ms;
  PyObject* list;
  if (!PyArg_ParseTuple(
        args, "sLO!zL:get_global", &model, &step, type_of<tensors>, &list, &group, &timeout_ms))
    return nullptr;
  auto o = get_options(group, timeout_ms, 0);
  auto& all = value_of<tensors>(list).all;
  return begin(self, list, [&](auto* c, auto** out) {
    return millrace_get_global(c, model, step, all.data(), all.size(), &o, out);
  });
}

PyObject* describe_shard(PyObject* self, PyObject* args) {
  const char *group, *model;
  unsigned rank;
  long long step;
  if (!PyArg_ParseTuple(args, "zsIL:describe_shard", &group, &model, &rank, &step))
    return nullptr;
  return begin(self, nullptr, [&](auto* c, auto** out) {
    return millrace_describe_shard(c, group, model, rank, step, out);
  });
}

PyObject* erase_step(PyObject* self, PyObject* args) {
  const char *group, *model;
  unsigned long long step;
  if (!PyArg_ParseTuple(args, "zsK:erase_step", &group, &model, &step))
    return nullptr;
  return begin(self, nullptr, [&](auto* c, auto** out) {
    return millrace_erase_step(c, group, model, step, out);
  });
}

// The calls whose arguments another source reads.
using elsewhere = PyObject* (*)(millrace_client*, PyObject*);
template <elsewhere call>
PyObject* passed_on(PyObject* self, PyObject* args) {
  auto keep = ref::to(self);
  return call(value_of<client>(self).handle, args);
}

// The calls that take the name of a working set or a stream, or the beginning of names.
using of_set = millrace_code (*)(millrace_client*, const char*, millrace_request**);
template <of_set call>
PyObject* by_set(PyObject* self, PyObject* args) {
  const char* name;
  if (!PyArg_ParseTuple(args, "s", &name))
    return nullptr;
  return begin(self, nullptr, [&](auto* c, auto** out) { return call(c, name, out); });
}

// Returns the request that gives the client. `options` is (secret, timeout, timeout of connecting,
// bytes of staging, certificate, key, authority, users).
PyObject* connect(PyObject*, PyObject* args) {
  const char* address;
  millrace_client_options o{};
  PyObject* users;
  long long timeout_ms, connect_timeout_ms;
  unsigned long long staging_bytes;
  if (!PyArg_ParseTuple(
        args, "zzLLKzzzO:connect", &address, &o.secret, &timeout_ms, &connect_timeout_ms,
        &staging_bytes, &o.certificate, &o.key, &o.authority, &users))
    return nullptr;
  texts trusted;
  if (!trusted.read(users))
    return nullptr;
  o.struct_size = sizeof(o);
  o.timeout_ms = timeout_ms;
  o.connect_timeout_ms = connect_timeout_ms;
  o.staging_bytes = staging_bytes;
  o.trust_users = trusted.all.data();
  o.trust_users_count = trusted.all.size();
  return begun(nullptr, [&](auto** out) { return millrace_connect_begin(address, &o, out); });
}

PyObject* open(PyObject*, PyObject* args) {
  const char* file;
  if (!PyArg_ParseTuple(args, "s:open", &file))
    return nullptr;
  millrace_client* handle = nullptr;
  if (!succeeds([&] { return millrace_open(file, &handle); }))
    return nullptr;
  return box_client(handle);
}

PyMethodDef methods[] = {
  {"put", safe<put>, METH_VARARGS, nullptr},
  {"get", safe<get>, METH_VARARGS, nullptr},
  {"await_newer", safe<await_newer>, METH_VARARGS, nullptr},
  {"describe", safe<describe>, METH_VARARGS, nullptr},
  {"list", safe<by_name<millrace_list>>, METH_VARARGS, nullptr},
  {"erase", safe<by_name<millrace_erase>>, METH_VARARGS, nullptr},
  {"pin", safe<pin>, METH_VARARGS, nullptr},
  {"register", safe<register_shard>, METH_VARARGS, nullptr},
  {"await_step", safe<await_step>, METH_VARARGS, nullptr},
  {"get_shard", safe<get_shard>, METH_VARARGS, nullptr},
  {"get_global", safe<get_global>, METH_VARARGS, nullptr},
  {"list_runs", safe<by_name<millrace_list_runs>>, METH_VARARGS, nullptr},
  {"list_steps", safe<by_name<millrace_list_steps>>, METH_VARARGS, nullptr},
  {"describe_shard", safe<describe_shard>, METH_VARARGS, nullptr},
  {"erase_run", safe<by_name<millrace_erase_run>>, METH_VARARGS, nullptr},
  {"erase_step", safe<erase_step>, METH_VARARGS, nullptr},
  {"preload", safe<passed_on<begin_preload>>, METH_VARARGS, nullptr},
  {"append_to_set", safe<passed_on<begin_append_to_set>>, METH_VARARGS, nullptr},
  {"describe_set", safe<by_set<millrace_describe_set>>, METH_VARARGS, nullptr},
  {"create_stream", safe<passed_on<begin_create_stream>>, METH_VARARGS, nullptr},
  {"describe_window", safe<passed_on<describe_window>>, METH_VARARGS, nullptr},
  {"describe_access", safe<passed_on<begin_describe_access>>, METH_VARARGS, nullptr},
  {"describe_stream", safe<passed_on<describe_stream>>, METH_VARARGS, nullptr},
  {"open_producer", safe<passed_on<open_producer>>, METH_VARARGS, nullptr},
  {"open_stream_reader", safe<passed_on<open_stream_reader>>, METH_VARARGS, nullptr},
  {"end_stream", safe<by_set<millrace_stream_end>>, METH_VARARGS, nullptr},
  {"remove_stream", safe<by_set<millrace_stream_remove>>, METH_VARARGS, nullptr},
  {"list_streams", safe<by_set<millrace_list_streams>>, METH_VARARGS, nullptr},
  {"list_sets", safe<by_set<millrace_list_sets>>, METH_VARARGS, nullptr},
  {"unload", safe<by_set<millrace_unload>>, METH_VARARGS, nullptr},
  {"open_set", safe<passed_on<begin_open_set>>, METH_VARARGS, nullptr},
  {"publisher", safe<passed_on<make_publisher>>, METH_VARARGS, nullptr},
  {"follow", safe<passed_on<make_follower>>, METH_VARARGS, nullptr},
  {"join_group", safe<passed_on<begin_join_group>>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyMethodDef functions[] = {
  {"connect", safe<connect>, METH_VARARGS, nullptr},
  {"open", safe<open>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

PyObject* box_client(millrace_client* handle) {
  auto* made = box<client>();
  if (made)
    value_of<client>(made).handle = handle;
  else
    millrace_release(handle);
  return made;
}

bool add_client(PyObject* module) {
  return add_type<client>(module, "millrace._native.Client", {{Py_tp_methods, methods}}) &&
    PyModule_AddFunctions(module, functions) == 0;
}

} // namespace millrace::python
