// The JSON table of safetensors: names, dtypes, shapes and places. NPZ and torch files carry one beside theirs.
#pragma once

#include <millrace/storage/archive/archive.hpp>

namespace millrace::storage::archive {

/// As the reference implementation has it.
inline constexpr std::uint64_t tensor_table_bytes_max = 100'000'000;

struct tensor_table {
  struct place {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  layout tensors;
  std::vector<place> places; // per tensor; all 0 where the text had none
  text_pairs metadata;
};

std::string to_json(const tensor_table& table);

/// Accepts exactly what safetensors allows: no unknown fields, no name twice; sizes are not compared with places.
/// Memory: in proportion to the text, whatever is in it.
/// Errors: `corrupt_data` naming the tensor.
result<tensor_table> parse_tensor_table(std::string_view text);

} // namespace millrace::storage::archive
