// Writes bytes after bytes.
#include "weights_file.hpp"

#include <fstream>

namespace train_digits {

using millrace::errc;
using millrace::status;

status write_weights(const std::string& path, mlp& model) {
  std::ofstream file{path, std::ios::binary};
  for (auto& tensor : model.tensors())
    file.write(
      reinterpret_cast<const char*>(tensor.data),
      static_cast<std::streamsize>(*millrace::size_bytes(tensor.desc)));
  return file.flush() ? status{} : status{errc::io_error, "cannot write " + path};
}

} // namespace train_digits
