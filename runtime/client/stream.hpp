// Streaming sets: producers append samples while trainings read them. Called by programs, the C ABI
// and Python.
#pragma once

#include <millrace/core/future.hpp>
#include <millrace/core/sample_stream.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/runtime/client/loader.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

namespace runtime {
class client_core;
class stream_producing;
class stream_reading;
} // namespace runtime

struct producer_options {
  /// Samples that are under way at once, 1 to 1024. The producer has registered memory for so many.
  std::uint32_t in_flight = 16;
};

/// Appends samples to a stream. The samples of one producer are appended in the order of its calls.
///
/// A producer that is destroyed before `end` gives up what is under way. It has not ended then: it,
/// or another one, can go on.
/// Threads: any.
class stream_producer {
public:
  explicit stream_producer(std::shared_ptr<runtime::stream_producing> of) : of_(std::move(of)) {}

  /// Appends a sample: a tensor of each field, in the order of the fields, dense or strided, with
  /// the dtype and the shape of the field. The bytes are copied before the call returns, so the
  /// memory is the program's again at once. The future is ready when the stream has the sample;
  /// with `full_policy::block` that may take as long as readers take. One that is cancelled is not
  /// appended, unless it was too late.
  /// Errors:  `invalid_argument` naming the field, or after the end of the stream; `unsupported`
  ///          for device memory; `busy` while `in_flight` samples are under way: wait for one;
  ///          `not_found` when the stream was removed or the connection was lost: make another
  ///          producer; `peer_lost`.
  future<void> append(const std::vector<tensor_view>& sample) const;

  /// Ends after all appends that are under way. The stream ends with the last one of
  /// `stream_options::producers`.
  /// Errors:  `invalid_argument` for a second call, unless the first one failed; as `append`.
  future<void> end() const;

  /// Returns the stream as it was when the producer was made.
  const stream_status& stream() const noexcept;

private:
  std::shared_ptr<runtime::stream_producing> of_;
};

struct stream_reader_options {
  std::uint64_t batch_size = 1; // samples of a batch at most; at most the stream's capacity
  /// Batches that the program holds or waits for at once, 1 to 64. The reader has registered memory
  /// for so many.
  std::uint32_t batches = 4;
};

/// Reads batches of a stream. Several readers share the samples: of fifo and firo each one goes to
/// one of them.
///
/// A reader that dies after it was given samples has had them: they are not given again.
/// Batches outlive the reader.
/// Threads: any.
class stream_reader {
public:
  explicit stream_reader(std::shared_ptr<runtime::stream_reading> of) : of_(std::move(of)) {}

  /// Returns the next batch, of `samples` different samples; 0: `batch_size`. Fewer at the end of
  /// the stream, and then none. `batch::ids` are the numbers of the samples in the order in which
  /// they were appended, from 0. Calls that wait at once may be answered in another order.
  ///
  /// `timeout`: 0, or a year and more, waits as long as the stream lives. A call that is cancelled,
  /// or late, has taken no sample: those that were on the way are put back.
  /// Errors:  `invalid_argument` for more than `batch_size`, or a timeout less than 0; `no_space`
  ///          while the program has or awaits `batches` batches; `deadline_exceeded`;
  ///          `corrupt_data` when a sample is not as its producer has described it: the batch is
  ///          lost; `not_found` when the stream was removed or the lease has ended: make another
  ///          reader; `peer_lost`.
  future<std::optional<batch>> next(
    std::uint64_t samples = 0, std::chrono::milliseconds timeout = {}) const;

  /// Returns the stream as it was when the reader was made.
  const stream_status& stream() const noexcept;

private:
  std::shared_ptr<runtime::stream_reading> of_;
};

/// A streaming set by its name. One node keeps a stream, in the memory of its data server; every
/// client computes the same node from the name.
/// Errors:  common to all calls: `not_found` when no node has a data server; `peer_lost` and
///          `unavailable` naming the node; `deadline_exceeded`.
/// Threads: any.
/// Source:  the policies are those of Melissa; `capacity` and `when_full` are the queue limit and
///          the queue full policy of ADIOS2 SST.
class stream {
public:
  stream(std::shared_ptr<runtime::client_core> core, std::string name)
    : core_(std::move(core)), name_(std::move(name)) {}

  const std::string& name() const noexcept { return name_; }

  /// Makes the stream. If it is there already with the same options, it is left as it is. So each
  /// producer can call this.
  /// Errors:  `invalid_argument` naming the option or the field; `already_exists` for other
  ///          options; `no_space` with the bytes asked for and those that are free.
  future<stream_status> create(const stream_options& options) const;

  /// Opens the stream for a producer.
  /// Errors:  `not_found`; `invalid_argument` after the end; `busy` when the stream has all its
  ///          producers; `no_space` without memory for samples under way.
  future<stream_producer> producer(const producer_options& options = {}) const;
  /// Opens the stream for a reader.
  /// Errors:  `not_found`; `invalid_argument` naming the option; `no_space`.
  future<stream_reader> reader(const stream_reader_options& options = {}) const;

  /// Errors:  `not_found`.
  future<stream_status> status() const;
  /// Ends the stream, whatever its producers do: readers get what is left.
  /// Errors:  `not_found`; `permission_denied` naming the owner.
  future<void> end() const;
  /// Removes the stream and its samples at once. Producers and readers get `not_found`.
  /// Errors:  `not_found`; `permission_denied` naming the owner.
  future<void> remove() const;

private:
  std::shared_ptr<runtime::client_core> core_;
  std::string name_;
};

} // namespace millrace
