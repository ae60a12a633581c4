// Decides which client writes which blocks of a set that several fill. Used by the data server;
// knows no time, network or memory.
#pragma once

#include <millrace/actors/loader/data_messages.hpp>

#include <cstddef>
#include <cstdint>
#include <map>

namespace millrace::actors {

/// The blocks of one set, by number. A block is unclaimed; or claimed by one client, which may be
/// writing it; or written.
///
/// A claim takes the first blocks that nobody has claimed: some that follow each other. Towards the
/// end claims become small, so that the clients end at about the same time.
///
/// Memory:  48 bytes for each claim, of which a client has `claims_max` at most.
/// Threads: one at a time.
class fill_shares {
public:
  static constexpr std::size_t claims_max = 1024; // of one client

  explicit fill_shares(std::uint64_t blocks);

  /// Counts a client, which has a number.
  void join(std::uint64_t client) { claims_[client]; }
  /// Gives the client blocks before `below`, `wanted` at most; none if there are none, or the
  /// client has too many claims.
  block_range claim(std::uint64_t client, std::uint64_t below, std::uint64_t wanted);
  /// Notes that a client has written what it claimed. Returns false if it has no such claim.
  [[nodiscard]] bool finish(std::uint64_t client, const block_range& blocks);
  /// Ends a client: nobody has claimed any more what it has not finished.
  void leave(std::uint64_t client);

  std::uint64_t blocks() const noexcept { return blocks_; }
  /// Returns how many blocks nobody has claimed.
  std::uint64_t unclaimed() const noexcept { return unclaimed_; }
  /// Returns whether any of these comes before `below`.
  bool has_before(std::uint64_t below) const noexcept;
  /// Returns how many blocks a client has claimed and not written.
  std::uint64_t claimed(std::uint64_t client) const;
  /// Returns how many blocks other clients have claimed and not written.
  std::uint64_t elsewhere(std::uint64_t client) const;
  bool all_written() const noexcept { return written_ == blocks_; }

private:
  using ranges = std::map<std::uint64_t, std::uint64_t>; // first block, and the one behind the last
  struct share {
    ranges claims;
    std::uint64_t blocks = 0; // of all claims
  };

  void put_back(std::uint64_t first, std::uint64_t end);

  const std::uint64_t blocks_;
  std::uint64_t unclaimed_;
  std::uint64_t written_ = 0;
  ranges free_;                           // unclaimed; none of them touch
  std::map<std::uint64_t, share> claims_; // by client
};

} // namespace millrace::actors
