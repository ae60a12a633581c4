// How a struct becomes a message: one line names its fields for the wire and for tests. Used by actors.
#pragma once

/// Defines `inspect` for `type`, in its namespace: the fields of `x` in the order in which they travel. Append fields,
/// never reorder them: a reader skips what it does not know at the end, and leaves what is missing there as it was.
#define MILLRACE_INSPECT(type, ...)                                                                \
  constexpr void is_message(const type&) {}                                                        \
  template <class Inspector>                                                                       \
  typename Inspector::result_type inspect(Inspector& f, type& x) {                                 \
    return f(__VA_ARGS__);                                                                         \
  }
