// Batches of a working set, read ahead of a training. Called by programs, the C ABI and Python.
#pragma once

#include <millrace/core/batch_plan.hpp>
#include <millrace/core/device_stream.hpp>
#include <millrace/core/future.hpp>
#include <millrace/core/sample_order.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/core/working_set.hpp>
#include <millrace/runtime/client/loader_state.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace millrace {

class set_reader;

namespace runtime {
class batch_loader;
class loaded_batch;
} // namespace runtime

struct loader_options {
  std::uint64_t batch_size = 1; // samples of this rank's batch
  std::uint64_t rank = 0;
  std::uint64_t world_size = 1; // ranks that share the batches, 1 to 65,536
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0; // the first one
  shuffle_kind shuffle = {};
  remainder_kind remainder = remainder_kind::shorter;
  std::vector<std::string> fields = {}; // by name, in the order of `batch::field`; empty: all
  /// Batches that are read ahead, 1 to 64. The receive ring has two places more: for the batch that
  /// the program works on, and for the one that it has not released yet.
  std::uint32_t prefetch = 4;
  /// The device to whose memory the batches go, such as "cuda:0"; empty: memory of the host. The
  /// receive ring is then there, and `prefetch` places of pinned memory of the host are beside it.
  std::string device = {};
};

/// A batch in the receive ring. Its memory is valid, and not written again, until the last copy of
/// it is destroyed; then a later batch takes its place. In memory of a device, it is not written
/// again before the device has done the work that uses it, see `follow`.
/// Threads: any.
class batch {
public:
  explicit batch(std::shared_ptr<const runtime::loaded_batch> of) : of_(std::move(of)) {}

  std::uint64_t epoch() const noexcept;
  /// Returns the position in the epoch at which the batch of all ranks begins.
  std::uint64_t position() const noexcept;
  /// Returns the samples, in their order. There may be none, see `remainder_kind::shorter`.
  std::span<const std::uint64_t> ids() const noexcept;
  /// Returns the places of the batch: the samples and, after them, the padding, whose bytes are 0.
  std::uint64_t rows() const noexcept;
  /// Returns 1 for each place that has a sample, 0 for padding.
  /// Shape: [rows] of `boolean`.
  tensor_view mask() const;

  std::size_t fields() const noexcept;
  /// Returns one field of all places, with the name of the field. It lies in memory of the device
  /// if the loader has one; the mask and the offsets are always in memory of the host.
  /// Shape: [rows, the shape of a sample], row-major; of a field whose samples differ in size,
  ///        [sum of their first dimensions, the rest of the shape], see `offsets`.
  tensor_view field(std::size_t field) const;
  /// Returns where in `field` each place begins, and where the last one ends, in steps of its first
  /// dimension. Empty for a field whose samples are all of one size.
  /// Shape: [rows + 1].
  std::span<const std::uint64_t> offsets(std::size_t field) const;

  /// Names the stream of the device whose work uses the batch. What is in it when the last copy of
  /// the batch is destroyed is done before a later batch takes the place. The last call counts;
  /// without one it is the device's default stream. Work of other streams must be done before, or
  /// this stream must wait for it. The stream must exist until the batch is destroyed.
  ///
  /// The bytes are on the device when the program gets the batch: work that begins later sees them.
  /// Errors:  `invalid_argument` for a batch in memory of the host, or a stream of another kind of
  ///          device.
  [[nodiscard]] status follow(const device_stream& stream) const;

private:
  std::shared_ptr<const runtime::loaded_batch> of_;
};

/// What a loader has done since it was made.
struct loader_counts {
  std::uint64_t batches = 0; // handed out
  std::uint64_t samples = 0;
  std::uint64_t bytes = 0;
  std::uint64_t ready = 0;      // batches that wait for the program
  std::uint64_t reading = 0;    // batches that are being read
  std::uint64_t held = 0;       // batches that the program has not released
  std::uint64_t waits = 0;      // calls of `next` that found no batch ready
  std::uint64_t waited_ns = 0;  // in all of them
  std::uint64_t ring_bytes = 0; // of the receive ring, without that of the host for a device
  /// By the reader of the loader, for all that reads by it, see `set_reader`.
  std::uint64_t samples_from_files = 0;
  std::uint64_t samples_from_window = 0;
  /// Of all reads of the client from other hosts, which share the network: bytes that may be in
  /// flight at once, bytes that are, the stages in which those were asked for, and all stages so
  /// far. Without such reads the first one is what they would begin with, and the others are 0.
  std::uint64_t remote_limit_bytes = 0;
  std::uint64_t remote_inflight_bytes = 0;
  std::uint64_t remote_inflight_stages = 0;
  std::uint64_t remote_stages = 0;
};

/// Reads the batches of one rank ahead of the program, epoch after epoch, into a ring of memory
/// that is registered once.
///
/// All ranks of a job make one with the same options but for `rank`, and get the same number of
/// batches in each epoch. Reads that were under way when the loader goes end first; batches that
/// the program holds stay valid.
/// In a forked child `next`, `seek` and `set_epoch` fail with `unavailable`; call nothing else
/// there.
/// Threads: any.
/// Source:  the loading paper, sections 4.2 `Readbatch` and 4.4.
class loader {
public:
  explicit loader(std::shared_ptr<runtime::batch_loader> of) : of_(std::move(of)) {}

  /// Returns the next batch; none at the end of an epoch, once. The call after that gives the first
  /// batch of the next epoch. Calls are answered in their order. A cancelled call has taken no
  /// batch.
  /// Errors:  `no_space` while the program holds all places of the ring; those of
  ///          `set_reader::read_batch`. After such an error the loader stays where it is, and the
  ///          next call tries again.
  future<std::optional<batch>> next() const;

  /// Returns where the training is: at the batch that `next` will give. Keep it with a checkpoint.
  /// It is the same on all ranks that have taken as many batches.
  loader_state state() const;
  /// Goes on at a state. The number of ranks and the batch size may differ from those with which
  /// the state was made; seed and shuffle become those of the state.
  /// Errors:  `invalid_argument` for the state of another set or a position that it does not have.
  [[nodiscard]] status seek(const loader_state& to) const;
  /// Goes to the beginning of an epoch. Errors: `unavailable` in a forked child, as `seek`.
  [[nodiscard]] status set_epoch(std::uint64_t epoch) const;

  /// Returns the batches of an epoch.
  std::uint64_t batches_per_epoch() const noexcept;
  /// Returns the batches that are left of this epoch.
  std::uint64_t batches_left() const;
  loader_options options() const;
  const set_info& set() const noexcept;
  loader_counts counts() const;
  /// Returns where the client's threads that copy are kept for this loader, and why, such as
  /// "processors 0-15, near cuda:0"; empty: nowhere, see `client.bind_readers`. They use those of
  /// them that they might use before.
  std::string processors() const;

private:
  std::shared_ptr<runtime::batch_loader> of_;
};

} // namespace millrace
