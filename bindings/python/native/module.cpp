// The module `millrace._native`: the C interface as objects of Python. Used by the package
// `millrace` alone, which gives arguments their names, defaults and checks.
#include "object.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

namespace millrace::python {

namespace {

// Makes the exception of a code and a text. Kept for good, since the interpreter ends before this
// library.
PyObject* factory = nullptr;

PyObject* set_errors(PyObject*, PyObject* callable) {
  factory = ref::to(callable).release();
  Py_RETURN_NONE;
}

// The thread that ends the interpreter; 0: none yet.
std::atomic<pthread_t> ending = 0;

// The threads that take the lock, and may not have seen that the interpreter ends.
std::atomic<int> coming_back = 0;

// From now on no other thread comes back. Those that do so already have the lock before this
// returns.
PyObject* set_ending(PyObject*, PyObject*) {
  constexpr int waits_max = 1000;
  ending = pthread_self();
  auto* state = PyEval_SaveThread();
  for (int i = 0; coming_back > 0 && i < waits_max; ++i)
    usleep(1000);
  PyEval_RestoreThread(state);
  Py_RETURN_NONE;
}

PyObject* code_name(PyObject*, PyObject* code) {
  auto number = PyLong_AsLong(code);
  if (PyErr_Occurred())
    return nullptr;
  return PyUnicode_FromString(millrace_code_name(static_cast<millrace_code>(number)));
}

PyObject* version(PyObject*, PyObject*) { return PyUnicode_FromString(millrace_version()); }

// Returns (rank, world size, local rank, local world size, restart count, life, launcher, run id).
PyObject* job(PyObject*, PyObject*) {
  auto info = sized<millrace_job_info>();
  if (auto code = millrace_job(&info); code != MILLRACE_OK)
    return fail(code);
  return Py_BuildValue(
    "(LLLLLKss)", static_cast<long long>(info.rank), static_cast<long long>(info.world_size),
    static_cast<long long>(info.local_rank), static_cast<long long>(info.local_world_size),
    static_cast<long long>(info.restart_count), static_cast<unsigned long long>(info.life),
    info.launcher, info.run_id);
}

PyMethodDef functions[] = {
  {"set_ending", safe<set_ending>, METH_NOARGS, nullptr},
  {"set_errors", safe<set_errors>, METH_O, nullptr},
  {"code_name", safe<code_name>, METH_O, nullptr},
  {"version", safe<version>, METH_NOARGS, nullptr},
  {"job", safe<job>, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

void unlocked::come_back(PyThreadState* state) {
  // Either this thread sees the end, or the one that ends sees this one; see `set_ending`.
  ++coming_back;
  if (auto by = ending.load(); by != 0 && !pthread_equal(by, pthread_self())) {
    --coming_back;
    for (;;)
      pause();
  }
  PyEval_RestoreThread(state);
  --coming_back;
}

PyObject* text(const char* of) {
  return PyUnicode_DecodeUTF8(of, static_cast<Py_ssize_t>(std::strlen(of)), "replace");
}

ref error_of(millrace_code code, const char* said) {
  ref words{text(said)};
  ref number{PyLong_FromLong(code)};
  if (!words || !number || !factory)
    return {};
  return ref{PyObject_CallFunctionObjArgs(factory, number.get(), words.get(), nullptr)};
}

PyObject* fail(millrace_code code) {
  if (auto error = error_of(code, millrace_error()))
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  else if (!PyErr_Occurred())
    PyErr_SetString(PyExc_RuntimeError, "millrace: the package has not told its exceptions");
  return nullptr;
}

} // namespace millrace::python

PyMODINIT_FUNC PyInit__native() {
  using namespace millrace::python;
  static PyModuleDef definition{
    PyModuleDef_HEAD_INIT,
    "millrace._native",
    nullptr,
    -1,
    functions,
    nullptr,
    nullptr,
    nullptr,
    nullptr};
  ref module{PyModule_Create(&definition)};
  if (!module)
    return nullptr;
  // Other threads of the parent do not come back in a child.
  pthread_atfork(nullptr, nullptr, [] { coming_back = 0; });
  for (auto add :
       {add_tensors, add_layers, add_view, add_request, add_queue, add_client, add_node,
        add_checkpointer, add_watch, add_sets, add_loaders, add_streams, add_weights, add_groups})
    if (!add(module.get()))
      return nullptr;
  return module.release();
}
