// A ring of chunks in shared memory that one member of a group at a time writes, and that all
// others of the host read. Used by groups that broadcast.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/core/status.hpp>
#include <millrace/transport/copy/copy.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace millrace::transport {

/// The size of a ring.
struct ring_shape {
  std::uint32_t members = 0;     // 2 to 1024
  std::uint64_t chunk_bytes = 0; // a power of two, 4 KiB to 64 MiB
  std::uint32_t chunks = 0;      // 1 to 65536; a writer is at most so many chunks ahead

  friend bool operator==(const ring_shape&, const ring_shape&) = default;
};

/// Errors:  `invalid_argument` for a shape outside its bounds.
[[nodiscard]] status check(const ring_shape& shape);

/// Returns the memory that a ring of a valid shape needs.
std::uint64_t ring_bytes(const ring_shape& shape) noexcept;

/// Makes a ring in memory that is aligned to 4 KiB and not yet shared.
/// Errors:  those of `check`; `invalid_argument` for less memory than `ring_bytes`.
[[nodiscard]] status format_ring(std::span<std::byte> memory, const ring_shape& shape);

/// Ends a ring of this shape for all members, and wakes them. `reason` is not 0; the first one
/// stays. Members can undo it, as they can write to all of the memory: so the owner says it by
/// other means, too.
/// Threads: any.
void end_ring(std::span<std::byte> memory, const ring_shape& shape, std::uint32_t reason) noexcept;

/// What the writer of a chunk says of it. The ring looks at `payload_bytes` and `digested` alone;
/// the rest means what the layer above says, and must be checked there.
struct chunk_head {
  std::uint32_t payload_bytes = 0; // at most `ring_shape::chunk_bytes`
  std::uint16_t kind = 0;
  std::uint16_t digested = 0; // not 0: `digest` is that of the payload
  std::uint32_t root = 0;     // the member of the group that broadcasts
  std::uint32_t flags = 0;
  std::uint64_t tag = 0;         // which broadcast it is
  std::uint64_t total_bytes = 0; // of the broadcast
  std::uint64_t offset = 0;      // of the payload in it
  std::uint64_t digest = 0;      // see `chunk_digest`

  friend bool operator==(const chunk_head&, const chunk_head&) = default;
};

/// How long a member looks before it sleeps, and how long it sleeps before it looks again.
struct ring_patience {
  std::chrono::microseconds spin{50};
  std::chrono::milliseconds sleep{100};
};

struct ring_header;
struct member_words;
struct chunk_slot;

/// One member's view of a ring.
///
/// All members handle the same chunks, numbered from 0, in the same order. The layer above says who
/// writes a chunk; all others read it. Chunk `n` takes the place of chunk `n - chunks` when all
/// members have read that one. A member attaches once, before it handles chunk 0.
///
///     writer: while there is something to send      reader: for each chunk
///       wait_room(n, deadline)                        head = wait_chunk(n, deadline)
///       put(n, head, source)                          take(n, *head, target)
///                                                     done(n)
///
/// Every member can write anything to the memory at any time. So nothing there is believed before
/// it is copied, values that cannot be are `protocol_error`, and no wait is longer than its
/// deadline. Payloads can change while they are read.
/// Threads: one at a time, but for `interrupt`, `end` and `ended`.
class chunk_ring {
public:
  /// `hold` keeps the memory, as `mapped_region::hold` does.
  /// Errors:  `protocol_error` for memory that has no ring, or less than the ring needs;
  ///          `unsupported_version`; `invalid_argument` for a member that the ring does not have.
  static result<std::unique_ptr<chunk_ring>> attach(
    std::span<std::byte> memory, std::shared_ptr<const void> hold, std::uint32_t member,
    const ring_patience& patience = {});
  chunk_ring(const chunk_ring&) = delete;
  chunk_ring& operator=(const chunk_ring&) = delete;

  /// Returns the shape as it was when this member attached.
  const ring_shape& shape() const noexcept { return shape_; }
  std::uint32_t member() const noexcept { return member_; }
  /// Returns the number of the chunk that this member handles next.
  std::uint64_t position() const noexcept { return position_; }

  // Chunks are named by their number, which is `position()` or up to `chunks - 1` more.

  /// Takes the right to write a chunk, where two members may take themselves for its writer.
  /// Returns false if another member has it. Only chunks that may have two writers need it.
  bool claim(std::uint64_t n) noexcept;

  /// Returns true if all other members have read the chunk whose place `n` takes.
  /// Errors:  `protocol_error`.
  result<bool> can_write(std::uint64_t n);
  /// Returns the place of a payload, of `chunk_bytes`, which is aligned to 4 KiB. To be written
  /// only after `can_write`, and with ordinary stores, so that readers find it in a cache.
  std::byte* room(std::uint64_t n) noexcept;
  /// Shows a chunk to the readers. `n` is `position()`, and becomes one that this member has done.
  void publish(std::uint64_t n, const chunk_head& head) noexcept;
  /// Copies `head.payload_bytes` from `source`, and publishes. With `head.digested` sets the
  /// digest.
  void put(std::uint64_t n, chunk_head head, const std::byte* source) noexcept;

  /// Returns the head of chunk `n`; nothing if it is not published yet.
  /// Errors:  `protocol_error`, also for a payload longer than a chunk.
  result<std::optional<chunk_head>> look(std::uint64_t n) const;
  /// Returns the payload of a published chunk. It stays until `done`, if all members keep to the
  /// rules.
  const std::byte* payload(std::uint64_t n) const noexcept;
  /// Copies the payload of a published chunk, and compares its digest if `head` has one.
  /// Errors:  `corrupt_data`.
  [[nodiscard]] status take(
    std::uint64_t n, const chunk_head& head, std::byte* target,
    store_mode mode = store_mode::streaming) const;
  /// Says that this member has read all chunks up to `n`, which is at least `position()`.
  void done(std::uint64_t n) noexcept;

  /// Returns the other members that have not done chunk `n`, as they say.
  std::vector<std::uint32_t> laggards(std::uint64_t n) const;

  /// Waits until chunk `n` is published, and returns its head. What was published before the end
  /// is still read.
  /// Errors:  `deadline_exceeded`; `cancelled` after `interrupt`; `unavailable` when the ring has
  ///          ended; `protocol_error`.
  result<chunk_head> wait_chunk(std::uint64_t n, time_point deadline);
  /// Waits until chunk `n` can be written. Errors: as for `wait_chunk`. When the ring has ended,
  /// nothing can be written.
  [[nodiscard]] status wait_room(std::uint64_t n, time_point deadline);
  /// Ends the wait of this object that runs now, or else the next one that is not over at once.
  /// Threads: any.
  void interrupt() noexcept;

  /// Ends the ring, see `end_ring`.
  void end(std::uint32_t reason) noexcept;
  /// Returns the reason if the ring has ended.
  std::optional<std::uint32_t> ended() const noexcept;

private:
  chunk_ring(
    std::span<std::byte> memory, std::shared_ptr<const void> hold, std::uint32_t member,
    const ring_shape& shape, const ring_patience& patience);

  template <class Ready, class Word>
  status wait(time_point deadline, Ready ready, Word word);
  template <class Ready, class Word>
  void sleep(time_point until, Ready ready, Word word);
  status stopped() const;
  bool shares_core() noexcept;
  bool is_near(std::uint64_t n) const noexcept { return n - position_ < shape_.chunks; }

  const std::span<std::byte> memory_;
  const std::shared_ptr<const void> hold_;
  const std::uint32_t member_;
  const ring_shape shape_;
  const ring_patience patience_;
  const bool crowded_; // there are more members than cores
  // Where the parts of the memory begin.
  ring_header* const header_;
  std::atomic<std::uint32_t>* const cores_;
  member_words* const members_;
  chunk_slot* const slots_;
  std::byte* const payloads_;

  std::uint64_t position_ = 0;
  std::vector<std::uint64_t> known_; // the positions of the members, as last seen
  std::uint64_t all_read_ = 0;       // the least of them
  std::uint32_t slowest_ = 0;        // the member for which a writer waits
  std::uint32_t told_core_ = 0;
  std::atomic<bool> interrupted_ = false;
  std::atomic<std::atomic<std::uint32_t>*> sleeps_on_ = nullptr;
};

/// Returns the digest of a payload: that of its bytes, or of the digests of its blocks
/// (`digest_block_bytes`) if it is longer than one.
std::uint64_t chunk_digest(const std::byte* payload, std::uint64_t size_bytes) noexcept;

} // namespace millrace::transport
