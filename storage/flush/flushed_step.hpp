// A flushed step, opened for reading. Used by who restores from a directory, and by tests.
#pragma once

#include <millrace/storage/flush/manifest.hpp>

namespace millrace::storage::flush {

class flushed_step {
public:
  const flush_manifest& manifest() const noexcept { return manifest_; }
  const std::string& path() const noexcept { return path_; }

  /// What was written beside a shard's file. Errors: `not_found`; `corrupt_data` when it is not of this step.
  result<shard_description> describe(std::uint32_t rank) const;

  /// A shard as it was saved: what its file says of its origin is not among its metadata.
  /// Errors: `not_found`; `corrupt_data` when the file is not the one that was described.
  result<std::unique_ptr<archive::tensor_source>> open_shard(std::uint32_t rank) const;

  /// Reads every byte and compares it with the descriptions. Errors: `corrupt_data` naming the tensor.
  [[nodiscard]] status verify() const;

private:
  friend result<flushed_step> open_flushed(
    const std::string&, const std::string&, std::optional<std::uint64_t>);

  result<std::unique_ptr<archive::tensor_source>> open(const shard_description& about) const;

  std::string path_;
  flush_manifest manifest_;
};

/// Opens a step of a model below `directory`, or the one that `latest` names.
/// Errors: `not_found` naming the steps that are there.
result<flushed_step> open_flushed(
  const std::string& directory, const std::string& model,
  std::optional<std::uint64_t> step = std::nullopt);

} // namespace millrace::storage::flush
