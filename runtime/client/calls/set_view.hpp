// A working set that a client has open: the lease, and its regions, mapped for reading or read by
// transfers.
// Internal, behind `set_reader`; needs CAF.
#pragma once

#include <millrace/actors/loader/data_server.hpp>
#include <millrace/core/working_set.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/transport/memory/mapped_region.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace::runtime {

/// Returns the nodes that have a data server, in the order in which they keep the parts of a
/// working set of this name.
/// Errors:  `not_found` when there is none.
result<std::vector<std::string>> data_homes(const client_core& core, const std::string& name);
/// Returns the first of them: the home of the set.
result<std::string> data_home(const client_core& core, const std::string& name);

/// Returns the nodes that have the parts of a set, whose home has described it, in their order; the
/// home alone of a set that is not divided.
std::vector<std::string> nodes_of(const client_core& core, const set_info& home);

/// Checks that a part names only nodes that this client knows: the description comes from a peer.
/// Errors:  `invalid_argument` naming the set and the node.
[[nodiscard]] status check_nodes(const client_core& core, const set_info& part);

/// Asks the data server of a node.
template <class Request, class Reply = actors::data_service::reply_of<Request>>
future<Reply> ask_data(client_core& core, const std::string& node, Request request) {
  return core.ask_node<actors::data_service>(node, std::move(request), actors::data_server_of_node);
}
/// Asks that of a set's home. Errors: as `data_home`, too.
template <class Request, class Reply = actors::data_service::reply_of<Request>>
future<Reply> ask_home(client_core& core, const std::string& name, Request request) {
  auto node = data_home(core, name);
  return node ? ask_data(core, *node, std::move(request)) : ready_future<Reply>(fail(node.error()));
}

/// Returns whether an error says that a data server does not give a set, for now or for good. A
/// host without power says nothing.
bool is_loss(const status& why);

/// Some bytes of a set that follow each other, and where they go.
struct set_range {
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::byte* to = nullptr;
};

/// Appends a range. One that continues the last one, in the set and in memory, is joined to it.
inline void append(std::vector<set_range>& ranges, const set_range& next) {
  if (!ranges.empty()) {
    auto& last = ranges.back();
    if (last.address + last.length == next.address && last.to + last.length == next.to) {
      last.length += next.length;
      return;
    }
  }
  ranges.push_back(next);
}

/// What a set, or a part of one, is read by. On the host of its data server its regions are mapped,
/// and reads are copies. Elsewhere reads are transfers (`remote_reads`).
///
/// No read gives the bytes of another set. A mapping outlives the lease, so the generations of the
/// regions are compared after each copy. A transfer needs no such comparison: the data server has
/// exposed the regions for this set alone, under keys that name nothing else. Before it lends a
/// region again it withdraws the exposure, which waits for what is being moved and ends the right
/// to read. So a transfer that succeeds has moved the bytes of the set.
///
/// Threads: any.
class set_view : public std::enable_shared_from_this<set_view> {
public:
  /// Opens what a node has of a set, and maps it if its memory is on this host. `id`: of the set,
  /// or of the whole that it is a part of; nil: any.
  static void open(
    std::shared_ptr<client_core> core, const std::string& node, const std::string& name,
    const set_id& id, completion<std::shared_ptr<set_view>> done);
  /// Gives the lease back, and does not wait for the answer.
  ~set_view();
  set_view(const set_view&) = delete;
  set_view& operator=(const set_view&) = delete;

  const set_info& info() const noexcept { return opened_.set; }
  const std::string& node() const noexcept { return node_; }
  const std::shared_ptr<client_core>& core() const noexcept { return core_; }

  /// Returns true if its memory is mapped in this process.
  bool is_mapped() const noexcept { return !regions_.empty(); }

  /// Asks the data server with the lease.
  template <class Request>
  auto ask(Request request) const {
    request.lease = opened_.lease;
    return ask_data(*core_, node_, std::move(request));
  }

  /// Errors:  `corrupt_data` for a range that is not in the set.
  [[nodiscard]] status check_ranges(const std::vector<set_range>& ranges) const;

  /// Returns an error if the memory is not the set's any more: what was read before may be that of
  /// others.
  /// Errors:  `not_found`.
  status still_ours() const;

  /// Reads ranges of the set: samples, or tables. All of them go to the memory `into`. `done` runs
  /// once nothing writes there any more. What was not begun when `stop` became true is left out.
  /// Errors:  `not_found` when the memory is not the set's any more; `peer_lost` naming the node;
  ///          `corrupt_data` for a range that is not in the set; `no_space`; `cancelled`.
  void read(
    const std::vector<set_range>& ranges, std::span<std::byte> into, completion<void> done,
    std::shared_ptr<const std::atomic<bool>> stop = nullptr) const;

  /// Returns the bytes from an address on where they lie in this process; empty if they are not
  /// mapped.
  std::span<const std::byte> mapped_from(std::uint64_t address) const noexcept;

  /// Returns where samples of a field lie, and their digests, in the order of `ids`. The field and
  /// the samples are there.
  /// Errors:  `corrupt_data` naming a sample whose entry is not in the field; those of `read`.
  void entries(
    std::size_t field, const std::vector<std::uint64_t>& ids,
    completion<std::vector<sample_entry>> done) const;

private:
  set_view(std::shared_ptr<client_core> core, std::string node, actors::opened_set opened);

  // Gives back what may have been opened after `core` has given up waiting.
  static void give_back_late(client_core& core, const std::string& node, const set_id& mark);
  void map(completion<std::shared_ptr<set_view>> done);
  status take(std::vector<transport::mapped_region> mapped);
  result<std::vector<sample_entry>> entries_in(
    std::span<const std::byte> bytes, std::size_t field,
    const std::vector<std::uint64_t>& ids) const;
  void copy(const std::vector<set_range>& ranges, completion<void> done) const;
  remote_read by_transfers(const std::vector<set_range>& ranges, std::span<std::byte> into) const;
  status explained(const status& why) const;

  std::shared_ptr<client_core> core_;
  const std::string node_;
  actors::opened_set opened_;
  std::vector<transport::mapped_region> regions_; // empty: they are read by transfers
  transport::mapped_region generations_;
};

/// Reads a set from front to back, in blocks. For threads that may wait.
class set_scan {
public:
  explicit set_scan(const set_view& view) : view_(view) {}

  /// Returns the bytes from an address on, at least one and at most `length`, which are valid until
  /// the next call.
  /// Errors:  those of `set_view::read`.
  result<std::span<const std::byte>> at(std::uint64_t address, std::uint64_t length);

private:
  const set_view& view_;
  std::vector<std::byte> block_;
  std::uint64_t begin_ = 0, end_ = 0; // what `block_` has
};

} // namespace millrace::runtime
