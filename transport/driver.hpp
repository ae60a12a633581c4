// A way to move bytes between this process and a peer. The fabric chooses one per transfer.
#pragma once

#include <millrace/core/assert.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/net/channel/stream_acceptor.hpp>
#include <millrace/transport/driver_report.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::transport {

/// Seen from the submitting side: `read` brings the peer's bytes here, `write` takes ours there.
enum class direction : std::uint8_t { read = 1, write = 2 };

/// The right to the peer's memory that it takes.
constexpr access_mode access_for(direction dir) noexcept {
  return dir == direction::read ? access_mode::read : access_mode::write;
}

/// One contiguous piece of a transfer.
struct copy_op {
  std::uint64_t remote_offset = 0; // into the handle's region
  std::byte* local = nullptr;      // registered memory: inside an arena or an adopted file mapping
  std::uint64_t length = 0;
  /// Bytes before and after the local range that only the digests cover: `local - lead` is the first byte
  /// of a digest block, and each is less than one. Registered memory, too. For writes.
  std::uint64_t lead = 0;
  std::uint64_t tail = 0;
};

/// The pieces of a transfer. Copies share them, so that a transfer which another driver may have to repeat costs no
/// copy of thousands of pieces. Whoever makes a list fills it before the first copy of it is made.
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
  copy_list ops = {};
  bool digests = false; // compute block digests of the local side while the bytes pass
  /// Keeps the local memory; the driver drops it when nobody can touch that memory any more, which after the
  /// loss of a peer may be later than the completion.
  std::shared_ptr<void> hold = {};
  /// For reads: every cache line of the local side shall be written back to the persistence domain before
  /// `done`, where the processor can.
  bool write_back = false;
};

struct transfer_report {
  /// With `digests`: per op, one value for each block of `lead + length + tail` bytes.
  std::vector<std::uint64_t> digests;
  std::string_view driver;       // which one moved the bytes
  bool written_back = false;     // with `write_back`: it was done, a flush has nothing left to do
  std::string_view carrier = {}; // the driver that it gave the bytes to, if it moves none itself
};

/// What a driver can do with memory, as data.
struct driver_capabilities {
  bool strided_regions = true; // else `unsupported`
  bool any_file = true;        // may be adopted as the local side; else tmpfs and DAX devices
  bool host_memory = true;     // the owner's region may be the host's
  bool device_memory = false;  // the owner's region may be a device's, or some devices'
};

class arena;

class driver {
public:
  virtual ~driver() = default;

  virtual std::string_view name() const noexcept = 0;
  virtual driver_capabilities capabilities() const noexcept = 0;

  /// True if a transfer with the memory of `owner` can be submitted now.
  virtual bool reaches(const peer_id& owner) const noexcept = 0;

  /// Moves the bytes without blocking. `done` runs exactly once, on any thread, with no lock held; also when
  /// the peer dies.
  /// Errors: `permission_denied` (key, range or access of the handle), `peer_lost` naming the peer;
  /// `unsupported` when the peer may not or cannot reach the local memory (an adopted file, a process of
  /// another user): nothing has moved, staging memory is the way.
  virtual void submit(transfer t, completion<transfer_report> done) = 0;

  /// Memory of this process that transfers will use: what a driver prepares once for all of it, registrations with
  /// devices for one, it may begin now, without keeping it. Does not block. Any thread.
  virtual void memory_made(const std::shared_ptr<arena>&) {}

  /// Forgets what it kept of this memory for later transfers, registrations with devices for one. Does nothing in
  /// drivers that keep nothing. Any thread.
  virtual void invalidate(const std::byte*, std::uint64_t) {}

  /// What `millrace status` shall show of the driver, beside what it moved; nothing in drivers that have no state worth
  /// showing. Any thread.
  virtual std::optional<driver_report> report() const { return std::nullopt; }
};

/// A driver that talks to its twin in the peer over the channel. Called on the loop.
class peer_driver : public driver {
public:
  virtual void peer_opened(const std::shared_ptr<net::channel>& c) = 0;
  /// Ends every transfer with the peer.
  virtual void peer_closed(net::channel& c, const status& why) = 0;
  /// A frame of kind `driver` for this driver; `body` without the driver's name.
  virtual void on_message(
    net::channel& c, std::span<const std::byte> body, std::vector<net::unique_fd> fds) = 0;
  /// Where connections of its own come in; null for drivers that have none.
  virtual std::shared_ptr<net::stream_acceptor> stream_acceptor() const { return nullptr; }
};

} // namespace millrace::transport
