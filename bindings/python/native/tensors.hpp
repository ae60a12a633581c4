// Descriptions of tensors and layers in the form that the library takes. Made by Python, passed to
// the methods of clients and checkpointers.
#pragma once

#include "object.hpp"

#include <deque>
#include <string>
#include <vector>

namespace millrace::python {

struct tensors {
  std::vector<millrace_tensor> all;
  /// What the descriptions point to.
  std::deque<std::string> names;
  std::deque<std::vector<std::uint64_t>> numbers;
  std::deque<std::vector<std::int64_t>> strides;
  /// What keeps the memory of the tensors alive.
  ref owner;
};

/// Descriptions of the layers of an architecture.
struct layers {
  std::vector<millrace_layer> all;
  /// What the descriptions point to.
  std::deque<std::string> texts;
  std::deque<std::vector<millrace_pair>> attributes;
  std::deque<std::vector<std::uint32_t>> inputs;
};

} // namespace millrace::python
