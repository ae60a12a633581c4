// Copies versions of checkpoints on to a directory, in the background. Asked by whoever hears that one is durable.
#pragma once

#include <millrace/storage/archive/archive.hpp>

#include <memory>
#include <string>

namespace millrace::storage {

struct flush_options {
  std::string directory;                   // on a parallel file system, say
  std::uint32_t keep = 2;                  // whole steps per model that stay
  std::uint32_t queue_max = 64;            // versions that wait
  std::uint32_t read_deadline_ms = 60'000; // for each window of a version
  std::uint32_t lock_deadline_ms = 60'000; // for other processes in the directory
};

/// A shard's version to copy. It is open, and so stays readable, until it is copied.
struct flush_request {
  std::string model;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  text_pairs axes;
  std::shared_ptr<opened_model>
    version; // its `version` is the step, its `stored_at_ns` the save order
};

struct flush_receipt {
  std::string file;       // of the shard
  bool whole = false;     // all shards of the step are there, and the manifest
  bool is_latest = false; // `latest` names the step
};

/// Files as `model_directory` describes them: `latest` always names a whole step, whenever the process dies, and
/// moves only forward in the order of saves. A version that was flushed before is not written again.
///
/// Threads: one of its own; calls from any. Completions run on that thread.
class version_flusher {
public:
  /// Takes the directory as it is: finishes steps of which only the manifest or `latest` was missing.
  static result<std::unique_ptr<version_flusher>> open(flush_options options);

  virtual ~version_flusher() = default;

  /// Errors: `busy` when the queue is full; what reading the version or writing the file says.
  virtual void flush(flush_request what, completion<flush_receipt> done) = 0;

  /// Refuses new work, works off what waits, and cancels what is left after `deadline_ms`.
  [[nodiscard]] virtual status close(std::uint32_t deadline_ms) = 0;
};

} // namespace millrace::storage
