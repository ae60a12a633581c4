// A stream that a client has open, for one producer or one reader: its lease, and where places lie.
// Internal, used by both; needs CAF.
#pragma once

#include <millrace/actors/loader/stream_server.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/set_view.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace millrace::runtime {

/// Asks the stream server of the node that keeps a stream of this name. Errors: as `data_home`,
/// too.
template <class Request, class Reply = actors::stream_service::reply_of<Request>>
future<Reply> ask_stream(client_core& core, const std::string& name, Request request) {
  auto node = data_home(core, name);
  if (!node)
    return ready_future<Reply>(fail(node.error()));
  return core.ask_node<actors::stream_service>(
    *node, std::move(request), actors::stream_server_of_node);
}

/// Threads: any.
class stream_view {
public:
  /// Errors:  those of the server; `protocol_error` for an answer that is wrong.
  static void open(
    std::shared_ptr<client_core> core, const std::string& name, bool writes,
    completion<std::shared_ptr<stream_view>> done);
  stream_view(const stream_view&) = delete;
  stream_view& operator=(const stream_view&) = delete;

  const std::shared_ptr<client_core>& core() const noexcept { return core_; }
  const stream_status& stream() const noexcept { return opened_.stream; }
  const std::string& name() const noexcept { return opened_.stream.name; }
  /// Returns where places lie, as a working set says where its samples lie.
  const set_info& places() const noexcept { return opened_.places; }
  const bulk_handle& region(std::uint64_t number) const { return opened_.regions[number]; }

  /// Asks with the lease. Whoever asks holds this until the answer is there.
  template <class Request>
  auto ask(Request request) const {
    request.lease = opened_.lease;
    if constexpr (requires { request.timeout_ms; })
      request.timeout_ms = answer_ms();
    return ask_stream(*core_, name(), std::move(request));
  }
  /// Returns how long an answer of the server is waited for: the client's request timeout, but not
  /// less than a server needs that looks at its clock four times a second.
  std::uint32_t answer_ms() const;
  /// Returns how long the server may wait before it answers that there is nothing yet: much less
  /// than `answer_ms`. The client then asks again, so that it notices a node that
  /// is gone.
  std::uint32_t patience_ms() const;
  /// Gives the lease back, and does not wait for the answer.
  void leave() const;

  /// Gives the lease back after a request that has failed, if nobody would return some places:
  /// those of an answer that did not come; with `returns` those that the request names.
  void leave_after(const status& why, bool returns) const;

  /// Returns why a read or a write failed.
  status explained(const status& why) const;

private:
  static void give_back_late(client_core& core, const std::string& name, const set_id& mark);

  stream_view(std::shared_ptr<client_core> core, actors::opened_stream opened)
    : core_(std::move(core)), opened_(std::move(opened)) {}

  const std::shared_ptr<client_core> core_;
  const actors::opened_stream opened_;
};

/// Makes the reference that a program holds. With the last copy of it `close` runs, also while
/// calls that wait hold the object.
template <class T>
std::shared_ptr<T> held_by_program(std::shared_ptr<T> one) {
  auto* raw = one.get();
  return {raw, [one = std::move(one)](T*) { one->close(); }};
}

} // namespace millrace::runtime
