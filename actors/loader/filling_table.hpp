// The sets of a data server that are being filled, and the clients that fill each of them together.
// Used by the data server's actor; knows no other actor.
#pragma once

#include <millrace/actors/loader/fill_shares.hpp>
#include <millrace/actors/loader/set_exposure.hpp>
#include <millrace/core/clock.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::actors {

/// What a client that has left could write to.
struct ended_filling {
  std::shared_ptr<exposed_memory<storage::samples::set_filling>> memory;
  /// Runs once nobody can write through the memory any more; may be null.
  std::function<void()> then;
};

/// Who asks to fill a set.
struct filler {
  std::string owner;
  peer_id peer;
  std::uint64_t connection = 0; // of that process

  bool is_same(const filler& other) const noexcept {
    return peer == other.peer && connection == other.connection;
  }
};

/// The client that has reserved a set leads its filling. Others join; each has an exposure of its
/// own. When one of them leaves, its exposure ends first; then others may claim what it has not
/// written. When the leader leaves, all exposures end.
///
/// The first claim of the leader says how the set is cut into blocks.
/// Threads: one at a time.
class filling_table {
public:
  /// Clients that have joined one filling. Each of them has an exposure of all regions.
  static constexpr std::size_t members_max = 1024;
  /// How long a client that has joined may keep blocks without writing any, where others have
  /// nothing else to do.
  static constexpr std::chrono::seconds stalled_after{60};

  using filling_ptr = std::shared_ptr<storage::samples::set_filling>;

  /// Begins the filling of a set, under the number of the leader's reservation.
  void begin(std::uint64_t number, const filling_ptr& filling);
  /// Lets another client write to a set. Returns the set, and memory that is writable for it.
  /// Errors:  as `method<join_set_request, ...>`; `busy` for a connection that has joined it, or
  ///          when too many have; those of `expose_regions`.
  result<set_reservation> join(
    std::uint64_t number, set_info wanted, const filler& asker, time_point now);
  /// Errors:  as `method<claim_blocks_request, ...>`.
  result<claimed_blocks> claim(const claim_blocks_request& request, time_point now);
  /// Returns the numbers of those who have joined the same filling and hold it up: all blocks are
  /// claimed, the asker has none to write, and they have written none for `stalled_after`. They are
  /// to be closed.
  std::vector<std::uint64_t> stalled(std::uint64_t asker, time_point now) const;
  /// Checks that all blocks are written, if any was claimed.
  /// Errors:  `invalid_argument` naming the set.
  [[nodiscard]] status check_written(std::uint64_t leader) const;
  /// Ends what has a number. Returns what is to be withdrawn: nothing for a number that has no part
  /// in a filling.
  std::vector<ended_filling> close(std::uint64_t number);

private:
  using memory_ptr = std::shared_ptr<exposed_memory<storage::samples::set_filling>>;

  struct member {
    memory_ptr memory;
    filler who;
    time_point went_on_at; // when it joined, or has claimed or written blocks
  };
  struct filling {
    std::uint64_t leader = 0;
    std::uint64_t begun = 0; // how many had begun then
    filling_ptr set;
    std::optional<fill_shares> shares = std::nullopt; // none: the leader has claimed nothing
    std::uint64_t cut = 0;
    std::uint64_t written_bytes = 0;
    std::map<std::uint64_t, member> joined = {}; // by number
  };

  result<std::shared_ptr<filling>> find(const std::string& name) const;
  static status check_same(const set_info& set, set_info wanted);
  static status check_room(const filling& of, const filler& asker);
  static status check_cut(filling& of, const claim_blocks_request& request);
  static status finish(filling& of, const claim_blocks_request& request);

  std::map<std::uint64_t, std::shared_ptr<filling>>
    by_number_; // of leaders and of those who joined
  std::uint64_t begun_ = 0;
};

} // namespace millrace::actors
