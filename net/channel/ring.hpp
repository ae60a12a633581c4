// Memory that two processes of one host share for the frames of a channel: a ring of bytes in each
// direction. Used by `unix_stream`.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/net/channel/handshake.hpp>
#include <millrace/net/loop/shared_signal.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace millrace::net {

/// What both sides of one direction write. The peer may write anything at any time, so neither side
/// believes it: a count that cannot be breaks the ring, a missing flag only delays the peer, and a
/// wrong core only makes a poll give its core away.
struct ring_words {
  alignas(64) std::atomic<std::uint64_t> written;       // bytes so far, by the writer
  alignas(64) std::atomic<std::uint64_t> read;          // bytes so far, by the reader
  alignas(64) std::atomic<std::uint32_t> reader_sleeps; // the reader wants an event for new bytes
  std::atomic<std::uint32_t> writer_waits;              // the writer wants an event for room
  // The core from which the reader polls, counted from 1. 0: it has not polled, or is an older
  // build.
  std::atomic<std::uint32_t> reader_core;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(ring_words) == 192);

/// Where one direction lies. Both members point into a `ring_memory`.
struct ring_place {
  ring_words* words = nullptr;
  std::span<std::byte> bytes; // its size is a power of two
  std::size_t file = 0;       // the same number at both sides
};

/// The writing side of one direction.
/// Threads: one at a time.
class ring_writer {
public:
  ring_writer() = default;
  explicit ring_writer(ring_place at) : at_(at) {}

  /// Returns false when the ring is full. The reader then gives an event when half of it is free.
  bool has_room() noexcept;
  /// Copies as much as there is room for, and returns how much. If that is not all, the reader
  /// gives an event as for `has_room`.
  std::size_t write(std::span<const iovec> parts) noexcept;
  /// Returns true, once, if the reader must be told that there are new bytes.
  bool must_tell_reader() noexcept;
  /// True if the peer has damaged the ring.
  bool broken() const noexcept { return broken_; }

private:
  std::size_t room() noexcept;

  ring_place at_;
  std::uint64_t written_ = 0;
  std::uint64_t known_read_ = 0;
  bool broken_ = false;
};

/// The reading side of one direction.
/// Threads: one at a time.
class ring_reader final : public shared_signal {
public:
  ring_reader() = default;
  /// `back`: the other direction, whose reader is the peer. Null: nothing tells the peer's core.
  explicit ring_reader(ring_place at, const ring_words* back = nullptr) : at_(at), back_(back) {}

  /// Copies what has arrived, as far as there is room. The bytes do not change any more then.
  std::size_t read(std::span<std::byte> room) noexcept;
  /// Returns true, once, if the writer must be told that there is room.
  bool must_tell_writer() noexcept;
  bool broken() const noexcept { return broken_; }

  bool raised() const noexcept override;
  bool ask_for_event() noexcept override;
  bool shares_core(std::uint32_t core) noexcept override;

private:
  ring_place at_;
  const ring_words* back_ = nullptr;
  std::uint32_t told_core_ = 0;
  std::uint64_t read_ = 0;
  bool broken_ = false;
};

/// The shared memory of both directions. Its file is sealed, so that no side can cut it.
class ring_memory {
public:
  struct offer;
  /// Makes a ring of at least `ring_bytes` for each direction.
  /// Errors: of the system.
  static result<offer> make(std::size_t ring_bytes);
  /// Maps what a peer has made. Errors: `protocol_error` for a file of another kind or size;
  /// `no_space` for more than `ring_bytes` for each direction.
  static result<std::unique_ptr<ring_memory>> adopt(const unique_fd& file, std::size_t ring_bytes);

  ring_memory(const ring_memory&) = delete;
  ~ring_memory();

  /// Returns the direction in which `side` writes.
  ring_place written_by(handshake_side side) const noexcept;

private:
  ring_memory(std::byte* data, std::size_t ring_bytes, std::size_t number) noexcept
    : data_(data), ring_bytes_(ring_bytes), file_(number) {}
  static result<std::unique_ptr<ring_memory>> map(const unique_fd& file, std::size_t ring_bytes);

  std::byte* data_;
  std::size_t ring_bytes_;
  std::size_t file_;
};

struct ring_memory::offer {
  std::unique_ptr<ring_memory> memory;
  unique_fd file; // for the peer
};

} // namespace millrace::net
