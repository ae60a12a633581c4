// The driver between processes of one host: the owner of a region copies straight to or from the
// peer's arena. Made by `builtin`.
#pragma once

#include <millrace/transport/driver_kind.hpp>
#include <millrace/transport/shm/shm_options.hpp>

namespace millrace::transport {

result<std::shared_ptr<peer_driver>> make_shm_driver(
  const driver_deps& deps, const shm_options& options);

} // namespace millrace::transport
