// The messages about watches: park one, take one back, hear of those that are over. Part of the
// services of models and of checkpoints; sent by clients.
#pragma once

#include <millrace/actors/load_messages.hpp>
#include <millrace/actors/service.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::actors {

/// Parks a watch: its asker hears of it when the name gets a version, or a complete step, above
/// `than` from now on. What is there already counts for nothing, so a client looks after it has
/// parked. The watch ends with the connection through which it came.
struct watch_request {
  std::string name;
  bool any = false; // `than` counts for nothing
  std::uint64_t than = 0;
  placement_claim by = {};  // of models only
  std::uint64_t number = 0; // chosen by the asker: not 0, and not that of another watch of its own
  std::uint32_t timeout_ms = 0;
  asker from = {};
};
MILLRACE_INSPECT(watch_request, x.name, x.any, x.than, x.by, x.number, x.timeout_ms)

/// Takes a watch back. One that is over or was never there is no error.
struct unwatch_request {
  std::uint64_t number = 0;
  std::uint32_t timeout_ms = 0; // how long the client waits; it does not travel
};
MILLRACE_INSPECT(unwatch_request, x.number)

/// Waits until a watch of the same connection is over, for at most `wait_ms`. One such request
/// serves all watches of a connection; a second one replaces it.
struct watch_news_request {
  std::uint32_t wait_ms = 0;
  std::uint32_t timeout_ms = 0; // as above
};
MILLRACE_INSPECT(watch_news_request, x.wait_ms)

/// The end of one watch.
struct watch_outcome {
  std::uint64_t number = 0;
  std::uint8_t code = 0; // an `errc`; 0: there is something newer
  std::string detail;

  friend bool operator==(const watch_outcome&, const watch_outcome&) = default;
};
MILLRACE_INSPECT(watch_outcome, x.number, x.code, x.detail)

struct watch_news {
  std::vector<watch_outcome> items; // empty: the time was over
  bool more = false;                // the connection has other watches, parked or over

  friend bool operator==(const watch_news&, const watch_news&) = default;
};
MILLRACE_INSPECT(watch_news, x.items, x.more)

} // namespace millrace::actors
