// The callback of this thread, and names of types.
#include <millrace/core/activity.hpp>

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace millrace {

thread_local activity* activity::current_ = nullptr;

std::string name_of(const std::type_info& type) {
  int failed = 0;
  std::unique_ptr<char, decltype(&std::free)> text{
    abi::__cxa_demangle(type.name(), nullptr, nullptr, &failed), &std::free};
  return failed == 0 ? text.get() : type.name();
}

} // namespace millrace
