// The memory of a loader: the ring in which batches stay, and that in which they are filled.
// Internal, used by `batch_loader`.
#pragma once

#include <millrace/runtime/client/calls/batch_device.hpp>
#include <millrace/runtime/client/calls/loaded_batch.hpp>
#include <millrace/runtime/client/calls/receive_ring.hpp>
#include <millrace/runtime/node/engine.hpp>
#include <millrace/transport/memory/memory_distance.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace millrace::runtime {

/// Without a device, batches are filled where they stay.
/// Threads: any.
class batch_memory {
public:
  /// What a batch needs. Without a device there is no `staging`.
  struct lent {
    std::shared_ptr<receive_ring::place> place, staging;
  };

  struct wanted {
    std::string device;       // empty: memory of this host
    bool is_remote = false;   // batches come from other processes by transfers
    std::size_t places = 0;   // for batches that stay
    std::size_t fillings = 0; // for a device: beside them, in which batches are filled
    std::uint64_t place_bytes = 0;
  };

  /// Makes the memory, and keeps the movers near the device, or near the network's, as long as it
  /// lives (`client.bind_readers`).
  /// Errors:  those of `batch_device::open`, and of the memory.
  static result<batch_memory> make(const engine& runs_on, const wanted& what);

  /// Lends what one batch needs; returns false, and lends nothing, if one place of it is not free.
  /// One thread at a time. `out` is the caller's, who may hold a lock: a place that returns calls
  /// for the next batch, and must not do so here.
  bool lend(lent& out) const;
  /// `freed` runs on the thread that returns a place, after it is free.
  void when_freed(const std::function<void()>& freed) const;
  /// It has copies of the places, which the caller keeps until it is made.
  std::shared_ptr<loaded_batch> make_batch(batch_step step, const lent& places) const;

  /// Returns true if the places of a batch have `size_bytes`.
  static bool has_room(const loaded_batch& of, std::uint64_t size_bytes) noexcept;
  /// Gives the places of a batch so much memory. Errors: as `make`.
  status widen(const loaded_batch& of, std::uint64_t size_bytes) const;

  /// Returns null without a device.
  const std::shared_ptr<batch_device>& device() const noexcept { return device_; }
  std::uint64_t size_bytes() const { return ring_->size_bytes(); } // of batches that stay
  /// Returns where the movers are kept, and why; empty: nowhere.
  const std::string& processors() const noexcept { return processors_; }
  /// Returns the same for memory that would be made now.
  /// Errors:  those of `batch_device::open`.
  static result<std::string> processors_for(
    const engine& runs_on, const std::string& device, bool is_remote);

private:
  status make_staging(
    const engine& runs_on, const wanted& what, const transport::processor_list& near);

  std::shared_ptr<batch_device> device_;
  std::string processors_;
  std::shared_ptr<void> kept_; // the movers, near the device
  receive_ring::source of_ring_, of_staging_;
  std::shared_ptr<receive_ring> ring_, staging_;
};

} // namespace millrace::runtime
