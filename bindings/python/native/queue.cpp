// Queues of tokens, for event loops and for the thread that runs callbacks.
#include "request.hpp"

#include <array>

namespace millrace::python {

namespace {

struct queue {
  millrace_queue* handle = nullptr;

  queue() = default;
  queue(queue&&) = delete;
  ~queue() { millrace_queue_release(handle); }
};

PyObject* make_queue(PyObject*, PyObject* args) {
  unsigned tokens_max = 0;
  if (!PyArg_ParseTuple(args, "I:queue", &tokens_max))
    return nullptr;
  ref made{box<queue>()};
  if (!made)
    return nullptr;
  auto& q = value_of<queue>(made.get());
  return succeeds([&] { return millrace_queue_create(tokens_max, &q.handle); }) ? made.release()
                                                                                : nullptr;
}

PyObject* fileno(PyObject* self, PyObject*) {
  return PyLong_FromLong(millrace_queue_fd(value_of<queue>(self).handle));
}

PyObject* add(PyObject* self, PyObject* args) {
  request* r;
  unsigned long long token;
  if (!PyArg_ParseTuple(args, "O&K:add", need<request>, &r, &token))
    return nullptr;
  auto code = millrace_queue_add(value_of<queue>(self).handle, r->handle, token);
  if (code != MILLRACE_OK)
    return fail(code);
  Py_RETURN_NONE;
}

// Returns the tokens that are there; waits for the first one at most so many milliseconds.
PyObject* poll(PyObject* self, PyObject* args) {
  long long timeout_ms;
  if (!PyArg_ParseTuple(args, "L:poll", &timeout_ms))
    return nullptr;
  std::array<std::uint64_t, 256> tokens;
  std::size_t taken = 0;
  auto keep = ref::to(self);
  auto* handle = value_of<queue>(self).handle;
  if (!succeeds([&] {
        return millrace_queue_poll(handle, tokens.data(), tokens.size(), timeout_ms, &taken);
      }))
    return nullptr;
  ref list{PyList_New(static_cast<Py_ssize_t>(taken))};
  for (std::size_t i = 0; list && i < taken; ++i) {
    auto* token = PyLong_FromUnsignedLongLong(tokens[i]);
    if (!token || PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), token) != 0)
      return nullptr;
  }
  return list.release();
}

PyMethodDef methods[] = {
  {"fileno", safe<fileno>, METH_NOARGS, nullptr},
  {"add", safe<add>, METH_VARARGS, nullptr},
  {"poll", safe<poll>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyMethodDef functions[] = {
  {"queue", safe<make_queue>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

bool add_queue(PyObject* module) {
  return add_type<queue>(module, "millrace._native.Queue", {{Py_tp_methods, methods}}) &&
    PyModule_AddFunctions(module, functions) == 0;
}

} // namespace millrace::python
