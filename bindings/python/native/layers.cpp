// Reads descriptions of layers from tuples, and identifies them.
#include "tensors.hpp"

namespace millrace::python {

namespace {

// (label, kind, pairs of attributes, indices of inputs)
bool read_layer(PyObject* line, layers& out) {
  const char *label, *kind;
  PyObject *attributes, *inputs;
  if (!PyArg_ParseTuple(line, "ssOO", &label, &kind, &attributes, &inputs))
    return false;
  millrace_layer l{};
  l.label = out.texts.emplace_back(label).c_str();
  l.kind = out.texts.emplace_back(kind).c_str();
  auto& pairs = out.attributes.emplace_back();
  auto& indices = out.inputs.emplace_back();
  auto read = each(attributes, [&](PyObject* item) {
    const char *key, *value;
    if (!PyArg_ParseTuple(item, "ss", &key, &value))
      return false;
    auto* kept = out.texts.emplace_back(key).c_str();
    pairs.push_back({kept, out.texts.emplace_back(value).c_str()});
    return true;
  });
  read = read && each(inputs, [&](PyObject* item) {
           auto index = PyLong_AsUnsignedLong(item);
           if (!PyErr_Occurred() && index > UINT32_MAX)
             PyErr_SetString(PyExc_OverflowError, "the index of a layer is too large");
           indices.push_back(static_cast<std::uint32_t>(index));
           return !PyErr_Occurred();
         });
  l.attributes = pairs.data();
  l.attributes_count = pairs.size();
  l.inputs = indices.data();
  l.inputs_count = indices.size();
  out.all.push_back(l);
  return read;
}

PyObject* make_layers(PyObject*, PyObject* lines) {
  ref made{box<layers>()};
  if (!made)
    return nullptr;
  auto& out = value_of<layers>(made.get());
  return each(lines, [&](PyObject* line) { return read_layer(line, out); }) ? made.release()
                                                                            : nullptr;
}

// Returns the identities, 16 bytes each.
PyObject* identify(PyObject*, PyObject* args) {
  PyObject *of, *list;
  if (!PyArg_ParseTuple(args, "O!O!:identify", type_of<layers>, &of, type_of<tensors>, &list))
    return nullptr;
  constexpr std::size_t id_bytes = sizeof(millrace_layer::id);
  auto& all = value_of<layers>(of).all;
  auto& their = value_of<tensors>(list).all;
  std::vector<unsigned char> ids(all.size() * id_bytes + 1);
  if (!succeeds([&] {
        return millrace_identify_layers(
          all.data(), all.size(), their.data(), their.size(), ids.data());
      }))
    return nullptr;
  ref out{PyList_New(0)};
  for (std::size_t i = 0; out && i < all.size(); ++i) {
    ref id{PyBytes_FromStringAndSize(
      reinterpret_cast<const char*>(ids.data()) + i * id_bytes, id_bytes)};
    if (!id || PyList_Append(out.get(), id.get()) != 0)
      return nullptr;
  }
  return out.release();
}

PyMethodDef functions[] = {
  {"layers", safe<make_layers>, METH_O, nullptr},
  {"identify", safe<identify>, METH_VARARGS, nullptr},
  {nullptr, nullptr, 0, nullptr},
};

} // namespace

bool add_layers(PyObject* module) {
  return add_type<layers>(module, "millrace._native.Layers", {}) &&
    PyModule_AddFunctions(module, functions) == 0;
}

} // namespace millrace::python
