// Memory that peers on this host can map: memfd-backed, touched and pinned when it is made; or somebody's file.
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

struct arena_options {
  std::string name;             // shown in /proc, for people
  std::uint64_t size_bytes = 0; // rounded up to whole pages
  bool huge_pages = true;       // use them where the system grants them
  bool lock = true;             // mlock where the system grants it
};

/// A mapping of a sealed memfd, freed with its last reference, which leaves nothing in /dev/shm; or a mapping of
/// a file or DAX device that somebody else made and keeps.
class arena {
public:
  /// Reserves, touches and (where granted) locks the memory; the slow part of a node's start.
  /// Errors: `no_space` with the size asked for and what the system says.
  static result<std::shared_ptr<arena>> create(const arena_options& options);
  /// Makes somebody's mapping findable as an arena; see `fabric::adopt`.
  static result<std::shared_ptr<arena>> adopt(const file_mapping& mapping);
  ~arena();
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;

  std::uint64_t id() const noexcept { return id_; } // unique in this process
  int fd() const noexcept { return fd_.get(); }
  /// True if it was adopted: peers map parts of a file instead of a memfd.
  bool is_file() const noexcept { return is_file_; }
  std::uint64_t file_offset() const noexcept { return file_offset_; }
  std::byte* data() const noexcept { return data_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  bool locked() const noexcept { return locked_; }
  bool huge() const noexcept { return huge_; }
  /// The whole of it, before a device copies with a part. Not of adopted files, whose pages come and go.
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
  device_pins pins_;
};

/// The arena of this process in which `[data, data + length)` lies, and the offset there.
struct arena_place {
  std::shared_ptr<arena> in;
  std::uint64_t offset = 0;
};
result<arena_place> find_arena(const std::byte* data, std::uint64_t length);

/// True if the descriptor's memory are pages of the system's pool of huge pages. Seals keep nobody who has it from
/// taking them out again, and where the pool has no other page, the next access is a signal (SIGBUS); of other memory
/// it is a new page of zeros.
bool is_of_huge_page_pool(int fd) noexcept;

/// An arena of another process, mapped here. Mapping checks the seals, so the peer cannot shrink it under us.
class mapped_arena {
public:
  /// Errors: `permission_denied` for a descriptor that is no sealed memfd of at least `size_bytes`, all there.
  static result<std::shared_ptr<mapped_arena>> map(int fd, std::uint64_t size_bytes);
  ~mapped_arena();
  mapped_arena(const mapped_arena&) = delete;
  mapped_arena& operator=(const mapped_arena&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

  /// Fills the page table for `[offset, offset + length)`, so that later transfers do not fault.
  void populate(std::uint64_t offset, std::uint64_t length) noexcept;

  /// The whole of it, before a device copies with a part.
  void pin_for(device_memory& device) { pins_.pin_for(device, data_, size_bytes_); }

  /// True for the first caller.
  bool first_use() noexcept { return !used_.exchange(true); }

private:
  mapped_arena() = default;
  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  std::atomic<bool> used_ = false;
  device_pins pins_;
};

} // namespace millrace::transport
