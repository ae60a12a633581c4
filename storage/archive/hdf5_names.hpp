// Names of tensors as names of links, since in HDF5 '/' separates groups and "." is the group
// itself. Used by the reader and writer of HDF5.
#pragma once

#include <string>
#include <string_view>

namespace millrace::storage::archive {

/// Writes '/' as "%2F", '%' as "%25", and the name "." as "%2E".
inline std::string escape_hdf5_name(std::string_view name) {
  if (name == ".")
    return "%2E";
  std::string out;
  for (char c : name)
    c == '/' ? out += "%2F" : c == '%' ? out += "%25" : out += c;
  return out;
}

inline std::string unescape_hdf5_name(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    auto code = name.substr(i, 3);
    char plain = code == "%2F" ? '/' : code == "%25" ? '%' : code == "%2E" ? '.' : '\0';
    out += plain ? plain : name[i];
    i += plain ? 2 : 0;
  }
  return out;
}

} // namespace millrace::storage::archive
