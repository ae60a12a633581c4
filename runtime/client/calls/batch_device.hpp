// The device to whose memory a loader brings its batches.
// Internal, used by `batch_loader`.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/runtime/client/calls/loaded_batch.hpp>
#include <millrace/runtime/client/calls/receive_ring.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/memory/device_memory.hpp>

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

namespace millrace::runtime {

/// Batches are filled in pinned memory of the host, and copied from there. A batch that the program
/// has released goes back into the ring when the device has done the work that uses it.
///
/// It keeps no fabric and no client: batches that the program holds outlive both.
/// Threads: any.
class batch_device : public std::enable_shared_from_this<batch_device> {
public:
  /// Opens the device. Errors: those of `transport::open_device`.
  static result<std::shared_ptr<batch_device>> open(
    std::string_view name, std::shared_ptr<net::io_loop> loop);

  const transport::device_memory& memory() const noexcept { return *memory_; }

  /// Returns a source of memory of the device. It is freed on a thread of its own, which waits
  /// until the device is idle.
  receive_ring::source places() const;
  /// Returns a source of memory of the host, registered and pinned for the device.
  receive_ring::source staging(const std::shared_ptr<transport::fabric>& fabric) const;

  /// Moves a batch to its place. `done` runs on a thread for devices when the device has it.
  /// Errors:  those of `device_memory::copy`.
  void move(
    transport::mover_pool& movers, std::shared_ptr<loaded_batch> data, completion<void> done) const;
  /// Gives a batch back when the device has done the work that is now in the batch's stream. Does
  /// not wait.
  void give_back(std::shared_ptr<const loaded_batch> data) const noexcept;

private:
  batch_device(std::shared_ptr<transport::device_memory> memory, std::shared_ptr<net::io_loop> loop)
    : memory_(std::move(memory)), loop_(std::move(loop)) {}

  void give_back_late(std::shared_ptr<const loaded_batch> data) const;
  status give_back_behind(std::shared_ptr<const loaded_batch>& data) const;

  const std::shared_ptr<transport::device_memory> memory_;
  const std::shared_ptr<net::io_loop> loop_;
  mutable std::atomic<bool> told_ = false; // the log has that a stream could not tell
};

} // namespace millrace::runtime
