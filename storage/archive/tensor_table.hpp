// The JSON table of safetensors: names, dtypes, shapes and places. Used by safetensors, and beside
// the tables of NPZ and torch files.
#pragma once

#include <millrace/storage/archive/archive.hpp>

namespace millrace::storage::archive {

/// The limit of the reference implementation.
inline constexpr std::uint64_t tensor_table_bytes_max = 100'000'000;

struct tensor_table {
  struct place {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  layout tensors;
  std::vector<place> places; // per tensor; all 0 where the table describes other files' tensors
  text_pairs metadata;
};

std::string to_json(const tensor_table& table);

/// Reads a table. Accepts exactly what safetensors allows: no unknown fields, and every name once.
/// Does not compare sizes with places.
/// Memory: in proportion to the text, whatever its contents.
/// Errors: `corrupt_data` naming the tensor.
result<tensor_table> parse_tensor_table(std::string_view text);

} // namespace millrace::storage::archive
