// The objects of working sets, and what several sources need of them.
#pragma once

#include "request.hpp"

#include <cstring>

namespace millrace::python {

/// Strings of a list, as an array. They point into the strings of the list.
struct texts {
  std::vector<const char*> all;

  bool read(PyObject* from) {
    return each(from, [&](PyObject* item) {
      Py_ssize_t size = 0;
      all.push_back(PyUnicode_AsUTF8AndSize(item, &size));
      if (all.back() && std::strlen(all.back()) != static_cast<std::size_t>(size))
        PyErr_SetString(PyExc_ValueError, "embedded null character");
      return !PyErr_Occurred();
    });
  }
};

/// Pairs of strings, from a list of tuples. They point into the strings of the list.
struct pairs {
  std::vector<millrace_pair> all;

  bool read(PyObject* from) {
    // The list keeps the tuple, and the tuple the strings.
    return each(from, [&](PyObject* item) {
      auto& pair = all.emplace_back();
      return PyArg_ParseTuple(item, "ss", &pair.key, &pair.value) != 0;
    });
  }
};

/// (name, node or None, owner, samples, fields, bytes, identity, time, whether it
/// existed, whether it goes with its last user, servers, appends, window, paths that are left out)
PyObject* tuple_of(const millrace_set& set);

/// The numbers of a stream, and at last whether it has ended.
PyObject* tuple_of(const millrace_stream_info& stream);

/// The method `describe_window` of clients: (set), the counts.
PyObject* describe_window(millrace_client* client, PyObject* args);

/// The method `describe_access` of clients: (set, device or None).
PyObject* begin_describe_access(millrace_client* client, PyObject* args);

/// The method `preload` of clients: (set, files, timeout, kind or None, fields, labels or None,
/// on_error or None, while_used, decode, pixels, servers, window, progress or None).
PyObject* begin_preload(millrace_client* client, PyObject* args);

/// The method `append_to_set` of clients: (set, files, timeout, kind or None, fields, labels or
/// None, on_error or None, decode, pixels, progress or None).
PyObject* begin_append_to_set(millrace_client* client, PyObject* args);

/// The method `open_set` of clients: (set, files, kind or None, fields, labels or None, on_error or
/// None, decode, pixels, list of the same of each append).
PyObject* begin_open_set(millrace_client* client, PyObject* args);

/// Numbers of 64 bits that are given as bytes.
inline std::vector<std::uint64_t> numbers_of(const char* bytes, Py_ssize_t size_bytes) {
  std::vector<std::uint64_t> out(static_cast<std::size_t>(size_bytes) / sizeof(std::uint64_t));
  std::memcpy(out.data(), bytes, out.size() * sizeof(std::uint64_t));
  return out;
}

/// A copy of bytes, as a bytearray.
inline PyObject* bytes_of(const void* from, std::size_t size_bytes) {
  return PyByteArray_FromStringAndSize(
    static_cast<const char*>(from), static_cast<Py_ssize_t>(size_bytes));
}

/// The methods of clients for streams: (name, fields, capacity, policy, when_full, producers, seed,
/// threshold), which begins a request; (name), the counts; (name, in_flight); (name, batch_size,
/// batches).
PyObject* begin_create_stream(millrace_client* client, PyObject* args);
PyObject* describe_stream(millrace_client* client, PyObject* args);
PyObject* open_producer(millrace_client* client, PyObject* args);
PyObject* open_stream_reader(millrace_client* client, PyObject* args);

/// The methods of clients for weights: (group, name, tensors, metadata, checksums, timeout), the
/// publisher; (group, name), the follower.
PyObject* make_publisher(millrace_client* client, PyObject* args);
PyObject* make_follower(millrace_client* client, PyObject* args);

/// The method of clients for groups: (name, rank, size, node, who, timeout), which begins a
/// request.
PyObject* begin_join_group(millrace_client* client, PyObject* args);
PyObject* box_group(millrace_group* group);

PyObject* box_set_reader(millrace_set_reader* reader);
PyObject* box_loader(millrace_loader* loader);
PyObject* box_batch(millrace_batch* batch);

} // namespace millrace::python
