// The list of kinds, the only place where they are registered. Called by a node when it starts its
// providers.
#include <millrace/storage/builtin.hpp>
#include <millrace/storage/memory/memory_bucket.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>

#include <utility>

namespace millrace::storage {

namespace {

result<std::shared_ptr<bucket>> open_memory(const bucket_options& options) {
  return open_memory_bucket({options.memory, options.capacity_bytes, options.full});
}

result<std::shared_ptr<bucket>> open_rocksdb(const bucket_options& options) {
  rocksdb_bucket_options chosen;
  chosen.path = options.path;
  chosen.staging = options.memory;
  chosen.capacity_bytes = options.capacity_bytes;
  chosen.full = options.full;
  if (options.io_threads != 0)
    chosen.io_threads = options.io_threads;
  if (options.window_bytes != 0)
    chosen.window_bytes = options.window_bytes;
  chosen.inline_max_bytes = options.inline_max_bytes;
  return open_rocksdb_bucket(std::move(chosen));
}

struct kind_entry {
  std::string_view name;
  result<std::shared_ptr<bucket>> (*open)(const bucket_options&);
};

constexpr kind_entry kinds[] = {
  {"memory", open_memory},
  {"rocksdb", open_rocksdb},
};

} // namespace

std::vector<std::string> bucket_kinds() {
  std::vector<std::string> names;
  for (auto& kind : kinds)
    names.emplace_back(kind.name);
  return names;
}

result<std::shared_ptr<bucket>> open_bucket(const bucket_options& options) {
  std::string known;
  for (auto& kind : kinds) {
    if (kind.name == options.kind)
      return kind.open(options);
    known.append(known.empty() ? "" : ", ").append(kind.name);
  }
  return fail(
    errc::invalid_argument, "no kind of bucket is called {}; there are {}", options.kind, known);
}

} // namespace millrace::storage
