// The request for the status of a provider. Sent by its node to each actor of the provider.
#pragma once

#include <millrace/core/inspect.hpp>
#include <millrace/core/provider_status.hpp>

#include <cstdint>

namespace millrace::actors {

/// Asks an actor of a provider for its part of the provider's status.
struct provider_status_request {
  std::uint8_t unused = 0;
};
MILLRACE_INSPECT(provider_status_request, x.unused)

} // namespace millrace::actors
