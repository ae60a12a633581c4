// The directory of one model's flushed steps: finds whole steps and the latest, removes old ones.
// Used by `version_flusher` and `open_flushed`.
#pragma once

#include <millrace/storage/flush/manifest.hpp>

#include <optional>

namespace millrace::storage::flush {

/// Returns a model's name as a file name. Letters, digits, '_', '-' and inner '.' stay; other bytes
/// are written like "%2F". A long name is cut and ends in a digest.
std::string directory_name_of(std::string_view model);

/// DIR/MODEL/step-N[.K]/rank-R-of-W.safetensors, rank-R-of-W.json, manifest.json; DIR/MODEL/latest.
///
/// The order of writes for a step: for each shard the tensors, then their description; after all
/// descriptions the manifest; then `latest`. Each file is written under another name, synced and
/// renamed. Several processes may share a directory, each with its own ranks; a lock file orders
/// their changes of manifests and `latest`.
class model_directory {
public:
  /// Opens the directory, and makes it if it does not exist.
  static result<model_directory> make(const std::string& root, const std::string& model);
  static model_directory at(const std::string& root, const std::string& model);
  /// Opens the directory at `path`, whatever its model is.
  static model_directory in(const std::string& path) { return {path, ""}; }

  const std::string& path() const noexcept { return path_; }

  /// One directory of a step. A step that is saved again after a flush gets another directory:
  /// step-7.2.
  struct step_place {
    std::string name;
    std::uint64_t step = 0;
    std::uint64_t attempt = 1;
    bool whole = false;
  };
  std::vector<step_place> steps() const;

  /// Returns the directory to which a shard is to be written: the step's newest one if it is not
  /// whole, else the next one. Null when this version was flushed before. Removes leftovers of the
  /// same rank.
  result<std::optional<std::string>> place_for(
    const flushed_shard& shard, std::uint64_t step, std::uint32_t world_size,
    std::uint32_t deadline_ms);

  /// Removes the directory of a shard that was not written, unless it holds others.
  void give_up(const std::string& place) noexcept;

  /// Writes the description of a shard whose file is complete.
  [[nodiscard]] status describe(const std::string& place, const shard_description& description);

  /// Writes the manifests of steps that have become whole, moves `latest` forward, and removes
  /// steps beyond `keep` and leftovers older than the oldest step that stays. Never removes what
  /// `latest` names.
  [[nodiscard]] status settle(std::uint32_t keep, std::uint32_t deadline_ms);

  result<flush_manifest> manifest(const std::string& place) const;
  result<shard_description> description(
    const std::string& place, std::uint32_t rank, std::uint32_t world_size) const;
  /// Returns the directory that `latest` names. Errors: `not_found`.
  result<std::string> latest() const;

private:
  model_directory(std::string path, std::string model)
    : path_(std::move(path)), model_(std::move(model)) {}

  /// Returns whether it has written the manifest, durably.
  result<bool> finish(const step_place& place);
  result<flush_manifest> gather(
    const step_place& place, std::vector<std::uint32_t> ranks, std::uint32_t world_size) const;
  status move_latest(const std::string& newest, bool is_durable);
  status prune(std::vector<std::pair<flush_manifest, step_place>> whole, std::uint32_t keep);
  status remove_step(const step_place& place);

  std::string path_;
  std::string model_;
};

/// Returns the name of a shard's file in its step's directory, without the extension.
std::string shard_file_stem(std::uint32_t rank, std::uint32_t world_size);

} // namespace millrace::storage::flush
