// Moving the samples of files to the memory that a data server has reserved.
// Internal, used by the preload of a working set; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/preload.hpp>
#include <millrace/runtime/client/calls/sample_blocks.hpp>
#include <millrace/storage/samples/sample_reader.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace millrace::runtime {

/// Who moves samples: the client that has reserved the memory, or one that has joined it.
enum class moving_role : std::uint8_t { leader, helper };

/// Writes the samples of all parts, and the tables of their fields, as far as no other client does:
/// the clients that fill a set claim blocks of it from the data servers. The files are read once,
/// field by field. Where damaged files are left out, the leader reads all files after one is found,
/// and the error is that of the first one.
/// Memory:  while it runs, blocks of 4 MiB, of 64 MiB for samples that are read together, 128 MiB
///          in all; the tables.
/// Threads: one at a time.
class sample_moving {
public:
  sample_moving(
    const preload_call& call, storage::samples::sample_reader& reader,
    const std::vector<const reserved_part*>& parts, moving_role role);
  ~sample_moving();
  sample_moving(const sample_moving&) = delete;
  sample_moving& operator=(const sample_moving&) = delete;

  /// Moves all that nobody else has claimed. Returns whether all samples of all parts are there;
  /// if not, others have the rest, and it is to be called again, since they may leave it.
  /// Errors:  those of the reader, the data servers and the transfers; `cancelled`; `no_space`.
  /// Threads: blocks the caller.
  result<bool> run();

  /// Returns whether it has failed for good. A data server that is `busy` may be asked again.
  bool has_failed() const;
  /// Returns whether the failure is one of this process: of files, or of its memory.
  bool is_own_failure() const noexcept;
  /// Returns whether the program's `progress` has thrown.
  bool program_has_failed() const noexcept;
  /// Returns the bytes of samples that were moved from here.
  std::uint64_t moved_bytes() const noexcept;
  /// Returns those that others have moved, as far as it is known.
  std::uint64_t bytes_elsewhere() const noexcept;

private:
  class work;

  std::unique_ptr<work> work_;
};

} // namespace millrace::runtime
