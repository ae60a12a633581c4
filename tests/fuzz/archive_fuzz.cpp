// Feeds random bytes to the readers of archives' headers: safetensors, NumPy's header, pickled
// state.
#include <millrace/core/assert.hpp>
#include <millrace/storage/archive/npy.hpp>
#include <millrace/storage/archive/safetensors.hpp>
#include <millrace/storage/archive/state_dict.hpp>

#include <cstring>

using namespace millrace;
using namespace millrace::storage::archive;

namespace {

void fuzz_safetensors(std::span<const std::byte> in) {
  auto header = parse_safetensors(in.size(), [&](std::uint64_t at, std::span<std::byte> into) {
    MILLRACE_ASSERT(at <= in.size() && into.size() <= in.size() - at);
    std::memcpy(into.data(), in.data() + at, into.size());
    return status{};
  });
  if (!header)
    return;
  // What was accepted fits the file, and is understood again.
  MILLRACE_ASSERT(header->data_offset + size_bytes(header->table.tensors) == in.size());
  // Tables lack this dtype, which metadata restores.
  for (auto& tensor : header->table.tensors.tensors)
    if (tensor.type == dtype::c128)
      return;
  auto again = parse_tensor_table(to_json(header->table));
  MILLRACE_ASSERT(again && again->tensors == header->table.tensors);
  MILLRACE_ASSERT(again->metadata == header->table.metadata);
}

void fuzz_npy(std::string_view in) {
  auto header = parse_npy_header(in);
  if (!header)
    return;
  MILLRACE_ASSERT(header->data_offset <= in.size());
  header->tensor.name = "x";
  if (!validate(header->tensor).ok())
    return;
  auto again = parse_npy_header(write_npy_header(header->tensor));
  MILLRACE_ASSERT(again && again->tensor.shape == header->tensor.shape);
  MILLRACE_ASSERT(again->tensor.type == header->tensor.type);
}

void fuzz_pickle(std::string_view in) {
  auto state = read_state_dict(in);
  if (!state)
    return;
  for (auto& [name, text] : state->values)
    MILLRACE_ASSERT(!name.empty() && is_utf8(name) && is_utf8(text));
  for (auto& entry : state->tensors) {
    MILLRACE_ASSERT(entry.steps.size() == entry.tensor.shape.size());
    if (validate(entry.tensor).ok())
      (void)(is_dense(entry.tensor.shape, entry.steps) || reach(entry.tensor.shape, entry.steps));
  }
}

} // namespace

// The first byte chooses the reader, the rest is the file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  std::string_view in{reinterpret_cast<const char*>(data) + 1, size - 1};
  if (data[0] % 3 == 0)
    fuzz_safetensors(std::as_bytes(std::span{in}));
  else if (data[0] % 3 == 1)
    fuzz_npy(in);
  else
    fuzz_pickle(in);
  return 0;
}
