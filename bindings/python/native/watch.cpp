// What a trainer's objects look like, compared with what is registered, before each save. A save of
// a thousand tensors must not take a millisecond in Python.
#include "tensors.hpp"

#include <cstring>

namespace millrace::python {

namespace {

// A place of a tensor: a dictionary of a module or an optimizer, and the key in it.
struct place {
  ref dictionary;
  ref key;

  // Returns the object there, borrowed; null when there is none.
  PyObject* object() const { return PyDict_GetItemWithError(dictionary.get(), key.get()); }
};

// A buffer that forward passes change, and its copy, which is what is registered.
struct copied {
  place from;
  void* to = nullptr;
  std::size_t size_bytes = 0;
};

struct watch {
  std::vector<place> places;
  std::vector<void*> addresses;
  std::vector<std::pair<ref, Py_ssize_t>> sizes;
  std::vector<copied> copies;
  ref data_ptr;

  watch() = default;
  watch(watch&&) = delete;
};

// Asks a tensor where its elements lie. False: with an exception.
bool address_of(const watch& w, PyObject* tensor, void*& out) {
  ref number{PyObject_CallMethodObjArgs(tensor, w.data_ptr.get(), nullptr)};
  if (!number)
    return false;
  out = PyLong_AsVoidPtr(number.get());
  return !PyErr_Occurred();
}

bool read_place(PyObject* line, place& out) {
  PyObject *dictionary, *key;
  if (!PyArg_ParseTuple(line, "O!O", &PyDict_Type, &dictionary, &key))
    return false;
  out = {ref::to(dictionary), ref::to(key)};
  return true;
}

// Calls `read(item)` for each item of a sequence, until one fails.
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

// (places, dictionaries whose sizes must stay, copies). Places are (dictionary, key), copies
// (dictionary, key, address, bytes).
PyObject* make_watch(PyObject*, PyObject* args) {
  PyObject *places, *dictionaries, *copies;
  if (!PyArg_ParseTuple(args, "OOO:watch", &places, &dictionaries, &copies))
    return nullptr;
  ref made{box<watch>()};
  if (!made)
    return nullptr;
  auto& w = value_of<watch>(made.get());
  w.data_ptr = ref{PyUnicode_InternFromString("data_ptr")};
  bool read = w.data_ptr &&
    each(places,
         [&](PyObject* line) {
           place p;
           void* address = nullptr;
           if (!read_place(line, p))
             return false;
           auto* tensor = p.object();
           if (!tensor || !address_of(w, tensor, address)) {
             if (!PyErr_Occurred())
               PyErr_SetString(PyExc_KeyError, "a watched tensor is not there");
             return false;
           }
           w.places.push_back(std::move(p));
           w.addresses.push_back(address);
           return true;
         }) &&
    each(dictionaries,
         [&](PyObject* dictionary) {
           w.sizes.emplace_back(ref::to(dictionary), PyDict_Size(dictionary));
           return w.sizes.back().second >= 0;
         }) &&
    each(copies, [&](PyObject* line) {
                PyObject *dictionary, *key;
                unsigned long long address, size_bytes;
                if (!PyArg_ParseTuple(
                      line, "O!OKK", &PyDict_Type, &dictionary, &key, &address, &size_bytes))
                  return false;
                w.copies.push_back(
                  {{ref::to(dictionary), ref::to(key)},
                   reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)),
                   size_bytes});
                return true;
              });
  return read ? made.release() : nullptr;
}

// Returns whether all is as it was: every tensor in its place and at its address, and no others.
PyObject* same(PyObject* self, PyObject*) {
  auto& w = value_of<watch>(self);
  for (auto& [dictionary, size] : w.sizes)
    if (PyDict_Size(dictionary.get()) != size)
      Py_RETURN_FALSE;
  for (std::size_t i = 0; i < w.places.size(); ++i) {
    void* address = nullptr;
    auto* tensor = w.places[i].object();
    if (!tensor || tensor == Py_None) {
      PyErr_Clear();
      Py_RETURN_FALSE;
    }
    if (!address_of(w, tensor, address))
      return nullptr;
    if (address != w.addresses[i])
      Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// Copies each buffer to where it is registered. They are dense, and lie in the host's memory.
PyObject* copy(PyObject* self, PyObject*) {
  auto& w = value_of<watch>(self);
  for (auto& c : w.copies) {
    void* address = nullptr;
    auto* tensor = c.from.object();
    if (!tensor || !address_of(w, tensor, address)) {
      if (!PyErr_Occurred())
        PyErr_SetString(PyExc_KeyError, "a watched buffer is not there");
      return nullptr;
    }
    if (c.size_bytes > 0)
      std::memcpy(c.to, address, c.size_bytes);
  }
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
  {"same", same, METH_NOARGS, nullptr},
  {"copy", copy, METH_NOARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

PyMethodDef functions[] = {
  {"watch", make_watch, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

bool add_watch(PyObject* module) {
  return add_type<watch>(module, "millrace._native.Watch", {{Py_tp_methods, methods}}) &&
    PyModule_AddFunctions(module, functions) == 0;
}

} // namespace millrace::python
