// The pickle reader: a pickle's values as data, without executing its calls. Used by
// `state_dict.cpp`.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::storage::archive {

enum class pickle_kind : std::uint8_t {
  none,
  boolean,
  integer,
  fraction,
  text,
  tuple,
  list,
  dictionary,
  global,     // a name of the table that the reader was given
  persistent, // an object outside the pickle, named by a tuple
  call,       // a call of a global with a tuple
};

/// One value. It is small and refers to data in the `pickle`.
struct pickle_value {
  pickle_kind kind = pickle_kind::none;
  std::uint32_t count = 0; // the number of a text's bytes or a tuple's values
  std::uint64_t at = 0;    // the number's bits, or where the text, the values, the container are
};

/// One name that a pickle may mention: "torch._utils" "_rebuild_tensor_v2".
struct pickle_global {
  std::string_view module;
  std::string_view name;
};

class pickle {
public:
  using entry = std::pair<pickle_value, pickle_value>;

  /// Reads a pickle. It knows the opcodes of tensors and plain values, and refuses all others by
  /// name. The result refers to `bytes`. No call is executed: `collections.OrderedDict()`, number 0
  /// of `globals`, is a dictionary, and other calls are values.
  /// Memory: in proportion to the bytes, and bounded.
  /// Errors: `unsupported` naming the opcode or the global; `corrupt_data`.
  static result<pickle> read(std::string_view bytes, std::span<const pickle_global> globals);

  pickle_value root() const noexcept { return root_; }
  std::string_view text(pickle_value value) const;
  std::span<const pickle_value> tuple(pickle_value value) const;
  const std::vector<pickle_value>& list(pickle_value value) const;
  const std::vector<entry>& dictionary(pickle_value value) const;
  /// Returns the number of the global that is called, and its arguments.
  std::pair<std::uint64_t, pickle_value> call(pickle_value value) const;

private:
  friend class pickle_machine;

  std::string_view bytes_;
  pickle_value root_;
  std::vector<pickle_value> values_; // the values of tuples and calls
  std::vector<std::vector<pickle_value>> lists_;
  std::vector<std::vector<entry>> dictionaries_;
};

} // namespace millrace::storage::archive
