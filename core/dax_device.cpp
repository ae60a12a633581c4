// Reads the description of a DAX device from sysfs. Called by pools, and for files that peers map.
#include <millrace/core/dax_device.hpp>

#include <sys/sysmacros.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace millrace {

std::optional<dax_device> find_dax_device(dev_t number) {
  namespace fs = std::filesystem;
  auto node = fs::path{"/sys/dev/char"} /
    (std::to_string(major(number)) + ":" + std::to_string(minor(number)));
  std::error_code none;
  if (fs::read_symlink(node / "subsystem", none).filename() != "dax")
    return std::nullopt;
  dax_device found;
  std::ifstream{node / "size"} >> found.size_bytes;
  std::ifstream{node / "align"} >> found.alignment_bytes;
  return found;
}

} // namespace millrace
