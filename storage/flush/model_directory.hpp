// The directory of one model's flushed steps: which are whole, which is the latest, which may go. Used by
// `version_flusher` and `open_flushed`.
#pragma once

#include <millrace/storage/flush/manifest.hpp>

#include <optional>

namespace millrace::storage::flush {

/// The name of a model as a file's: letters, digits, '_', '-' and inner '.' stay, other bytes become "%2F". Long
/// ones are cut and end in a digest.
std::string directory_name_of(std::string_view model);

/// DIR/MODEL/step-N[.K]/rank-R-of-W.safetensors, rank-R-of-W.json, manifest.json; DIR/MODEL/latest.
///
/// Order of events for a step: per shard the tensors, then their description; when all descriptions are there the
/// manifest; then `latest`. Each is written under another name, synced and renamed. Several processes may share a
/// directory, each with its own ranks: a lock file orders what they do to manifests and `latest`.
class model_directory {
public:
  /// Makes the directory if need be.
  static result<model_directory> make(const std::string& root, const std::string& model);
  static model_directory at(const std::string& root, const std::string& model);
  /// Of whatever model lies at `path`.
  static model_directory in(const std::string& path) { return {path, ""}; }

  const std::string& path() const noexcept { return path_; }

  /// One directory of a step. A step that is saved again after it was flushed gets another one: step-7.2.
  struct step_place {
    std::string name;
    std::uint64_t step = 0;
    std::uint64_t attempt = 1;
    bool whole = false;
  };
  std::vector<step_place> steps() const;

  /// Where a shard shall be written: the step's newest directory if that is not whole yet, else the next one. Null
  /// when this very version was flushed before. Leftovers of the same rank are removed.
  result<std::optional<std::string>> place_for(
    const flushed_shard& shard, std::uint64_t step, std::uint32_t world_size,
    std::uint32_t deadline_ms);

  /// The shard's file is there: describes it.
  [[nodiscard]] status describe(const std::string& place, const shard_description& description);

  /// Writes manifests of steps that have become whole, moves `latest` forward, and removes steps beyond `keep` and
  /// remains that were left before the oldest one kept. Never what `latest` names.
  [[nodiscard]] status settle(std::uint32_t keep, std::uint32_t deadline_ms);

  result<flush_manifest> manifest(const std::string& place) const;
  result<shard_description> description(
    const std::string& place, std::uint32_t rank, std::uint32_t world_size) const;
  /// The directory that `latest` names. Errors: `not_found`.
  result<std::string> latest() const;

private:
  model_directory(std::string path, std::string model)
    : path_(std::move(path)), model_(std::move(model)) {}

  status finish(const step_place& place);
  result<flush_manifest> gather(
    const step_place& place, std::vector<std::uint32_t> ranks, std::uint32_t world_size) const;
  status move_latest(const std::vector<std::pair<flush_manifest, step_place>>& whole);
  status prune(std::vector<std::pair<flush_manifest, step_place>> whole, std::uint32_t keep);
  status remove_step(const step_place& place);

  std::string path_;
  std::string model_;
};

/// The file of one shard in its step's directory, without its ending.
std::string shard_file_stem(std::uint32_t rank, std::uint32_t world_size);

} // namespace millrace::storage::flush
