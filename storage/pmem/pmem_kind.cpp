// The keys of a pool's provider, and its parts.
#include <millrace/storage/bucket_keys.hpp>
#include <millrace/storage/pmem/medium/pool_file.hpp>
#include <millrace/storage/pmem/pmem_kind.hpp>

#include <array>
#include <filesystem>

namespace millrace::storage {

result<opened_bucket> open_pmem_bucket(
  pmem_options options, std::shared_ptr<memory_source> staging) {
  if (staging)
    options.pool.staging = staging->contiguous() ? lent_memory::contiguous : lent_memory::pages;
  auto opened = open_pool(std::move(options.pool));
  if (!opened)
    return fail(opened.error());
  auto& pool = *opened;
  return opened_bucket{
    pool->models(),
    opened_checkpoints{
      pool->checkpoints(), pool->mappings(), std::move(options.flush),
      options.repack == repack_mode::when_low},
    pool};
}

config::memory_needs needs_of(const pmem_options& options) {
  config::memory_needs needs;
  needs.file_bytes = pmem::bytes_in_memory(options.pool.path, options.pool.capacity_bytes);
  needs.heap_bytes = options.pool.descriptions_max_bytes;
  needs.snapshots = true;
  return needs;
}

const storage_at_rest pool_at_rest{
  [](const std::string& path) {
    std::error_code why;
    auto what = std::filesystem::status(path, why).type();
    return what == std::filesystem::file_type::regular ||
      what == std::filesystem::file_type::character;
  },
  salvage_pool,
  [](const std::string& path, const auto&) {
    return status{
      errc::invalid_argument, "{} is a file; for a pool use `millrace pool check`", path};
  }};

} // namespace millrace::storage

namespace millrace::config {

template <>
key_table<storage::pmem_options> keys_of() {
  using o = storage::pmem_options;
  using pool = storage::pool_options;
  using flusher = storage::flush::step_flusher_options;
  using flush = storage::flush::flush_options;
  // In the order of the enumerations.
  static constexpr key_text low_space_choices[] = {"refuse", "reclaim"};
  static constexpr key_text repack_choices[] = {"off", "when_low"};
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::pool, &pool::path>(required(
      used_as(key_use::place, plain("path", key_type::path, "file or device of the pool")))),
    key<&o::pool, &pool::capacity_bytes>(used_as(
      key_use::capacity,
      size(
        "capacity", storage::pool_bytes_min, 1024 * tib,
        "size of the pool's file when it is made; of a device all is used"))),
    key<&o::pool, &pool::models_full>(storage::when_full_key),
    key<&o::pool, &pool::descriptions_max_bytes>(storage::descriptions_key),
    key<&o::pool, &pool::io_threads>(storage::io_threads_key),
    key<&o::pool, &pool::window_bytes>(storage::window_key),
    key<&o::pool, &pool::create_if_missing>(storage::create_key),
    key<&o::pool, &pool::low_space>(expert(choice(
      "low_space", low_space_choices,
      "when a checkpoint does not fit: refuse it, or reclaim space of jobs that are not attached. "
      "Reclaiming frees the second version of finished jobs, and all but the newest two versions "
      "of other jobs. It never frees a part of a step that can still become complete, nor of a "
      "model whose newest complete step is damaged"))),
    key<&o::repack>(expert(choice(
      "repack", repack_choices,
      "`when_low` reclaims what finished and dead jobs left, as soon as space is low"))),
    key<&o::flush, &flusher::flush, &flush::directory>(used_as(
      key_use::apart,
      plain(
        "flush_to", key_type::path,
        "directory to which complete steps are copied. Shards then take a third slot"))),
    key<&o::flush, &flusher::every>(expert(
      count("flush_every", 1, 1'000'000, "copy only steps whose number is a multiple of this"))),
    key<&o::flush, &flusher::flush, &flush::keep>(
      expert(count("flush_keep", 1, 10'000, "steps of a model that stay in that directory"))),
  });
  return {rows};
}

} // namespace millrace::config
