// The two ends of a service on the wire: the reader that asks the actor in its own process, and the
// proxy in other processes.
#pragma once

#include <millrace/actors/vocabulary.hpp>
#include <millrace/actors/wire/remote_node.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/net/channel/channel.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace millrace::actors {

/// The way back for the reply to a request frame.
struct reply_path {
  std::weak_ptr<net::channel> channel;
  std::uint64_t correlation = 0;
  std::shared_ptr<void> place; // the request's place, held until the reply is sent

  /// Sends the frame of a reply, unless the connection is gone.
  void answer(const byte_buffer& reply) const;
  void refuse(const status& why) const;
};

/// A request frame without its bytes.
struct peer_request {
  caf::actor_system& system;
  caf::strong_actor_ptr who; // the `caller` that asks on the peer's behalf
  asker from;
  reply_path back;
  std::uint64_t age_ms = 0; // for how long it has been under way already
};

/// Reads the requests of one service and asks one actor.
class request_reader {
public:
  virtual ~request_reader() = default;
  /// Reads a request and asks the actor. `number` must belong to a method of the service.
  /// Errors:  `protocol_error`, with a text; the caller must then close the connection.
  virtual status ask(
    std::uint16_t number, wire_reader& reader, const peer_request& request) const = 0;
};

/// Both ends of a service. One source of the service defines them, see `wire_ends_of.hpp`.
template <class Service>
struct wire_ends {
  /// Returns the reader to which a session gives its peer's requests.
  static std::shared_ptr<const request_reader> serve(actor_of<Service> actor);

  /// Returns a proxy for an actor of another process. Its errors name the address; otherwise it
  /// differs from an actor of this process only in latency. `timeout_ms` bounds requests that carry
  /// no time of their own.
  static actor_of<Service> connect(
    caf::actor_system& system, std::shared_ptr<remote_node> node, std::string target,
    std::uint32_t timeout_ms);
};

} // namespace millrace::actors
