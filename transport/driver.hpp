// A way to move bytes between this process and a peer. The fabric chooses one per transfer.
#pragma once

#include <millrace/core/assert.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/driver_report.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/net/channel/stream_acceptor.hpp>
#include <millrace/transport/memory/mapped_region.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::transport {

/// The direction of a transfer, seen from the submitting side: `read` brings the peer's bytes here,
/// `write` takes ours there.
enum class direction : std::uint8_t { read = 1, write = 2 };

/// Returns the right to the peer's memory that the direction needs.
constexpr access_mode access_for(direction dir) noexcept {
  return dir == direction::read ? access_mode::read : access_mode::write;
}

/// One contiguous range of a region and its local side.
struct copy_op {
  std::uint64_t remote_offset = 0; // into the handle's region
  std::byte* local = nullptr;      // registered memory: inside an arena or an adopted file mapping
  std::uint64_t length = 0;
  /// Bytes before and after the local range that only the digests cover. `local - lead` is the
  /// first byte of a digest block; each of the two is shorter than one block. These bytes are
  /// registered memory, too. For writes only.
  std::uint64_t lead = 0;
  std::uint64_t tail = 0;
};

/// The ops of a transfer. Copies share one list, so that a transfer which another driver may have
/// to repeat costs no copy of thousands of ops. A list must be filled before it is first copied.
class copy_list {
public:
  copy_list() = default;
  copy_list(std::vector<copy_op> ops)
    : ops_(std::make_shared<std::vector<copy_op>>(std::move(ops))) {}
  copy_list(std::initializer_list<copy_op> ops) : copy_list(std::vector<copy_op>{ops}) {}

  void reserve(std::size_t count) { filling().reserve(count); }
  void push_back(const copy_op& op) { filling().push_back(op); }

  std::size_t size() const noexcept { return ops_ ? ops_->size() : 0; }
  bool empty() const noexcept { return size() == 0; }
  const copy_op* data() const noexcept { return ops_ ? ops_->data() : nullptr; }
  const copy_op* begin() const noexcept { return data(); }
  const copy_op* end() const noexcept { return data() + size(); }
  const copy_op& operator[](std::size_t i) const noexcept { return data()[i]; }
  const copy_op& front() const noexcept { return *data(); }

private:
  std::vector<copy_op>& filling() {
    if (!ops_)
      ops_ = std::make_shared<std::vector<copy_op>>();
    MILLRACE_ASSERT(ops_.use_count() == 1);
    return *ops_;
  }

  std::shared_ptr<std::vector<copy_op>> ops_;
};

/// A batch that succeeds or fails as one. After a failure the target bytes are undefined.
struct transfer {
  direction dir = direction::read;
  bulk_handle remote = {};
  /// The number of the channel by which the owner has asked for the transfer. A driver that asks
  /// the owner by a channel uses this one, where the owner waits. 0, or one that is gone: any.
  std::uint64_t channel = 0;
  copy_list ops = {};
  bool digests = false; // compute block digests of the local side while the bytes pass
  /// Keeps the local memory. The driver drops it when nothing can touch that memory any more. After
  /// the loss of a peer, this may be later than the completion.
  std::shared_ptr<void> hold = {};
  /// For reads: write every cache line of the local side back to the persistence domain before
  /// `done`, where the processor can.
  bool write_back = false;
};

struct transfer_report {
  /// With `digests`: for each op, one value per digest block of its `lead + length + tail` bytes.
  std::vector<std::uint64_t> digests;
  std::string_view driver;       // the driver that moved the bytes
  bool written_back = false;     // with `write_back`: it was done, so no flush is needed
  std::string_view carrier = {}; // the driver that carried the bytes, if `driver` moves none itself
};

/// The abilities of a driver with memory, as data.
struct driver_capabilities {
  bool strided_regions = true; // false: strided regions are `unsupported`
  bool any_file = true;        // any file may be adopted as local side; false: only tmpfs, DAX
  bool host_memory = true;     // the owner's region may be host memory
  bool device_memory = false;  // the owner's region may be device memory, of some devices at least
  bool maps = false;           // regions can be mapped, see `driver::map`
};

class arena;

class driver {
public:
  virtual ~driver() = default;

  virtual std::string_view name() const noexcept = 0;
  virtual driver_capabilities capabilities() const noexcept = 0;

  /// Returns true if a transfer with the memory of `owner` can be submitted now.
  virtual bool reaches(const peer_id& owner) const noexcept = 0;

  /// Moves the bytes without blocking. `done` runs exactly once, also when the peer dies, on any
  /// thread, with no lock held.
  /// Errors:  `permission_denied` for the handle's key, range or access; `peer_lost` naming the
  ///          peer; `unsupported` when the peer may not or cannot reach the local memory (an
  ///          adopted file, a process of another user). Then no byte has moved, and the caller can
  ///          use staging memory instead.
  virtual void submit(transfer t, completion<transfer_report> done) = 0;

  /// Maps a region, so that later copies from it need no message: for reading with a handle for
  /// reading, for reading and writing (`mapped_region::writable`) with a handle for writing. Does
  /// not block. `done` runs exactly once, also when the peer dies, on any thread, with no lock
  /// held.
  ///
  /// The owner cannot take the mapping back. It says by other means when the bytes change. All
  /// processes that map for writing can change all bytes at any time.
  /// Errors:  `permission_denied` for the handle's key or access; `peer_lost` naming the peer;
  ///          `busy`; `unsupported` when the region is not one dense run of memory that its owner
  ///          lets peers map so (`arena_sharing`), or when the driver or the peer maps nothing so.
  ///          The caller can use transfers instead.
  virtual void map(const bulk_handle&, access_mode, completion<mapped_region> done) {
    done(fail(errc::unsupported, "the driver maps no regions"));
  }

  /// Announces memory of this process that transfers will use. The driver may begin to prepare all
  /// of it now, for example to register it with devices. It must not keep the memory alive. Does
  /// not block. Threads: any.
  virtual void memory_made(const std::shared_ptr<arena>&) {}

  /// Forgets what the driver has kept of this memory for later transfers, for example registrations
  /// with devices. Drivers that keep nothing do nothing. Threads: any.
  virtual void invalidate(const std::byte*, std::uint64_t) {}

  /// Returns the network devices by which the driver reaches peers now, as the system names them;
  /// none if it does not know. Threads: any.
  virtual std::vector<std::string> devices_in_use() const { return {}; }

  /// Returns what `millrace status` shows of the driver beside the bytes it moved; nothing if the
  /// driver has no state worth showing. Threads: any.
  virtual std::optional<driver_report> report() const { return std::nullopt; }
};

/// A driver that talks over the channel to the same driver in the peer. Called on the loop.
class peer_driver : public driver {
public:
  virtual void peer_opened(const std::shared_ptr<net::channel>& c) = 0;
  /// Ends every transfer with the peer. Comes early if the peer does not have this driver, and then
  /// once more for the same channel, which does nothing.
  virtual void peer_closed(net::channel& c, const status& why) = 0;
  /// Handles a frame of kind `driver` for this driver. `body` comes without the driver's name.
  virtual void on_message(
    net::channel& c, std::span<const std::byte> body, std::vector<net::unique_fd> fds) = 0;
  /// Returns the object that accepts the driver's own connections; null if the driver has none.
  virtual std::shared_ptr<net::stream_acceptor> stream_acceptor() const { return nullptr; }
};

} // namespace millrace::transport
