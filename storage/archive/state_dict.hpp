// PyTorch's pickled dictionary: tensors by name, each a view of a storage, and plain values beside
// them. Used by `torch.cpp`.
#pragma once

#include <millrace/storage/archive/archive.hpp>
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

/// A dictionary of any depth. Names are joined with dots; places in lists are names, too
/// ("optimizer.param_groups.0.lr").
struct state_dict {
  std::vector<state_entry> tensors;
  /// Every other value as JSON: whole where it has no tensors in it, else each of its parts.
  text_pairs values;
};

/// The largest pickle that is read, and the most text of values without tensors.
inline constexpr std::uint64_t pickle_bytes_max = 256ull << 20;
inline constexpr std::uint64_t plain_bytes_max = 64ull << 20;

/// Reads a dictionary of tensors, numbers, texts, truth values, None, and lists, tuples and
/// dictionaries of them. JSON is as Python's `json` writes it: it has `NaN` and `Infinity`.
/// Errors: `unsupported` naming the value, the opcode or the global; `corrupt_data`.
result<state_dict> read_state_dict(std::string_view pickled);

/// Returns a pickle in which every tensor is contiguous in its own storage, which is named by the
/// tensor's number. `torch.load(weights_only=True)` reads it.
/// Errors: `unsupported` naming the tensor whose dtype PyTorch lacks.
result<std::string> write_state_dict(const layout& tensors);

} // namespace millrace::storage::archive
