// Memory of other libraries' objects: by the buffer protocol, and by DLPack. The Python side asks
// for it where an object has no attributes that say where its elements lie.
#include "object.hpp"

#include <optional>
#include <string>

namespace millrace::python {

namespace {

// The structures of DLPack, dlpack.h of version 1.0. Those before it have no version in front.
struct dl_device {
  std::int32_t type;
  std::int32_t id;
};
struct dl_type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct dl_tensor {
  void* data;
  dl_device device;
  std::int32_t rank;
  dl_type type;
  std::int64_t* shape;
  std::int64_t* strides; // in elements; null: dense
  std::uint64_t byte_offset;
};
struct dl_managed {
  dl_tensor tensor;
  void* context;
  void (*deleter)(dl_managed*);
};
struct dl_managed_versioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(dl_managed_versioned*);
  std::uint64_t flags;
  dl_tensor tensor;
};
constexpr std::uint64_t dl_read_only = 1;

// A buffer, or a tensor of DLPack, until the object goes.
struct view {
  std::optional<Py_buffer> buffer;
  dl_managed* old = nullptr;
  dl_managed_versioned* versioned = nullptr;

  view() = default;
  view(view&&) = delete;
  ~view() {
    if (buffer)
      PyBuffer_Release(&*buffer);
    if (old && old->deleter)
      old->deleter(old);
    if (versioned && versioned->deleter)
      versioned->deleter(versioned);
  }
};

ref none() { return ref::to(Py_None); }

// Returns (address, format, bytes of an element, shape, strides in bytes, whether read-only).
PyObject* make_buffer(PyObject*, PyObject* args) {
  PyObject* from;
  int writable = 0;
  if (!PyArg_ParseTuple(args, "Op:buffer", &from, &writable))
    return nullptr;
  ref made{box<view>()};
  if (!made)
    return nullptr;
  Py_buffer buffer;
  if (PyObject_GetBuffer(from, &buffer, PyBUF_RECORDS_RO | (writable ? PyBUF_WRITABLE : 0)) != 0)
    return nullptr;
  value_of<view>(made.get()).buffer = buffer;
  auto shape = tuple_of(buffer.shape, buffer.ndim);
  auto strides = buffer.strides ? tuple_of(buffer.strides, buffer.ndim) : none();
  if (!shape || !strides)
    return nullptr;
  return Py_BuildValue(
    "(NKsnNNO)", made.release(),
    static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(buffer.buf)),
    buffer.format ? buffer.format : "B", buffer.itemsize, shape.release(), strides.release(),
    buffer.readonly ? Py_True : Py_False);
}

const dl_tensor* take(PyObject* capsule, view& out, bool& read_only) {
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    auto* tensor =
      static_cast<dl_managed_versioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (tensor->major != 1) {
      PyErr_Format(
        PyExc_BufferError, "DLPack %u.%u: this version knows 1.x and those before it",
        tensor->major, tensor->minor);
      return nullptr;
    }
    if (PyCapsule_SetName(capsule, "used_dltensor_versioned") != 0)
      return nullptr;
    out.versioned = tensor;
    read_only = (tensor->flags & dl_read_only) != 0;
    return &tensor->tensor;
  }
  auto* tensor = static_cast<dl_managed*>(PyCapsule_GetPointer(capsule, "dltensor"));
  if (!tensor || PyCapsule_SetName(capsule, "used_dltensor") != 0)
    return nullptr;
  out.old = tensor;
  return &tensor->tensor;
}

// Returns (address, type, bits, shape, strides in elements, device, its number, whether read-only).
PyObject* make_dlpack(PyObject*, PyObject* args) {
  PyObject* capsule;
  if (!PyArg_ParseTuple(args, "O:dlpack", &capsule))
    return nullptr;
  ref made{box<view>()};
  if (!made)
    return nullptr;
  bool read_only = false;
  auto* t = take(capsule, value_of<view>(made.get()), read_only);
  if (!t)
    return nullptr;
  if (t->type.lanes != 1) {
    PyErr_SetString(PyExc_BufferError, "DLPack: elements of several lanes");
    return nullptr;
  }
  auto shape = tuple_of(t->shape, t->rank);
  auto strides = t->strides ? tuple_of(t->strides, t->rank) : none();
  if (!shape || !strides)
    return nullptr;
  auto address = reinterpret_cast<std::uintptr_t>(t->data) + t->byte_offset;
  return Py_BuildValue(
    "(NKiiNNiiO)", made.release(), static_cast<unsigned long long>(address), int{t->type.code},
    int{t->type.bits}, shape.release(), strides.release(), t->device.type, t->device.id,
    read_only ? Py_True : Py_False);
}

PyMethodDef functions[] = {
  {"buffer", safe<make_buffer>, METH_VARARGS, nullptr},
  {"dlpack", safe<make_dlpack>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

bool add_view(PyObject* module) {
  return add_type<view>(module, "millrace._native.View", {}) &&
    PyModule_AddFunctions(module, functions) == 0;
}

} // namespace millrace::python
