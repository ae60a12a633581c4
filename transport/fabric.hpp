// Chooses a driver for every transfer, and makes the memory that drivers can reach. Each node or
// client has one.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/net/channel/stream_acceptor.hpp>
#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/copy/local_copy.hpp>
#include <millrace/transport/driver.hpp>
#include <millrace/transport/fabric_options.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/memory/region.hpp>

#include <memory>
#include <string>
#include <vector>

namespace millrace::transport {

class fabric {
public:
  /// Makes a fabric with the drivers that `options` names.
  /// Errors:  `invalid_argument` for a driver that this build does not have.
  static result<std::shared_ptr<fabric>> create(
    const fabric_options& options, const std::shared_ptr<net::io_loop>& loop);
  /// Makes a fabric with drivers made elsewhere, which are tried in their order. Ignores
  /// `options.prefer`. For a program's own drivers, and for tests.
  static std::shared_ptr<fabric> with_drivers(
    const fabric_options& options, std::vector<std::shared_ptr<driver>> drivers);
  virtual ~fabric() = default;

  /// Makes registered memory of `options.size_bytes`, touches it now, and announces it to peers
  /// unless they get it only when they map a region of it (`options.sharing`).
  virtual result<std::shared_ptr<memory_source>> make_memory(const arena_options& options) = 0;

  /// Makes a file or device that is mapped whole usable as `copy_op::local`, until the returned
  /// pointer goes. Before the caller unmaps it, it must wait for the transfers that use it, or
  /// their `hold` must keep the mapping.
  ///
  /// The descriptor must hold no lock, since peers keep a copy of it while they are connected.
  ///
  /// Peers of the same user and root get the descriptor with the first transfer that touches the
  /// mapping, and map the granules they need. For other peers, `submit` answers `unsupported`
  /// before any byte moves.
  /// Errors:  `invalid_argument` for what is not a regular file or DAX device opened for reading
  ///          and writing, or for a file that is shorter than the mapping; `already_exists` when
  ///          the mapping overlaps registered memory.
  virtual result<std::shared_ptr<void>> adopt(const file_mapping& mapping) = 0;

  /// Copies within this process on the movers, past the caches. With `write_back`, every cache line
  /// of the targets has been written back to the persistence domain when `done` runs. The caller
  /// keeps the memory alive.
  /// Errors:  `unsupported` for `write_back` where the processor cannot; nothing has been copied
  ///          then.
  virtual void copy(std::vector<local_copy> parts, bool write_back, completion<void> done) = 0;

  /// Lets the fabric reach the process behind a channel. Call it on the loop, from the channel's
  /// handler.
  virtual void peer_opened(const std::shared_ptr<net::channel>& c) = 0;
  virtual void peer_closed(net::channel& c, const status& why) = 0;
  /// Handles a frame of kind `driver`.
  virtual void on_frame(net::channel& c, net::frame f) = 0;

  /// Returns the object that takes sockets which open with a stream proof; null if no driver has
  /// streams.
  virtual std::shared_ptr<net::stream_acceptor> stream_acceptor() const { return nullptr; }

  /// Moves bytes with the first driver that reaches the owner. See `driver::submit`.
  ///
  /// For device memory, only the drivers that can reach it are tried. `transfer_report` names the
  /// driver that moved the bytes.
  ///
  /// If a driver fails with `unsupported`, `unavailable`, `io_error` or `peer_lost` and another
  /// driver still reaches the owner, the other driver repeats the whole transfer. After any of
  /// these errors but `unsupported`, the driver that failed is the last choice for
  /// `retry_after_ms`.
  virtual void submit(transfer t, completion<transfer_report> done) = 0;

  /// Maps a region for reading, or for reading and writing, by the first driver that maps and
  /// reaches the owner. See `driver::map`. After `unsupported` the region can still be reached by
  /// transfers.
  /// Errors:  those of `driver::map`. Threads: any.
  virtual void map(const bulk_handle& remote, access_mode how, completion<mapped_region> done) = 0;
  void map(const bulk_handle& remote, completion<mapped_region> done) {
    map(remote, access_mode::read, std::move(done));
  }

  /// Makes the drivers forget the registrations they kept of memory that was unmapped, or will be.
  /// Registrations under memory that is exposed now stay. Pinned pages are freed at once.
  ///
  /// Unnecessary when the kernel reports unmapping (userfaultfd), or when memory is exposed anew
  /// for each call: registrations outlive an exposure only where the kernel reports unmapping.
  /// Threads: any.
  virtual void invalidate(const void* data, std::uint64_t size_bytes) = 0;

  virtual const std::shared_ptr<mover_pool>& movers() const noexcept = 0;
  /// Returns, for every peer, each driver that was used and the driver that would be used next.
  virtual std::vector<path_stats> paths() const = 0;
  /// Returns the network devices by which drivers reach peers, see `driver::devices_in_use`.
  virtual std::vector<std::string> devices_in_use() const { return {}; }
  /// Returns the reports of the drivers that have one.
  virtual std::vector<driver_report> reports() const = 0;
};

/// Exposes tensors to holders of the region's handle.
/// Errors:  those of `gather_list::of`.
result<region> expose(const std::vector<tensor_view>& views, access_mode how);

} // namespace millrace::transport
