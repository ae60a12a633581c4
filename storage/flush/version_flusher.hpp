// The version flusher: copies versions of checkpoints to a directory. Called by the step flusher on
// its thread.
#pragma once

#include <millrace/storage/archive/archive.hpp>

#include <atomic>
#include <memory>
#include <string>

namespace millrace::storage::flush {

class model_directory;

struct flush_options {
  std::string directory;                   // on a parallel file system, say
  std::uint32_t keep = 2;                  // whole steps per model that stay
  std::uint32_t read_deadline_ms = 60'000; // for each window of a version
  std::uint32_t lock_deadline_ms = 60'000; // for other processes in the directory
};

/// A version of a shard to copy. It is open, and stays readable until it is copied.
struct flush_request {
  std::string model;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  archive::text_pairs axes;
  /// Its record's `version` is the step, and `stored_at_ns` the order of saves.
  std::shared_ptr<opened_model> version;
};

struct flush_receipt {
  std::string file;       // the shard's file
  bool whole = false;     // the step has all its shards and the manifest
  bool is_latest = false; // `latest` names the step
};

/// Writes files as `model_directory` describes them. `latest` always names a whole step, even after
/// a crash, and moves only forward in the order of saves. A version that was flushed before is not
/// written again.
///
/// Threads: any. Blocks the caller, as long as the directory's file system does.
class version_flusher {
public:
  /// Opens a directory and finishes steps that lack only the manifest or `latest`.
  static result<version_flusher> open(flush_options options);

  /// Copies one version. Errors: `cancelled` some MiB after `stopping` became true; those of
  /// reading the version and of writing the file.
  result<flush_receipt> flush(const flush_request& what, const std::atomic<bool>& stopping) const;

private:
  explicit version_flusher(flush_options options) : options_(std::move(options)) {}

  status write(
    model_directory& directory, const std::string& place, const flush_request& what,
    const std::atomic<bool>& stopping) const;

  flush_options options_;
};

} // namespace millrace::storage::flush
