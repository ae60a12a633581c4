// The keys of a RocksDB bucket.
#include <millrace/storage/bucket_keys.hpp>
#include <millrace/storage/rocksdb/rocksdb_options.hpp>

#include <array>

namespace millrace::config {

template <>
key_table<storage::rocksdb_bucket_options> keys_of() {
  using o = storage::rocksdb_bucket_options;
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::path>(
      required(used_as(key_use::place, plain("path", key_type::path, "directory of the data")))),
    key<&o::capacity_bytes>(storage::capacity_key),
    key<&o::create_if_missing>(storage::create_key),
    key<&o::full>(storage::when_full_key),
    key<&o::io_threads>(storage::io_threads_key),
    key<&o::window_bytes>(storage::window_key),
    key<&o::descriptions_max_bytes>(storage::descriptions_key),
    key<&o::inline_max_bytes>(
      expert(size("inline_max", 0, 4 * mib, "models up to this size rest inside RocksDB"))),
    // RocksDB flushes up to 16 MiB at once, and may have to do so several times.
    key<&o::index_reserve_bytes>(advised(
      expert(size(
        "index_reserve", 0, 64 * gib,
        "space of the file system that is kept for the index, so that models can be removed when "
        "the file system is full; large models leave as much again free")),
      48 * mib, "it may not be possible to remove models from a full file system")),
  });
  return {rows, [](const o& options) -> std::optional<misfit> {
            if (options.inline_max_bytes <= options.window_bytes)
              return {};
            return misfit{"inline_max", "must not be above", "window"};
          }};
}

} // namespace millrace::config
