// Makes messages of structs: one line names the fields for the wire and for tests. Used by actors.
#pragma once

/// Defines `inspect` for `type`, in its namespace. It lists the fields of `x` in the order in which
/// they travel. Append fields, never reorder them: a reader skips unknown fields at the end, and
/// leaves missing ones as they were.
#define MILLRACE_INSPECT(type, ...)                                                                \
  constexpr void is_message(const type&) {}                                                        \
  template <class Inspector>                                                                       \
  typename Inspector::result_type inspect(Inspector& f, type& x) {                                 \
    return f(__VA_ARGS__);                                                                         \
  }
