// Requests of a client that travel together. Used by calls for several models.
#pragma once

#include <millrace/actors/store/store_messages.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace millrace::runtime {

/// Gathers small requests by provider and deadline, and sends each group in one message. Each
/// request gets the answer that it would get alone; when the message fails, all in it fail.
///
/// Used in one function, by one thread.
template <class Request>
class request_batch {
public:
  using reply = actors::store_service::reply_of<Request>;

  explicit request_batch(std::shared_ptr<client_core> core) : core_(std::move(core)) {}

  /// Returns the same deadline for the same timeout.
  time_point deadline_of(std::chrono::milliseconds timeout) {
    auto& known = deadlines_[timeout];
    if (known == time_point{})
      known = core_->deadline_after(timeout);
    return known;
  }

  /// `answer_bytes`: about the size of the answer.
  void add(
    time_point deadline, std::size_t provider, Request request, std::uint64_t answer_bytes,
    completion<reply> done) {
    encoded_.clear();
    wire_writer{encoded_}(request);
    auto bytes = std::max<std::uint64_t>(encoded_.size(), answer_bytes);
    auto& group = groups_[{provider, deadline}];
    if (group.bytes + bytes > bytes_max && !group.requests.empty())
      send(provider, deadline, std::exchange(group, {}));
    group.requests.push_back(std::move(request));
    group.done.push_back(std::move(done));
    group.bytes += bytes;
    if (group.requests.size() == actors::requests_together_max)
      send(provider, deadline, std::exchange(group, {}));
  }

  /// Sends what has not been sent.
  void send() {
    for (auto& [where, group] : std::exchange(groups_, {}))
      if (!group.requests.empty())
        send(where.first, where.second, std::move(group));
  }

private:
  // What every process accepts in a frame: channel.frame_max is 128 KiB at least.
  static constexpr std::uint64_t bytes_max = 96u << 10;

  struct gathered {
    std::vector<Request> requests;
    std::vector<completion<reply>> done;
    std::uint64_t bytes = 0;
  };

  void send(std::size_t provider, time_point deadline, gathered group) {
    if (group.requests.size() == 1)
      return core_->ask_until<actors::store_service>(
        deadline, provider, std::move(group.requests[0]), std::move(group.done[0]));
    actors::several<Request> message;
    message.items = std::move(group.requests);
    core_->ask_until<actors::store_service>(
      deadline, provider, std::move(message), [waiting = std::move(group.done)](auto outcome) {
        for (std::size_t i = 0; i < waiting.size(); ++i) {
          if (!outcome)
            waiting[i](fail(outcome.error()));
          else if (outcome->items.size() != waiting.size())
            waiting[i](fail(errc::protocol_error, "a provider answered other requests than asked"));
          else
            waiting[i](outcome->items[i].take());
        }
      });
  }

  std::shared_ptr<client_core> core_;
  byte_buffer encoded_;
  std::map<std::chrono::milliseconds, time_point> deadlines_;
  std::map<std::pair<std::size_t, time_point>, gathered> groups_;
};

using store_batch = request_batch<actors::store_request>;
using load_batch = request_batch<actors::load_request>;

} // namespace millrace::runtime
