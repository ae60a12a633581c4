// Memory that peers on this host can map: a memfd, touched and pinned when it is made, or an
// adopted file. Made by the fabric; drivers find it by address.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/socket/unique_fd.hpp>
#include <millrace/transport/memory/device_memory.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace millrace::transport {

/// How other processes of the host get at an arena.
enum class arena_sharing : std::uint8_t {
  transfers,  ///< peers map it to copy in and out
  read_only,  ///< peers that have a handle may map it to read, see `fabric::map`
  read_write, ///< peers that have a handle for writing may map it to read and write
};

struct arena_options {
  std::string name;             // shown in /proc
  std::uint64_t size_bytes = 0; // rounded up to whole pages
  bool huge_pages = true;       // use them where the system grants them; never for `read_write`
  bool lock = true;             // mlock where the system grants it
  arena_sharing sharing = arena_sharing::transfers;
};

/// A mapping of a sealed memfd that leaves nothing in /dev/shm and is freed with its last
/// reference; or a mapping of a file or DAX device that another part of the program made and owns.
class arena {
public:
  /// Checks that the system has memory for arenas that are made one after the other: each of them
  /// alone may fit. Errors: `no_space`, beginning with `doing`.
  static status check_available(const std::string& doing, std::uint64_t size_bytes);
  /// Reserves, touches and (where the system allows it) locks the memory. This is the slow part of
  /// a node's start.
  /// Errors:  `no_space` with the size asked for and the system's reason.
  static result<std::shared_ptr<arena>> create(const arena_options& options);
  /// Makes an existing mapping findable as an arena; see `fabric::adopt`.
  static result<std::shared_ptr<arena>> adopt(const file_mapping& mapping);
  ~arena();
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;

  std::uint64_t id() const noexcept { return id_; } // unique in this process
  int fd() const noexcept { return fd_.get(); }
  /// Returns true if the mapping was adopted. Peers then map parts of a file instead of a memfd.
  bool is_file() const noexcept { return is_file_; }
  std::uint64_t file_offset() const noexcept { return file_offset_; }
  std::byte* data() const noexcept { return data_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  bool locked() const noexcept { return locked_; }
  bool huge() const noexcept { return huge_; }
  arena_sharing sharing() const noexcept { return sharing_; }
  /// Returns true if peers can map regions of the arena as it is shared. A peer that maps one
  /// region reaches the whole arena, and nothing makes it give the mapping back. So an arena has
  /// memory of one group of peers only.
  ///
  /// `read_only`: peers cannot write, and no process can take pages out. Kernels before 5.1 cannot
  /// keep that, and peers read by transfers only. `read_write`: a peer can write anything anywhere
  /// in the arena at any time, and make pages zero.
  bool mappable() const noexcept { return mappable_; }
  /// Pins the whole arena, before a device copies with a part of it. Does nothing for adopted
  /// files, whose pages come and go.
  void pin_for(device_memory& device);

private:
  arena() = default;

  std::uint64_t id_ = 0;
  net::unique_fd fd_;
  bool is_file_ = false;
  std::uint64_t file_offset_ = 0;
  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  bool locked_ = false;
  bool huge_ = false;
  arena_sharing sharing_ = arena_sharing::transfers;
  bool mappable_ = false;
  device_pins pins_;
};

/// The arena of this process in which a range lies, and the range's offset in it.
struct arena_place {
  std::shared_ptr<arena> in;
  std::uint64_t offset = 0;
};
result<arena_place> find_arena(const std::byte* data, std::uint64_t length);

/// Returns true if the descriptor's memory consists of pages from the system's pool of huge pages.
/// Seals do not keep a process that has the descriptor from punching such pages out. If the pool
/// has no other page, the next access raises SIGBUS; with other memory, the next access finds a new
/// page of zeros.
bool is_of_huge_page_pool(int fd) noexcept;

/// An arena of another process, mapped here. Mapping checks the seals, so the peer cannot shrink it
/// while it is mapped.
class mapped_arena {
public:
  /// Maps a peer's arena as the peer shares it.
  /// Errors:  `permission_denied` for a descriptor that is not a memfd of at least `size_bytes`
  ///          without holes, with the seals of such an arena.
  static result<std::shared_ptr<mapped_arena>> map(
    int fd, std::uint64_t size_bytes, arena_sharing sharing = arena_sharing::transfers);
  ~mapped_arena();
  mapped_arena(const mapped_arena&) = delete;
  mapped_arena& operator=(const mapped_arena&) = delete;

  /// A mapping of a `read_only` arena must not be written: that is a fault of this process.
  std::byte* data() const noexcept { return data_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  arena_sharing sharing() const noexcept { return sharing_; }

  /// Fills the page table for `[offset, offset + length)`, so that later transfers take no page
  /// faults.
  void populate(std::uint64_t offset, std::uint64_t length) noexcept;

  /// Pins the whole arena, before a device copies with a part of it.
  void pin_for(device_memory& device) { pins_.pin_for(device, data_, size_bytes_); }

  /// Returns true to the first caller only.
  bool first_use() noexcept { return !used_.exchange(true); }

private:
  mapped_arena() = default;
  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  arena_sharing sharing_ = arena_sharing::transfers;
  std::atomic<bool> used_ = false;
  device_pins pins_;
};

} // namespace millrace::transport
