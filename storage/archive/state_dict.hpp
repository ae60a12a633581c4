// PyTorch's state dictionary as it is pickled: tensors by name, each a view of a storage. Used by `torch.cpp`.
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
};

/// A pickle that is read whole.
inline constexpr std::uint64_t pickle_bytes_max = 256ull << 20;

/// Reads dictionaries, nested ones too ("optimizer.state"), of tensors by texts or numbers.
/// Errors: `unsupported` naming what is no tensor, an opcode or a global; `corrupt_data`.
result<std::vector<state_entry>> read_state_dict(std::string_view pickled);

/// Every tensor contiguous in a storage of its own, called by its number. `torch.load(weights_only=True)` takes it.
/// Errors: `unsupported` naming the tensor whose dtype PyTorch lacks.
result<std::string> write_state_dict(const layout& tensors);

} // namespace millrace::storage::archive
