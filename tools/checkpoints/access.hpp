// Checkpoints wherever they are: kept by a running service, or in a pool at rest. Used by `millrace checkpoints`.
#pragma once

#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/checkpoint_store.hpp>
#include <millrace/tools/connection.hpp>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::tools {

/// `--pool PATH`, or how a service is found.
struct checkpoint_place : connection_options {
  std::string pool;
};

void add_place_options(CLI::App& command, checkpoint_place& place);

/// Bytes of a version that were read again, and its tensors that do not match their checksums.
struct verified_version {
  std::uint64_t size_bytes = 0;
  std::vector<std::string> corrupt;
};

/// What several commands ask of either. Threads: one call at a time; each waits for its answer.
class checkpoint_access {
public:
  virtual ~checkpoint_access() = default;

  virtual result<std::vector<checkpoint_summary>> list(const std::string& prefix) = 0;
  /// Errors: `not_found`.
  virtual result<checkpoint_summary> describe(const std::string& model) = 0;
  virtual result<shard_spec> describe_shard(const std::string& model, std::uint32_t rank) = 0;

  /// A version as a source, the same whatever is saved meanwhile. Memory: of a service all of the shard.
  /// Errors: `not_found` naming the steps that are there.
  virtual result<std::unique_ptr<storage::archive::tensor_source>> open(
    const std::string& model, std::uint32_t rank, std::uint64_t step) = 0;

  /// Of the shard's versions this one. Errors: `not_found` when it was replaced meanwhile.
  virtual result<verified_version> verify(
    const std::string& model, std::uint32_t rank, const version_summary& version,
    const storage::progress_callback& progress) = 0;

  /// Enrolls the shard and saves what the source has as one version of it.
  [[nodiscard]] virtual status import(
    shard_spec shard, std::uint64_t step, storage::archive::tensor_source& source,
    const storage::progress_callback& progress) = 0;

  [[nodiscard]] virtual status erase(
    const std::string& model, std::optional<std::uint64_t> step) = 0;

  /// Per provider, or for the pool, what was reclaimed.
  virtual std::vector<result<std::pair<std::string, storage::repack_report>>> repack(
    const storage::progress_callback& progress) = 0;
};

tl::expected<std::unique_ptr<checkpoint_access>, failure> open_access(
  const checkpoint_place& place);

/// Both kinds; `open_access` chooses.
tl::expected<std::unique_ptr<checkpoint_access>, failure> open_pool_access(const std::string& path);
tl::expected<std::unique_ptr<checkpoint_access>, failure> open_service_access(
  const checkpoint_place& place);

/// True unless a job that did not end in order may want to go on from the shard's versions.
bool is_finished(const result<checkpoint_summary>& model, std::uint32_t rank);

/// The complete step saved last; null when there is none.
std::optional<std::uint64_t> newest_step(const checkpoint_summary& model);

} // namespace millrace::tools
