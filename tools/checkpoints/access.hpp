// Access to checkpoints, whether a running service keeps them or a pool that no service has open.
// Used by `millrace checkpoints`.
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

/// `--pool PATH`, or the options that find a service.
struct checkpoint_place : connection_options {
  std::string pool;
};

void add_place_options(CLI::App& command, checkpoint_place& place);

/// The result of reading a version again: its size, and its tensors that do not match their
/// checksums.
struct verified_version {
  std::uint64_t size_bytes = 0;
  std::vector<std::string> corrupt;
};

/// The operations that a service and a pool have in common. Each call waits for its answer.
/// Threads: one call at a time.
class checkpoint_access {
public:
  virtual ~checkpoint_access() = default;

  /// Entries of a pool at rest have no provider.
  virtual result<listed<checkpoint_summary>> list(const std::string& prefix) = 0;
  /// `step` picks the provider that has it, if several have the model.
  /// Errors: `not_found`.
  virtual result<checkpoint_summary> describe(
    const std::string& model, std::optional<std::uint64_t> step) = 0;
  virtual result<shard_spec> describe_shard(
    const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step) = 0;

  /// Opens a version as a source. Its bytes stay the same whatever is saved meanwhile. With a
  /// service, the whole shard is held in memory.
  /// Errors:  `not_found` naming the available steps.
  virtual result<std::unique_ptr<storage::archive::tensor_source>> open(
    const std::string& model, std::uint32_t rank, std::uint64_t step) = 0;

  /// Verifies exactly this version.
  /// Errors:  `not_found` when it was replaced meanwhile.
  virtual result<verified_version> verify(
    const std::string& model, std::uint32_t rank, const version_summary& version,
    const storage::progress_callback& progress) = 0;

  /// Enrolls the shard and saves the source's tensors as one version of it.
  [[nodiscard]] virtual status import(
    shard_spec shard, std::uint64_t step, storage::archive::tensor_source& source,
    const storage::progress_callback& progress) = 0;

  [[nodiscard]] virtual status erase(
    const std::string& model, std::optional<std::uint64_t> step) = 0;

  /// Returns what was reclaimed, per provider or for the pool.
  virtual std::vector<result<std::pair<std::string, repack_report>>> repack(
    const storage::progress_callback& progress) = 0;
};

tl::expected<std::unique_ptr<checkpoint_access>, failure> open_access(
  const checkpoint_place& place);

/// The two implementations; `open_access` chooses one.
tl::expected<std::unique_ptr<checkpoint_access>, failure> open_pool_access(const std::string& path);
tl::expected<std::unique_ptr<checkpoint_access>, failure> open_service_access(
  const checkpoint_place& place);

/// Returns true unless a job that did not end in order may want to continue from the shard's
/// versions.
bool is_finished(const result<checkpoint_summary>& model, std::uint32_t rank);

} // namespace millrace::tools
