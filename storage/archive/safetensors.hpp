// The header of a safetensors file, independent of files so that it can be tested with any bytes.
// Called by the reader and by fuzzing.
#pragma once

#include <millrace/storage/archive/tensor_table.hpp>

#include <functional>

namespace millrace::storage::archive {

struct safetensors_header {
  tensor_table table;
  std::uint64_t data_offset = 0;
};

/// Reads and checks the header of a file of `file_bytes`, any part of which `read(offset, into)`
/// reads.
/// Errors: `corrupt_data` naming the contradiction.
result<safetensors_header> parse_safetensors(
  std::uint64_t file_bytes, const std::function<status(std::uint64_t, std::span<std::byte>)>& read);

} // namespace millrace::storage::archive
