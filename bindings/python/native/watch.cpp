// What a trainer's objects look like, compared with what is registered, before each save. A save of
// a thousand tensors must not take a millisecond in Python.
#include "tensors.hpp"

#include <cstring>

namespace millrace::python {

namespace {

// A dictionary of a module or an optimizer, and the values that it must still have, in order. Null:
// any value.
struct contents {
  ref dictionary;
  std::vector<ref> values;
};

struct tensor_at {
  ref tensor;
  void* address = nullptr;
};

// A buffer of a module, which forward passes change or replace, and its copy, which is what is
// registered.
struct copied {
  ref dictionary;
  ref key;
  void* to = nullptr;
  std::size_t size_bytes = 0;
  /// What a buffer must be like.
  ref dtype, shape, device;
  /// The last one that was.
  tensor_at last;
};

struct watch {
  std::vector<contents> dictionaries;
  std::vector<tensor_at> tensors;
  std::vector<copied> copies;

  watch() = default;
  watch(watch&&) = delete;
};

PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

// Asks a tensor where its elements lie. False: with an exception.
bool address_of(PyObject* tensor, void*& out) {
  static auto* data_ptr = interned("data_ptr");
  ref number{PyObject_CallMethodObjArgs(tensor, data_ptr, nullptr)};
  if (!number)
    return false;
  out = PyLong_AsVoidPtr(number.get());
  return !PyErr_Occurred();
}

bool read_contents(PyObject* line, watch& w) {
  PyObject *dictionary, *values;
  if (!PyArg_ParseTuple(line, "O!O", &PyDict_Type, &dictionary, &values))
    return false;
  contents c{ref::to(dictionary), {}};
  if (!each(values, [&](PyObject* value) {
        c.values.push_back(value == Py_Ellipsis ? ref{} : ref::to(value));
        return true;
      }))
    return false;
  w.dictionaries.push_back(std::move(c));
  return true;
}

bool read_copy(PyObject* line, watch& w) {
  PyObject *dictionary, *key, *dtype, *shape, *device;
  unsigned long long address, size_bytes;
  if (!PyArg_ParseTuple(
        line, "O!OKKOOO", &PyDict_Type, &dictionary, &key, &address, &size_bytes, &dtype, &shape,
        &device))
    return false;
  w.copies.push_back(
    {ref::to(dictionary),
     ref::to(key),
     reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)),
     size_bytes,
     ref::to(dtype),
     ref::to(shape),
     ref::to(device),
     {}});
  return true;
}

// (dictionaries, tensors, copies): dictionaries are (dictionary, values), where `...` is any value;
// copies (dictionary, key, address, bytes, dtype, shape, device).
PyObject* make_watch(PyObject*, PyObject* args) {
  PyObject *dictionaries, *all, *copies;
  if (!PyArg_ParseTuple(args, "OOO:watch", &dictionaries, &all, &copies))
    return nullptr;
  ref made{box<watch>()};
  if (!made)
    return nullptr;
  auto& w = value_of<watch>(made.get());
  auto read = each(dictionaries, [&](PyObject* line) { return read_contents(line, w); }) &&
    each(all,
         [&](PyObject* tensor) {
           tensor_at at{ref::to(tensor), nullptr};
           auto known = address_of(tensor, at.address);
           w.tensors.push_back(std::move(at));
           return known;
         }) &&
    each(copies, [&](PyObject* line) { return read_copy(line, w); });
  return read ? made.release() : nullptr;
}

bool has_still(const contents& c) {
  PyObject *key, *value;
  Py_ssize_t at = 0;
  std::size_t i = 0;
  while (PyDict_Next(c.dictionary.get(), &at, &key, &value)) {
    if (i == c.values.size() || (c.values[i] && c.values[i].get() != value))
      return false;
    ++i;
  }
  return i == c.values.size();
}

// Returns whether all is as it was: the same objects in the same places, and tensors at the same
// addresses.
PyObject* same(PyObject* self, PyObject*) {
  auto& w = value_of<watch>(self);
  for (auto& c : w.dictionaries)
    if (!has_still(c))
      Py_RETURN_FALSE;
  for (auto& t : w.tensors) {
    void* address = nullptr;
    if (!address_of(t.tensor.get(), address))
      return nullptr;
    if (address != t.address)
      Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// Whether `tensor` has an attribute that equals `wanted`. With an exception: false.
bool has(PyObject* tensor, PyObject* name, const ref& wanted) {
  ref found{PyObject_GetAttr(tensor, name)};
  return found &&
    (found.get() == wanted.get() ||
     PyObject_RichCompareBool(found.get(), wanted.get(), Py_EQ) == 1);
}

// Whether the buffer can be copied as the registered one. It is looked at again when it is another
// object, or lies elsewhere.
bool is_alike(copied& c, PyObject* tensor, void* address) {
  if (c.last.tensor.get() == tensor && c.last.address == address)
    return true;
  static auto *dtype = interned("dtype"), *shape = interned("shape"), *device = interned("device"),
              *is_contiguous = interned("is_contiguous");
  ref dense{PyObject_CallMethodObjArgs(tensor, is_contiguous, nullptr)};
  if (
    dense.get() != Py_True || !has(tensor, dtype, c.dtype) || !has(tensor, shape, c.shape) ||
    !has(tensor, device, c.device))
    return false;
  c.last.tensor = ref::to(tensor);
  c.last.address = address;
  return true;
}

// Copies each buffer to where it is registered. They are dense, and lie in the host's memory.
// Returns False, and may have copied some, when one is not like the one that was registered.
PyObject* copy(PyObject* self, PyObject*) {
  auto& w = value_of<watch>(self);
  for (auto& c : w.copies) {
    void* address = nullptr;
    auto tensor = ref::to(PyDict_GetItemWithError(c.dictionary.get(), c.key.get()));
    if (
      !tensor || tensor.get() == Py_None || !address_of(tensor.get(), address) ||
      !is_alike(c, tensor.get(), address)) {
      PyErr_Clear();
      Py_RETURN_FALSE;
    }
    if (c.size_bytes > 0)
      std::memcpy(c.to, address, c.size_bytes);
  }
  Py_RETURN_TRUE;
}

PyMethodDef methods[] = {
  {"same", safe<same>, METH_NOARGS, nullptr},
  {"copy", safe<copy>, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyMethodDef functions[] = {
  {"watch", safe<make_watch>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

bool add_watch(PyObject* module) {
  return add_type<watch>(module, "millrace._native.Watch", {{Py_tp_methods, methods}}) &&
    PyModule_AddFunctions(module, functions) == 0;
}

} // namespace millrace::python
