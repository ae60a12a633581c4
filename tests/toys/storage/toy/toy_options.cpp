// The keys of a toy bucket.
#include <millrace/storage/bucket_keys.hpp>
#include <millrace/storage/toy/toy_options.hpp>

#include <array>

namespace millrace::config {

template <>
key_table<storage::toy_bucket_options> keys_of() {
  using o = storage::toy_bucket_options;
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::capacity_bytes>(storage::capacity_key),
    key<&o::descriptions_max_bytes>(storage::descriptions_key),
    key<&o::models_max>(expert(count("models_max", 1, 1u << 24, "most models that it holds"))),
  });
  return {rows};
}

} // namespace millrace::config
