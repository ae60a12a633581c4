// The end of a service on the wire: the reader that asks the actor in this process what a request
// frame asks. Used by `service_table`.
#pragma once

#include <millrace/actors/vocabulary.hpp>
#include <millrace/actors/wire/reply_port.hpp>
#include <millrace/core/codec.hpp>

#include <cstdint>
#include <memory>

namespace millrace::actors {

/// A request frame without its bytes.
struct peer_request {
  reply_port& port; // asks on the peer's behalf
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
  virtual status ask(std::uint16_t number, wire_reader& reader, peer_request request) const = 0;
};

/// Makes the reader to which a session gives the requests for one actor. One source of the service
/// defines it, see `wire_end_of.hpp`.
template <class Service>
struct wire_end {
  static std::shared_ptr<const request_reader> serve(actor_of<Service> actor);
};

} // namespace millrace::actors
