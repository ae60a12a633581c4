// A flushed step, opened for reading. Used by who restores from a directory, and by tests.
#pragma once

#include <millrace/storage/flush/manifest.hpp>

namespace millrace::storage {

class flushed_step {
public:
  const flush_manifest& manifest() const noexcept { return manifest_; }
  const std::string& path() const noexcept { return path_; }

  /// Errors: `not_found`; `corrupt_data` when the file is not the one that the manifest describes.
  result<std::unique_ptr<tensor_source>> open_shard(std::uint32_t rank) const;

  /// Reads every byte and compares it with the manifest. Errors: `corrupt_data` naming the tensor.
  [[nodiscard]] status verify() const;

private:
  friend result<flushed_step> open_flushed(
    const std::string&, const std::string&, std::optional<std::uint64_t>);

  std::string path_;
  flush_manifest manifest_;
};

/// Opens a step of a model below `directory`, or the one that `latest` names.
/// Errors: `not_found` naming the steps that are there.
result<flushed_step> open_flushed(
  const std::string& directory, const std::string& model,
  std::optional<std::uint64_t> step = std::nullopt);

} // namespace millrace::storage
