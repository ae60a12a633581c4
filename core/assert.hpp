// The assertion, which stays on in release builds. Used by every room.
#pragma once

namespace millrace {

/// Prints the broken invariant with its file and line, and aborts.
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line) noexcept;

} // namespace millrace

#define MILLRACE_ASSERT(expression)                                                                \
  (static_cast<bool>(expression) ? static_cast<void>(0)                                            \
                                 : ::millrace::assertion_failed(#expression, __FILE__, __LINE__))
