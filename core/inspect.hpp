// Makes messages of structs: one line names the fields for the wire and for tests. Used by actors.
#pragma once

#include <concepts>

namespace millrace {

/// What `inspect` lists a type's fields to: the codec's writer and reader, and checks. Each answers
/// with a bool. CAF's own inspectors do not, so that no message compiles CAF's printers.
template <class T>
concept field_inspector = std::same_as<typename T::result_type, bool>;

} // namespace millrace

/// Defines `is_message` and `inspect` for `type`, in its namespace: the fields of `x` in the order
/// in which they travel. Append fields, never reorder them: a reader skips unknown fields at the
/// end, and leaves missing ones as they were.
#define MILLRACE_INSPECT(type, ...)                                                                \
  constexpr void is_message(const type&) {}                                                        \
  template <::millrace::field_inspector Inspector>                                                 \
  typename Inspector::result_type inspect(Inspector& f, type& x) {                                 \
    return f(__VA_ARGS__);                                                                         \
  }
