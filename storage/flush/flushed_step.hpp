// A flushed step, opened for reading. Used to restore from a directory, and by tests.
#pragma once

#include <millrace/storage/flush/manifest.hpp>

namespace millrace::storage::flush {

/// One whole step in a model's directory. Threads: one call at a time.
class flushed_step {
public:
  const flush_manifest& manifest() const noexcept { return manifest_; }
  const std::string& path() const noexcept { return path_; }

  /// Returns the description beside a shard's file. Errors: `not_found`; `corrupt_data` when it
  /// belongs to another step.
  result<shard_description> describe(std::uint32_t rank) const;

  /// Returns a shard as it was saved, without the entries of its file's metadata that name its
  /// origin.
  /// Errors: `not_found`; `corrupt_data` when the file does not match its description.
  result<std::unique_ptr<archive::tensor_source>> open_shard(std::uint32_t rank) const;

  /// Reads every byte and compares it with the descriptions. Errors: `corrupt_data` naming the
  /// tensor.
  [[nodiscard]] status verify() const;

private:
  friend result<flushed_step> open_flushed(
    const std::string&, const std::string&, std::optional<std::uint64_t>);

  result<std::unique_ptr<archive::tensor_source>> open(const shard_description& about) const;

  std::string path_;
  flush_manifest manifest_;
};

/// Opens a step of a model in `directory`; without `step` the one that `latest` names.
/// Errors: `not_found` naming the steps that the directory has.
result<flushed_step> open_flushed(
  const std::string& directory, const std::string& model,
  std::optional<std::uint64_t> step = std::nullopt);

} // namespace millrace::storage::flush
