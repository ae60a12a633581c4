// Waits for requests, and reads what they have found.
#include "request.hpp"

#include "data.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace millrace::python {

namespace {

// Signals are looked at this often while a thread waits.
constexpr std::int64_t slice_ms = 50;
// Called with a request that is not over and that nothing else refers to; null: dropped. Kept for
// good: the interpreter ends before this library.
PyObject* keeper = nullptr;

// The requests that keep something alive. The interpreter's lock guards it.
std::unordered_set<PyObject*>& keeping() {
  static auto& all = *new std::unordered_set<PyObject*>; // outlives what is destroyed at the exit
  return all;
}

// Whether the request is over. Waits at most so long, without the lock.
bool wait_for(PyObject* self, std::int64_t timeout_ms) {
  auto& r = value_of<request>(self);
  if (r.over)
    return true;
  // Several threads may wait for a request, so it stays: no one frees it before the object goes.
  millrace_code code;
  {
    unlocked other_threads_run;
    code = millrace_request_wait(r.handle, timeout_ms);
    millrace_receipt receipt{};
    receipt.struct_size = sizeof(receipt);
    if (
      code == MILLRACE_DEADLINE_EXCEEDED &&
      millrace_request_receipt(r.handle, &receipt) == MILLRACE_BUSY)
      return false;
  }
  r.over = true;
  keeping().erase(self);
  r.keeps.clear();
  return true;
}

// Returns whether the request is over within so many seconds; None: however long it takes.
PyObject* wait(PyObject* self, PyObject* args) {
  PyObject* limit;
  if (!PyArg_ParseTuple(args, "O:wait", &limit))
    return nullptr;
  auto left_ms = INT64_MAX;
  if (limit != Py_None) {
    auto seconds = PyFloat_AsDouble(limit);
    if (PyErr_Occurred())
      return nullptr;
    if (std::isnan(seconds)) {
      PyErr_SetString(PyExc_ValueError, "the timeout is not a number");
      return nullptr;
    }
    left_ms = static_cast<std::int64_t>(std::ceil(std::clamp(seconds, 0.0, 1e12) * 1e3));
  }
  auto keep = ref::to(self);
  for (;;) {
    auto part = std::min(left_ms, slice_ms);
    if (wait_for(self, part))
      Py_RETURN_TRUE;
    if (PyErr_CheckSignals() != 0)
      return nullptr;
    if (left_ms != INT64_MAX && (left_ms -= part) <= 0)
      Py_RETURN_FALSE;
  }
}

PyObject* cancel(PyObject* self, PyObject*) {
  auto& r = value_of<request>(self);
  auto keep = ref::to(self);
  if (!r.over) {
    unlocked other_threads_run;
    millrace_cancel(r.handle);
  }
  wait_for(self, 0);
  Py_RETURN_NONE;
}

// Returns the exception of a request that has failed, else None.
PyObject* error(PyObject* self, PyObject*) {
  auto code = millrace_request_wait(value_of<request>(self).handle, 0);
  if (code == MILLRACE_OK)
    Py_RETURN_NONE;
  return error_of(code, millrace_error()).release();
}

PyObject* receipt(PyObject* self, PyObject*) {
  auto out = sized<millrace_receipt>();
  if (auto code = millrace_request_receipt(value_of<request>(self).handle, &out);
      code != MILLRACE_OK)
    return fail(code);
  return Py_BuildValue(
    "(zzzKKKKOOO)", out.name, out.provider, out.driver, out.version, out.step, out.size_bytes,
    out.stored_at_ns, out.durable ? Py_True : Py_False, out.verified ? Py_True : Py_False,
    out.complete ? Py_True : Py_False);
}

PyObject* extra(PyObject* self, PyObject*) {
  const void* bytes = nullptr;
  std::size_t count = 0;
  if (auto code = millrace_request_extra(value_of<request>(self).handle, &bytes, &count);
      code != MILLRACE_OK)
    return fail(code);
  return PyBytes_FromStringAndSize(static_cast<const char*>(bytes), static_cast<Py_ssize_t>(count));
}

// Returns the list of lines, each read by `read` and made an object by `make`: so many, or those
// before the first one that is not found.
template <class T, class Make>
PyObject* lines(
  PyObject* self, millrace_code (*read)(millrace_request*, std::size_t, T*), const Make& make,
  std::size_t count) {
  ref list{PyList_New(0)};
  for (std::size_t i = 0; list && i < count; ++i) {
    T line{};
    if constexpr (requires { line.struct_size; })
      line.struct_size = sizeof(T);
    auto code = read(value_of<request>(self).handle, i, &line);
    if (code == MILLRACE_NOT_FOUND)
      break;
    if (code != MILLRACE_OK)
      return fail(code);
    ref item{make(line)};
    if (!item || PyList_Append(list.get(), item.get()) != 0)
      return nullptr;
  }
  return list.release();
}

// For what the request has counted.
template <class T, class Make>
PyObject* lines(
  PyObject* self, millrace_code (*read)(millrace_request*, std::size_t, T*), const Make& make) {
  return lines(self, read, make, millrace_request_count(value_of<request>(self).handle));
}

PyObject* models(PyObject* self, PyObject*) {
  return lines<millrace_model>(self, millrace_request_model, [](const millrace_model& m) {
    return Py_BuildValue(
      "(zzKKKKO)", m.name, m.provider, m.version, m.size_bytes, m.tensors, m.stored_at_ns,
      m.pinned ? Py_True : Py_False);
  });
}

PyObject* runs(PyObject* self, PyObject*) {
  return lines<millrace_run>(self, millrace_request_run, [](const millrace_run& r) {
    return Py_BuildValue(
      "(zzLKIIIO)", r.name, r.provider, static_cast<long long>(r.newest_step), r.size_bytes,
      r.world_size, r.shards, r.complete_steps, r.in_use ? Py_True : Py_False);
  });
}

PyObject* steps(PyObject* self, PyObject*) {
  return lines<millrace_step>(self, millrace_request_step, [](const millrace_step& s) {
    return Py_BuildValue("(KKK)", s.step, s.size_bytes, s.saved_at_ns);
  });
}

PyObject* sets(PyObject* self, PyObject*) {
  return lines<millrace_set>(
    self, millrace_request_set, [](const millrace_set& s) { return tuple_of(s); });
}

// (name, node, owner, policy, what happens when it is full, time, the numbers of `describe_stream`)
PyObject* streams(PyObject* self, PyObject*) {
  return lines<millrace_stream_info>(
    self, millrace_request_stream, [](const millrace_stream_info& s) {
      return Py_BuildValue(
        "(szsssKN)", s.name, s.provider, s.owner, s.policy, s.when_full, s.created_at_ns,
        tuple_of(s));
    });
}

// Of a preload or a description.
PyObject* set_of(PyObject* self, PyObject*) {
  auto out = sized<millrace_set>();
  auto code = millrace_request_set(value_of<request>(self).handle, 0, &out);
  return code == MILLRACE_OK ? tuple_of(out) : fail(code);
}

// (path, why) of the files that a preload has left out.
PyObject* skipped(PyObject* self, PyObject*) {
  return lines<millrace_skipped_file>(
    self, millrace_request_skipped,
    [](const millrace_skipped_file& f) { return Py_BuildValue("(NN)", text(f.path), text(f.why)); },
    SIZE_MAX);
}

// (samples, damaged, the first ones)
PyObject* damage(PyObject* self, PyObject*) {
  auto out = sized<millrace_set_damage>();
  auto code = millrace_request_damage(value_of<request>(self).handle, &out);
  if (code != MILLRACE_OK)
    return fail(code);
  return Py_BuildValue(
    "(KKN)", out.samples, out.damaged,
    tuple_of(out.first, static_cast<int>(out.first_count)).release());
}

PyObject* text_or_none(const char* of) { return of ? text(of) : ref::to(Py_None).release(); }

// (node, by what, why not) of the parts of a set; one of the last two is None.
PyObject* access_parts(PyObject* self, PyObject*) {
  return lines<millrace_part_access>(
    self, millrace_request_part, [](const millrace_part_access& p) {
      return Py_BuildValue("(NNN)", text(p.node), text_or_none(p.by), text_or_none(p.why));
    });
}

PyObject* processors(PyObject* self, PyObject*) {
  return text_or_none(millrace_request_processors(value_of<request>(self).handle));
}

// Numbers of 64 bits: the bytes of samples, or their ids.
template <auto Get>
PyObject* numbers(PyObject* self, PyObject*) {
  const std::uint64_t* all = nullptr;
  std::size_t count = 0;
  auto code = Get(value_of<request>(self).handle, &all, &count);
  return code == MILLRACE_OK ? bytes_of(all, count * sizeof(std::uint64_t)) : fail(code);
}

// Returns a tuple, or None where there are no numbers.
PyObject* place_of(const std::uint64_t* numbers, std::int32_t rank) {
  return numbers ? tuple_of(numbers, rank).release() : ref::to(Py_None).release();
}

// (name, dtype, shape, offsets, global shape); the last two None for a tensor that is whole.
PyObject* tensors_of(PyObject* self, PyObject*) {
  return lines<millrace_tensor>(self, millrace_request_tensor, [](const millrace_tensor& t) {
    return Py_BuildValue(
      "(ziNNN)", t.name, t.dtype, tuple_of(t.shape, t.rank).release(), place_of(t.offsets, t.rank),
      place_of(t.global_shape, t.rank));
  });
}

PyObject* pair_of(const millrace_pair& pair) { return Py_BuildValue("(ss)", pair.key, pair.value); }

// The attributes of a layer, as a list of tuples.
ref attributes_of(const millrace_layer& l) {
  ref list{PyList_New(0)};
  for (std::size_t i = 0; list && i < l.attributes_count; ++i) {
    ref item{pair_of(l.attributes[i])};
    if (!item || PyList_Append(list.get(), item.get()) != 0)
      return {};
  }
  return list;
}

// (label or None, kind, attributes, inputs, identity)
PyObject* layers_of(PyObject* self, PyObject*) {
  return lines<millrace_layer>(
    self, millrace_request_layer,
    [](const millrace_layer& l) {
      return Py_BuildValue(
        "(zsNNy#)", l.label, l.kind, attributes_of(l).release(),
        tuple_of(l.inputs, static_cast<int>(l.inputs_count)).release(),
        reinterpret_cast<const char*>(l.id), static_cast<Py_ssize_t>(sizeof(l.id)));
    },
    SIZE_MAX);
}

// The index of each tensor's layer; an empty list where there is no architecture.
PyObject* tensor_layers(PyObject* self, PyObject*) {
  return lines<std::uint32_t>(self, millrace_request_tensor_layer, [](std::uint32_t layer) {
    return PyLong_FromUnsignedLong(layer);
  });
}

PyObject* pairs(
  PyObject* self, millrace_code (*read)(millrace_request*, std::size_t, millrace_pair*)) {
  return lines<millrace_pair>(self, read, pair_of, SIZE_MAX);
}

PyObject* metadata(PyObject* self, PyObject*) { return pairs(self, millrace_request_metadata); }
PyObject* axes(PyObject* self, PyObject*) { return pairs(self, millrace_request_axis); }

PyObject* silent(PyObject* self, PyObject*) {
  ref list{PyList_New(0)};
  for (std::size_t i = 0; list; ++i) {
    auto* line = millrace_request_silent(value_of<request>(self).handle, i);
    if (!line)
      break;
    ref item{text(line)};
    if (!item || PyList_Append(list.get(), item.get()) != 0)
      return nullptr;
  }
  return list.release();
}

PyObject* client(PyObject* self, PyObject*) {
  millrace_client* out = nullptr;
  auto code = millrace_request_client(value_of<request>(self).handle, &out);
  return code == MILLRACE_OK ? box_client(out) : fail(code);
}

PyObject* node(PyObject* self, PyObject*) {
  millrace_node* out = nullptr;
  auto code = millrace_request_node(value_of<request>(self).handle, &out);
  return code == MILLRACE_OK ? box_node(out) : fail(code);
}

PyObject* checkpointer(PyObject* self, PyObject* keeps) {
  millrace_checkpointer* out = nullptr;
  auto code = millrace_request_checkpointer(value_of<request>(self).handle, &out);
  return code == MILLRACE_OK ? box_checkpointer(out, keeps) : fail(code);
}

PyObject* set_reader(PyObject* self, PyObject*) {
  millrace_set_reader* out = nullptr;
  auto code = millrace_request_set_reader(value_of<request>(self).handle, &out);
  return code == MILLRACE_OK ? box_set_reader(out) : fail(code);
}

PyObject* group(PyObject* self, PyObject*) {
  millrace_group* out = nullptr;
  auto code = millrace_request_group(value_of<request>(self).handle, &out);
  return code == MILLRACE_OK ? box_group(out) : fail(code);
}

// None at the end of an epoch.
PyObject* batch(PyObject* self, PyObject*) {
  millrace_batch* out = nullptr;
  if (auto code = millrace_request_batch(value_of<request>(self).handle, &out); code != MILLRACE_OK)
    return fail(code);
  return out ? box_batch(out) : ref::to(Py_None).release();
}

// Hands what an object had, which nothing refers to and whose tensors are in use, to the keeper.
// Where that fails the tensors stay for good.
void hand_over(request& r) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  ref successor{box<request>()};
  if (successor) {
    auto& s = value_of<request>(successor.get());
    std::swap(s.handle, r.handle);
    s.keeps = std::move(r.keeps);
    keeping().insert(successor.get());
    ref done{PyObject_CallFunctionObjArgs(keeper, successor.get(), nullptr)};
    if (!done) {
      PyErr_WriteUnraisable(keeper);
      successor.release();
    }
  } else {
    r.handle = nullptr;
    r.keeps.release();
  }
  PyErr_Restore(type, value, trace);
}

void drop(PyObject* self) {
  auto& r = value_of<request>(self);
  // Before anything that lets other threads run: they must not find it any more.
  auto kept = keeping().erase(self) > 0;
  if (kept && keeper && !wait_for(self, 0))
    hand_over(r);
  destroy<request>(self);
}

PyObject* set_keeper(PyObject*, PyObject* callable) {
  keeper = callable == Py_None ? nullptr : ref::to(callable).release();
  Py_RETURN_NONE;
}

// Returns the requests that are not over and use tensors.
PyObject* open_requests(PyObject*, PyObject*) {
  ref list{PyList_New(0)};
  for (auto* one : keeping())
    if (!list || PyList_Append(list.get(), one) != 0)
      return nullptr;
  return list.release();
}

PyMethodDef methods[] = {
  {"wait", safe<wait>, METH_VARARGS, nullptr},
  {"cancel", safe<cancel>, METH_NOARGS, nullptr},
  {"error", safe<error>, METH_NOARGS, nullptr},
  {"receipt", safe<receipt>, METH_NOARGS, nullptr},
  {"extra", safe<extra>, METH_NOARGS, nullptr},
  {"models", safe<models>, METH_NOARGS, nullptr},
  {"runs", safe<runs>, METH_NOARGS, nullptr},
  {"steps", safe<steps>, METH_NOARGS, nullptr},
  {"tensors", safe<tensors_of>, METH_NOARGS, nullptr},
  {"layers", safe<layers_of>, METH_NOARGS, nullptr},
  {"tensor_layers", safe<tensor_layers>, METH_NOARGS, nullptr},
  {"metadata", safe<metadata>, METH_NOARGS, nullptr},
  {"axes", safe<axes>, METH_NOARGS, nullptr},
  {"sets", safe<sets>, METH_NOARGS, nullptr},
  {"streams", safe<streams>, METH_NOARGS, nullptr},
  {"set", safe<set_of>, METH_NOARGS, nullptr},
  {"skipped", safe<skipped>, METH_NOARGS, nullptr},
  {"sizes", safe<numbers<millrace_request_sizes>>, METH_NOARGS, nullptr},
  {"samples", safe<numbers<millrace_request_samples>>, METH_NOARGS, nullptr},
  {"damage", safe<damage>, METH_NOARGS, nullptr},
  {"access_parts", safe<access_parts>, METH_NOARGS, nullptr},
  {"processors", safe<processors>, METH_NOARGS, nullptr},
  {"silent", safe<silent>, METH_NOARGS, nullptr},
  {"client", safe<client>, METH_NOARGS, nullptr},
  {"node", safe<node>, METH_NOARGS, nullptr},
  {"checkpointer", safe<checkpointer>, METH_O, nullptr},
  {"set_reader", safe<set_reader>, METH_NOARGS, nullptr},
  {"group", safe<group>, METH_NOARGS, nullptr},
  {"batch", safe<batch>, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyMethodDef functions[] = {
  {"set_keeper", safe<set_keeper>, METH_O, nullptr},
  {"open_requests", safe<open_requests>, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

void keep_alive(PyObject* self, PyObject* what) {
  if (!what)
    return;
  value_of<request>(self).keeps = ref::to(what);
  keeping().insert(self);
}

bool add_request(PyObject* module) {
  return add_type<request>(module, "millrace._native.Request", {{Py_tp_methods, methods}}, &drop) &&
    PyModule_AddFunctions(module, functions) == 0;
}

} // namespace millrace::python
