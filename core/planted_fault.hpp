// Deliberate faults in the handlers of actors, which prove that actors are supervised, and where a
// loader may lack memory. The bases of the actors pass them, and the loader.
#pragma once

#if defined(MILLRACE_KILL_POINTS)

#include <atomic>
#include <typeinfo>

namespace millrace {

/// Called with the type of each message, before its handler runs, and of each batch that is read,
/// on the thread that does it. A test makes it throw or wait. Null in every ordinary process.
inline constinit std::atomic<void (*)(const std::type_info& message)> planted_fault = nullptr;

} // namespace millrace

/// Built in by the same option as the kill points.
#define MILLRACE_PLANTED_FAULT(message)                                                            \
  do {                                                                                             \
    if (auto fault = ::millrace::planted_fault.load(std::memory_order_acquire)) [[unlikely]]       \
      fault(message);                                                                              \
  } while (false)

#else

#define MILLRACE_PLANTED_FAULT(message) static_cast<void>(0)

#endif
