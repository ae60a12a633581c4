// The memory of data servers in this process, for tests that damage a working set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace millrace::testing {

/// Returns where the memory has these bytes first; null if it has not.
inline char* find_in_data_memory(std::span<const std::byte> bytes) {
  std::string_view wanted{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  std::ifstream maps{"/proc/self/maps"};
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    auto is_written = line.find("rw-s") != std::string::npos &&
      line.find("memfd:millrace.data.") != std::string::npos;
    if (!is_written || std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2)
      continue;
    auto* memory = reinterpret_cast<char*>(begin);
    if (auto at = std::string_view{memory, end - begin}.find(wanted); at != std::string_view::npos)
      return memory + at;
  }
  return nullptr;
}

} // namespace millrace::testing
