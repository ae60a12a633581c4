// PyTorch's pickled state dictionary: tensors by name, each a view of a storage. Used by
// `torch.cpp`.
#pragma once

#include <millrace/core/tensor.hpp>
#include <millrace/storage/archive/strided.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace millrace::storage::archive {

/// One tensor: a view of the storage called `key`.
struct state_entry {
  tensor_desc tensor;
  std::string key;
  std::uint64_t offset = 0;        // elements
  strides steps;                   // elements
  std::uint64_t storage_bytes = 0; // as the pickle says
  bool conjugated = false;         // the storage has the conjugate
  bool negated = false;            // the storage has the negative
};

/// The largest pickle that is read.
inline constexpr std::uint64_t pickle_bytes_max = 256ull << 20;

/// Reads dictionaries, also nested ones ("optimizer.state"), of tensors with texts or numbers as
/// keys.
/// Errors: `unsupported` naming the value that is not a tensor, the opcode or the global;
///         `corrupt_data`.
result<std::vector<state_entry>> read_state_dict(std::string_view pickled);

/// Returns a pickle in which every tensor is contiguous in its own storage, which is named by the
/// tensor's number. `torch.load(weights_only=True)` reads it.
/// Errors: `unsupported` naming the tensor whose dtype PyTorch lacks.
result<std::string> write_state_dict(const layout& tensors);

} // namespace millrace::storage::archive
