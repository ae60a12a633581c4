// The messages between two shm drivers, sent over their channel. Used by both sides of `peer`.
#pragma once

#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/status.hpp>
#include <millrace/transport/memory/arena.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::transport::shm {

/// These values travel on the wire: append new ones, never renumber.
enum class message_kind : std::uint8_t {
  announce = 1,
  forget = 2,
  asks = 3,
  answers = 4,
  announce_file = 5,
  grant = 6,
  abilities = 7,
  map = 8,
  mapped = 9,
};
constexpr std::string_view driver_of(message_kind) noexcept { return "shm"; }

/// Announces an arena for the receiver to map. One descriptor comes with the message.
struct announce {
  std::uint64_t arena = 0;
  std::uint64_t size_bytes = 0;
  bool read_only = false;  // the receiver maps it to read, and no move may name it
  bool read_write = false; // the receiver maps it to read and write, and no move may name it
};

/// Returns how the receiver of an announcement maps the arena.
constexpr arena_sharing sharing_of(const announce& what) noexcept {
  return what.read_write ? arena_sharing::read_write
    : what.read_only     ? arena_sharing::read_only
                         : arena_sharing::transfers;
}

/// Announces a file or device that serves as an arena; the receiver maps the granted parts. One
/// descriptor comes with the message. Arenas and files share one numbering.
struct announce_file {
  std::uint64_t arena = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t file_offset = 0;
  std::uint64_t granule_bytes = 0; // grants are whole multiples of it, except at the end
};

/// Grants a part of a file. Sent before the first move that touches the part.
struct grant {
  std::uint64_t arena = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// Says that an arena is gone; the receiver unmaps it.
struct forget {
  std::uint64_t arena = 0;
};

struct move_op {
  std::uint64_t remote_offset = 0; // in the receiver's region
  std::uint64_t arena = 0;         // the sender's arena
  std::uint64_t offset = 0;        // in that arena
  std::uint64_t length = 0;
  std::uint64_t lead = 0;
  std::uint64_t tail = 0;
};

// Bounds of one move. They bound its message and its answer, whatever the number and size of the
// tensors.
inline constexpr std::size_t move_ops_max = 32'768;
inline constexpr std::uint64_t move_digests_max = 1u << 20;

/// Asks the owner of a region to copy between the region and the sender's arena. The owner copies
/// because it alone knows the addresses, checks the key, and can stop when the memory is withdrawn.
struct move {
  std::uint64_t number = 0;
  std::uint64_t region = 0;
  region_key key;
  std::uint8_t dir = 0; // a `direction`, seen from the sender
  bool digests = false;
  std::vector<move_op> ops;
  bool write_back = false; // write the lines in the arena back to the persistence domain
};

/// Moves that are requested together.
struct asks {
  std::vector<move> moves;
};

struct moved {
  std::uint64_t number = 0;
  std::uint8_t code = 0; // an `errc`
  std::string detail;
  std::vector<std::uint64_t> digests;
  bool written_back = false;
};

/// The outcomes of moves, in the order in which they ended.
struct answers {
  std::vector<moved> outcomes;
};

/// Says what the sender answers besides moves. It is sent when the channel opens, so it comes
/// before any handle of the sender. Older builds do not send it, and would leave a question
/// without an answer.
struct abilities {
  bool maps = false;
  bool maps_to_write = false; // also regions for writing
};

/// Asks the owner of a region to let the sender map it.
struct map_question {
  std::uint64_t number = 0;
  std::uint64_t region = 0;
  region_key key;
  bool to_write = false;
};

/// Says where the region lies. The arena was announced before.
struct map_answer {
  std::uint64_t number = 0;
  std::uint8_t code = 0; // an `errc`
  std::string detail;
  std::uint64_t arena = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// Returns an upper bound of the digests of an op: `lead` and `tail` are less than a block each.
constexpr std::uint64_t digests_at_most(std::uint64_t length) noexcept {
  return length / digest_block_bytes + 3;
}

/// Checks what decoding cannot: the direction, the bounds of a move, and that only writes have
/// digests of more than the moved bytes.
/// Errors:  `protocol_error`.
[[nodiscard]] status check(const move& m);

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, announce& x) {
  return f(x.arena, x.size_bytes, x.read_only, x.read_write);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, announce_file& x) {
  return f(x.arena, x.size_bytes, x.file_offset, x.granule_bytes);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, grant& x) {
  return f(x.arena, x.offset, x.length);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, forget& x) {
  return f(x.arena);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, move_op& x) {
  return f(x.remote_offset, x.arena, x.offset, x.length, x.lead, x.tail);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, move& x) {
  return f(x.number, x.region, x.key, x.dir, x.digests, x.ops, x.write_back);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, asks& x) {
  return f(x.moves);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, moved& x) {
  return f(x.number, x.code, x.detail, x.digests, x.written_back);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, answers& x) {
  return f(x.outcomes);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, abilities& x) {
  return f(x.maps, x.maps_to_write);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, map_question& x) {
  return f(x.number, x.region, x.key, x.to_write);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, map_answer& x) {
  return f(x.number, x.code, x.detail, x.arena, x.offset, x.length);
}

} // namespace millrace::transport::shm
