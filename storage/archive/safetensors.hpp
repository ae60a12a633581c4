// The opening of a safetensors file, apart from files, so that it can be tested with any bytes.
#pragma once

#include <millrace/storage/archive/tensor_table.hpp>

#include <functional>

namespace millrace::storage::archive {

struct safetensors_header {
  tensor_table table;
  std::uint64_t data_offset = 0;
};

/// Reads and checks the opening of a file of `file_bytes` of which `read(offset, into)` brings any part.
/// Errors: `corrupt_data` saying what contradicts what.
result<safetensors_header> parse_safetensors(
  std::uint64_t file_bytes, const std::function<status(std::uint64_t, std::span<std::byte>)>& read);

} // namespace millrace::storage::archive
