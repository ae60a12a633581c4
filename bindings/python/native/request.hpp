// A request, what it keeps alive, and how it is waited for. Made by the methods that begin
// operations.
#pragma once

#include "object.hpp"

namespace millrace::python {

struct request {
  millrace_request* handle = nullptr;
  /// The tensors in use, or what has them, until the request is over.
  ref keeps;
  bool over = false;

  request() = default;
  request(request&&) = delete;
  ~request() { millrace_detach(&handle); }
};

/// Lets the request of an object keep `what` alive until it is over.
void keep_alive(PyObject* self, PyObject* what);

/// Returns the object of a request that `begin(&handle)` begins, and that keeps `keeps` alive; null
/// with an exception.
template <class F>
PyObject* begun(PyObject* keeps, F&& begin) {
  ref made{box<request>()};
  if (!made)
    return nullptr;
  auto& r = value_of<request>(made.get());
  if (!succeeds([&] { return begin(&r.handle); }))
    return nullptr;
  keep_alive(made.get(), keeps);
  return made.release();
}

/// Returns the two objects of an operation that `begin(&first, &second)` begins. Each keeps
/// `keeps` alive. Null with an exception.
template <class F>
PyObject* begun_in_two(PyObject* keeps, F&& begin) {
  ref first{box<request>()}, second{box<request>()};
  if (!first || !second)
    return nullptr;
  auto **one = &value_of<request>(first.get()).handle,
       **two = &value_of<request>(second.get()).handle;
  if (!succeeds([&] { return begin(one, two); }))
    return nullptr;
  keep_alive(first.get(), keeps);
  keep_alive(second.get(), keeps);
  return Py_BuildValue("(NN)", first.release(), second.release());
}

/// The objects of a client, a node and a checkpointer.
PyObject* box_client(millrace_client* client);
PyObject* box_node(millrace_node* node);
PyObject* box_checkpointer(millrace_checkpointer* checkpointer, PyObject* keeps);

} // namespace millrace::python
