// The list of kinds, one line for each kind. Called by a node when it starts its providers.
#include <millrace/core/never_destroyed.hpp>
#include <millrace/storage/builtin.hpp>
#include <millrace/storage/memory/memory_bucket.hpp>
#include <millrace/storage/pmem/pmem_kind.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>

namespace millrace::storage {

const std::vector<bucket_kind>& builtin_buckets() {
  return never_destroyed([] {
    return std::vector<bucket_kind>{
      bucket_of("memory", open_memory_bucket),
      bucket_of("rocksdb", open_rocksdb_bucket, rocksdb_at_rest),
      bucket_of("pmem", open_pmem_bucket, pool_at_rest),
    };
  });
}

result<const bucket_kind*> bucket_called(std::string_view name) {
  std::string known;
  for (auto& kind : builtin_buckets()) {
    auto its_name = kind.section.keys.name;
    if (name.empty() || its_name == name)
      return &kind;
    known.append(known.empty() ? "" : ", ").append(its_name);
  }
  return fail(
    errc::invalid_argument, "there is no kind of bucket called {}; the kinds are: {}", name, known);
}

result<storage_at_rest> storage_at(const std::string& path) {
  for (auto& kind : builtin_buckets())
    if (kind.at_rest.is_at && kind.at_rest.is_at(path))
      return kind.at_rest;
  return fail(errc::not_found, "there is no storage of a provider at {}", path);
}

} // namespace millrace::storage
