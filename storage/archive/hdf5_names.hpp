// Names of tensors as names of links: HDF5 takes '/' for a group and "." for the group itself.
#pragma once

#include <string>
#include <string_view>

namespace millrace::storage::archive {

/// '/' becomes "%2F", '%' "%25", and the name "." "%2E". All else stays as it is.
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
