// Memory of a region that a peer's request names.
// Made and used by `stream` on the owner's side.
#pragma once

#include <millrace/transport/memory/region.hpp>
#include <millrace/transport/tcp/payload.hpp>
#include <millrace/transport/tcp/wire.hpp>

#include <memory>
#include <optional>
#include <vector>

namespace millrace::transport::tcp {

/// Checks the key, the access and every range of a request before a byte moves.
/// Errors:  `permission_denied`.
result<std::unique_ptr<payload>> open_region(const unit_header& asked, unit_target target);

} // namespace millrace::transport::tcp
