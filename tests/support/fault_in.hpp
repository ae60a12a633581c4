// Makes the handlers of one message throw. Used by tests of supervision.
#pragma once

#include <millrace/core/planted_fault.hpp>

#include <atomic>
#include <stdexcept>
#include <typeinfo>

namespace millrace::testing {

/// While it lives, the handlers of one message throw when they are passed after the first `after`
/// times: once or, with `always`, each time. One object at a time.
class fault_in {
public:
  explicit fault_in(const std::type_info& message, int after = 0, bool always = false) {
    handled = &message;
    first = after;
    last = always ? 1 << 30 : after;
    count = 0;
    planted_fault = [](const std::type_info& what) {
      if (what != *handled)
        return;
      if (auto passed = count++; passed >= first && passed <= last)
        throw std::runtime_error{"a planted fault"};
    };
  }
  ~fault_in() { planted_fault = nullptr; }
  fault_in(const fault_in&) = delete;
  fault_in& operator=(const fault_in&) = delete;

  /// Returns how often the handlers were passed.
  static int passed() noexcept { return count; }

private:
  static inline std::atomic<const std::type_info*> handled = nullptr;
  static inline std::atomic<int> first = 0, last = 0, count = 0;
};

} // namespace millrace::testing
