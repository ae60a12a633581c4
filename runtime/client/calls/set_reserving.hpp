// Reserving memory for all parts of a working set, and publishing them together.
// Internal, used by preloads and appends; needs CAF.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/runtime/client/calls/sample_moving.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Describes some samples of the files: name, samples, source, fields.
using describing = std::function<set_info(std::uint64_t first, std::uint64_t count)>;

/// Describes part number `index` of a set of so many samples; the whole set if it is not divided.
set_info describe_part(
  const describing& describe, const set_division& division, std::uint64_t samples,
  std::size_t index);

/// Checks that a data server has reserved, or has, what was asked for.
/// Errors:  `protocol_error` naming the set.
[[nodiscard]] status check_reserved(const actors::set_reservation& reserved, set_info asked);

/// The parts of one preload, or of one append. The home's reservation keeps others away from the
/// name, so it is taken first and given up last. What was not published by the end is given up
/// everywhere, but for a set that others have filled, too, and whose publication has no answer.
/// Threads: blocks the caller.
class set_reserving {
public:
  /// `again`: after another attempt, whose memory returns a little later.
  set_reserving(const preload_call& call, bool again) : call_(call), again_(again) {}
  ~set_reserving();
  set_reserving(const set_reserving&) = delete;
  set_reserving& operator=(const set_reserving&) = delete;

  /// Reserves what is not there of a set that is divided among `nodes`, the home first. A set that
  /// is there keeps its own division. Parts that are left of another preload of the name are
  /// unloaded.
  /// Errors:  those of the data servers, naming the node of a part; `permission_denied` naming who
  ///          owns what is left.
  [[nodiscard]] status reserve_all(
    const set_info& whole, std::vector<std::string> nodes, const describing& describe);

  /// Reserves what is not there of samples that are appended, at the nodes of the set. Samples of
  /// the same files that were preloaded or appended before are there.
  /// Errors:  those of the data servers, naming the node of a part; `not_found` when there is no
  ///          such set; `invalid_argument` for other fields than those of the set, or a window.
  [[nodiscard]] status reserve_more(const set_info& more, const describing& describe);

  /// Returns the parts that are not there yet.
  std::vector<const reserved_part*> to_fill() const;

  /// Makes them visible, that of the home last. `shared`: others have filled some of them, too.
  /// Errors:  those of the data servers; after `busy` it may be called again.
  result<preloaded_set> publish(bool shared);

private:
  struct held_part {
    reserved_part part;
    bool published = false;

    bool is_new() const noexcept { return !part.reserved.exists; }
    const std::string& node() const noexcept { return part.node; }
  };

  bool is_answered(const future<set_info>& asked, time_point until) const;
  std::vector<set_info> find_leftovers(const std::string& home) const;
  result<set_info> find_target(const std::string& home, const set_info& more);
  status reserve_parts(const set_info& whole, const std::string& home, const describing& describe);
  status reserve_part(std::size_t index, const std::string& node, set_info asked);
  result<actors::set_reservation> ask_for(const std::string& node, const set_info& asked);
  status unload_leftover(const std::string& node, const status& why);
  status publish_rest();
  status publish_home();
  status publish_one(const held_part& one, const result<set_info>& outcome) const;
  future<set_info> begin_publish(const held_part& one) const;
  future<actors::done_reply> close(const std::string& node, std::uint64_t number) const;
  void give_up(std::size_t from, std::size_t to) const;
  void give_up_all() const;
  bool home_is_there() const { return !parts_.empty() && !parts_.front().is_new(); }

  const preload_call& call_;
  const bool again_;
  set_division division_;
  set_extension extension_;      // of an append
  std::vector<held_part> parts_; // the home's first
  bool publishes_home_ = false;
  bool may_stay_ = false; // others have filled it, too, and it may be published: then it is whole
  bool over_ = false;     // all was published
};

} // namespace millrace::runtime
