// The keys of a memory bucket.
#include <millrace/storage/bucket_keys.hpp>
#include <millrace/storage/memory/memory_options.hpp>

#include <array>

namespace millrace::config {

template <>
key_table<storage::memory_bucket_options> keys_of() {
  using o = storage::memory_bucket_options;
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::capacity_bytes>(storage::capacity_key),
    key<&o::full>(storage::when_full_key),
    key<&o::descriptions_max_bytes>(expert(size(
      "descriptions_max", 0, 1024 * tib,
      "the most of `capacity` that what describes the models takes (names, shapes, texts, graphs, "
      "checksums). It lies beside the memory for the tensors. 0: half of it"))),
  });
  return {rows};
}

} // namespace millrace::config
