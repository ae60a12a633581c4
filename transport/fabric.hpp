// Chooses a driver for every transfer, and makes the memory that drivers can reach. One per node or client.
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
  /// Errors: `invalid_argument` for a driver this build does not have.
  static result<std::shared_ptr<fabric>> create(
    const fabric_options& options, const std::shared_ptr<net::io_loop>& loop);
  /// With drivers made elsewhere, tried in their order; `options.prefer` is not looked at. For a program's own
  /// drivers, and for tests.
  static std::shared_ptr<fabric> with_drivers(
    const fabric_options& options, std::vector<std::shared_ptr<driver>> drivers);
  virtual ~fabric() = default;

  /// Makes registered memory of `options.size_bytes`, which is touched now and announced to peers.
  virtual result<std::shared_ptr<memory_source>> make_memory(const arena_options& options) = 0;

  /// Makes a file or device that somebody mapped whole usable as `copy_op::local`, until the returned pointer
  /// goes. Whoever unmaps it first waits for the transfers that use it, or holds the mapping by their `hold`.
  ///
  /// The descriptor must hold no lock: peers keep a copy of it while they are connected.
  ///
  /// Peers of the same user and root get it, with the first transfer that touches it, and map the
  /// pieces they need. For other peers `submit` answers `unsupported` before any byte moves.
  /// Errors: `invalid_argument` for what is not a regular file or DAX device opened for reading and writing, or
  /// shorter than the mapping; `already_exists` when it overlaps registered memory.
  virtual result<std::shared_ptr<void>> adopt(const file_mapping& mapping) = 0;

  /// Copies within this process on the movers, past the caches; with `write_back` every cache line of the
  /// targets has been written back to the persistence domain when `done` runs. The caller keeps the memory.
  /// Errors: `unsupported` for `write_back` where the processor cannot; nothing has been copied.
  virtual void copy(std::vector<local_copy> parts, bool write_back, completion<void> done) = 0;

  /// Lets the fabric reach the process behind a channel. On the loop, from the channel's handler.
  virtual void peer_opened(const std::shared_ptr<net::channel>& c) = 0;
  virtual void peer_closed(net::channel& c, const status& why) = 0;
  /// A frame of kind `driver`.
  virtual void on_frame(net::channel& c, net::frame f) = 0;

  /// Takes sockets that open with an admission; null without a driver that has streams.
  virtual std::shared_ptr<net::stream_acceptor> stream_acceptor() const { return nullptr; }

  /// Moves bytes by the first driver that reaches the owner. See `driver::submit`.
  ///
  /// For memory of devices those that can have it are tried; `transfer_report` says which way was taken.
  /// When that fails with `unsupported`, `unavailable`, `io_error` or `peer_lost` while another driver still reaches
  /// the owner, the whole transfer is done again by that one, and after anything but `unsupported` the driver that
  /// failed is the last choice for `retry_after_ms`.
  virtual void submit(transfer t, completion<transfer_report> done) = 0;

  /// Memory of this process that was unmapped, or will be: drivers forget the registrations they kept of it, except
  /// under what is exposed now. Needed by nobody whose kernel tells of unmapping, or who exposes memory anew each time:
  /// registrations are kept beyond an exposure only where the kernel tells. Frees pinned pages at once. Any thread.
  virtual void invalidate(const void* data, std::uint64_t size_bytes) = 0;

  virtual const std::shared_ptr<mover_pool>& movers() const noexcept = 0;
  /// Every way that was used, and the one that would be, to every peer.
  virtual std::vector<path_stats> paths() const = 0;
  /// Of the drivers that report something.
  virtual std::vector<driver_report> reports() const = 0;
};

/// Exposes tensors to holders of the region's handle. Errors as `gather_list::of`.
result<region> expose(const std::vector<tensor_view>& views, access_mode how);

} // namespace millrace::transport
