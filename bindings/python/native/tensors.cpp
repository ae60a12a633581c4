// Reads descriptions of tensors from tuples.
#include "tensors.hpp"

#include <memory>

namespace millrace::python {

namespace {

// Reads a sequence of numbers into the next row of `rows`; null for None. False: with an exception.
template <class T>
bool read_numbers(PyObject* from, std::deque<std::vector<T>>& rows, const T*& out) {
  out = nullptr;
  if (from == Py_None)
    return true;
  auto count = PySequence_Size(from);
  if (count < 0)
    return false;
  auto& row = rows.emplace_back();
  row.reserve(static_cast<std::size_t>(count));
  if (!each(from, [&](PyObject* item) {
        if constexpr (std::is_signed_v<T>)
          row.push_back(PyLong_AsLongLong(item));
        else
          row.push_back(PyLong_AsUnsignedLongLong(item));
        return !PyErr_Occurred();
      }))
    return false;
  // A row without numbers has an address, too: it tells a scalar's offsets from none.
  static const T nothing{};
  out = row.empty() ? &nothing : row.data();
  return true;
}

bool read_tensor(PyObject* line, tensors& out) {
  const char* name = nullptr;
  unsigned long long address = 0;
  int dtype = 0;
  PyObject *shape, *strides, *offsets, *global_shape;
  if (!PyArg_ParseTuple(
        line, "sKiOOOO", &name, &address, &dtype, &shape, &strides, &offsets, &global_shape))
    return false;
  millrace_tensor t{};
  t.name = out.names.emplace_back(name).c_str();
  t.data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  t.dtype = dtype;
  auto rank = PySequence_Size(shape);
  if (rank < 0)
    return false;
  t.rank = static_cast<std::int32_t>(rank);
  if (
    !read_numbers(shape, out.numbers, t.shape) ||
    !read_numbers(strides, out.strides, t.strides_bytes) ||
    !read_numbers(offsets, out.numbers, t.offsets) ||
    !read_numbers(global_shape, out.numbers, t.global_shape))
    return false;
  out.all.push_back(t);
  return true;
}

PyObject* make_tensors(PyObject*, PyObject* args) {
  PyObject *lines, *owner;
  if (!PyArg_ParseTuple(args, "OO:tensors", &lines, &owner))
    return nullptr;
  auto count = PySequence_Size(lines);
  if (count < 0)
    return nullptr;
  ref made{box<tensors>()};
  if (!made)
    return nullptr;
  auto& out = value_of<tensors>(made.get());
  out.owner = ref::to(owner);
  out.all.reserve(static_cast<std::size_t>(count));
  auto read = each(lines, [&](PyObject* line) { return read_tensor(line, out); });
  return read ? made.release() : nullptr;
}

Py_ssize_t length(PyObject* self) {
  return static_cast<Py_ssize_t>(value_of<tensors>(self).all.size());
}

PyMethodDef functions[] = {
  {"tensors", safe<make_tensors>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

bool add_tensors(PyObject* module) {
  return add_type<tensors>(
           module, "millrace._native.Tensors",
           {{Py_sq_length, reinterpret_cast<void*>(&length)}}) &&
    PyModule_AddFunctions(module, functions) == 0;
}

} // namespace millrace::python
