// Counts open descriptors. Used by tests that look for leaks.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>

namespace millrace::testing {

/// Returns how many entries a directory has; counts its own descriptor in `/proc/self/fd`.
inline std::size_t entries_of(const std::string& directory) {
  std::filesystem::directory_iterator all{directory};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

inline std::size_t open_descriptors() { return entries_of("/proc/self/fd"); }

} // namespace millrace::testing
