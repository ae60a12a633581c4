// What all types of the native module are made of: counted references, objects that hold a C++
// value, and failures as exceptions. Included by every source of the module.
//
// The module uses the limited API of Python 3.11 alone, so one file loads in that version and all
// later ones.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <millrace.h>

#include <cstdint>
#include <exception>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace::python {

/// A counted reference, or null.
class ref {
public:
  ref() = default;
  /// Takes over a reference that the caller owns.
  explicit ref(PyObject* owned) noexcept : object_(owned) {}
  ref(ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  ref& operator=(ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~ref() { Py_XDECREF(object_); }

  /// Returns a reference of its own to an object that somebody else owns.
  static ref to(PyObject* borrowed) noexcept {
    Py_XINCREF(borrowed);
    return ref{borrowed};
  }

  PyObject* get() const noexcept { return object_; }
  PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  void clear() noexcept { ref{std::move(*this)}; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

private:
  PyObject* object_ = nullptr;
};

/// Lets other threads of Python run while this one is in the library.
class unlocked {
public:
  unlocked() : state_(PyEval_SaveThread()) {}
  unlocked(const unlocked&) = delete;
  unlocked& operator=(const unlocked&) = delete;
  /// A daemon thread that comes back while the interpreter ends stays here, as in later versions of
  /// Python. Earlier ones would unwind it, and that may not pass a destructor.
  ~unlocked() { come_back(state_); }

private:
  static void come_back(PyThreadState* state);

  PyThreadState* state_;
};

/// Raises the exception of a code, with the text of this thread's last failure. Returns null.
PyObject* fail(millrace_code code);
/// Makes that exception, and raises nothing.
ref error_of(millrace_code code, const char* text);

/// Returns a string; bytes of paths in it need not be UTF-8. Null: with an exception.
PyObject* text(const char* of);

/// The object of Python that holds a T.
template <class T>
struct boxed {
  PyObject_HEAD;
  T value;
};

template <class T>
inline PyTypeObject* type_of = nullptr;

template <class T>
T& value_of(PyObject* object) noexcept {
  return reinterpret_cast<boxed<T>*>(object)->value;
}

/// Makes an object of Python that holds `T{args...}`; null with an exception when memory lacks.
template <class T, class... Args>
PyObject* box(Args&&... args) {
  auto* object = PyType_GenericAlloc(type_of<T>, 0);
  if (object)
    new (&value_of<T>(object)) T{std::forward<Args>(args)...};
  return object;
}

template <class T>
void destroy(PyObject* object) {
  auto* type = Py_TYPE(object);
  value_of<T>(object).~T();
  PyObject_Free(object);
  Py_DECREF(type);
}

/// Makes the type of objects that hold a T, and puts it into the module under the name behind the
/// last point. `slots` need not end in {0, nullptr}.
template <class T>
bool add_type(
  PyObject* module, const char* name, std::vector<PyType_Slot> slots,
  destructor dealloc = &destroy<T>) {
  slots.push_back({Py_tp_dealloc, reinterpret_cast<void*>(dealloc)});
  slots.push_back({0, nullptr});
  PyType_Spec spec{
    name, static_cast<int>(sizeof(boxed<T>)), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    slots.data()};
  type_of<T> = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type_of<T> && PyModule_AddType(module, type_of<T>) == 0;
}

/// A function of the module that raises MemoryError when memory lacks. What unwinds a thread whose
/// interpreter has ended passes.
template <PyCFunction f>
PyObject* safe(PyObject* self, PyObject* args) {
  try {
    return f(self, args);
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

/// Calls `read(item)` for each item of a sequence, until one fails with an exception.
template <class F>
bool each(PyObject* sequence, F&& read) {
  auto count = PySequence_Size(sequence);
  for (Py_ssize_t i = 0; i < count; ++i) {
    ref item{PySequence_GetItem(sequence, i)};
    if (!item || !read(item.get()))
      return false;
  }
  return count >= 0;
}

/// Returns a tuple of so many numbers; null with an exception.
template <class T>
ref tuple_of(const T* numbers, int count) {
  ref out{PyTuple_New(count)};
  for (int i = 0; out && i < count; ++i) {
    auto* number = std::is_signed_v<T> ? PyLong_FromLongLong(static_cast<long long>(numbers[i]))
                                       : PyLong_FromUnsignedLongLong(numbers[i]);
    if (PyTuple_SetItem(out.get(), i, number) != 0)
      return {};
  }
  return out;
}

/// Returns a structure of the C interface with its size set.
template <class T>
T sized() {
  T out{};
  out.struct_size = sizeof(T);
  return out;
}

/// Reads an argument "O" that must hold a T; for `PyArg_ParseTuple` with "O&".
template <class T>
int need(PyObject* object, void* out) {
  if (!PyObject_TypeCheck(object, type_of<T>)) {
    PyErr_SetString(PyExc_TypeError, "an object of another type was expected");
    return 0;
  }
  *static_cast<T**>(out) = &value_of<T>(object);
  return 1;
}

/// Runs `f`, which calls the library and may wait, without the lock; raises its failure.
template <class F>
bool succeeds(F&& f) {
  millrace_code code;
  {
    unlocked other_threads_run;
    code = f();
  }
  if (code != MILLRACE_OK)
    fail(code);
  return code == MILLRACE_OK;
}

/// The tables of the types, and the functions of the module, by source.
bool add_tensors(PyObject* module);
bool add_layers(PyObject* module);
bool add_view(PyObject* module);
bool add_request(PyObject* module);
bool add_queue(PyObject* module);
bool add_client(PyObject* module);
bool add_node(PyObject* module);
bool add_checkpointer(PyObject* module);
bool add_watch(PyObject* module);
bool add_sets(PyObject* module);
bool add_loaders(PyObject* module);
bool add_streams(PyObject* module);
bool add_weights(PyObject* module);
bool add_groups(PyObject* module);

} // namespace millrace::python
