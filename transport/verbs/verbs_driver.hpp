// The driver between hosts with RDMA: the submitter reads and writes the owner's memory with keys
// that the owner granted. Made by `builtin`.
#pragma once

#include <millrace/transport/driver_kind.hpp>
#include <millrace/transport/verbs/verbs_options.hpp>
#include <millrace/transport/verbs/verbs_state.hpp>

namespace millrace::transport {

class verbs_driver : public peer_driver {
public:
  /// Returns the devices as they were when the driver was made.
  virtual const verbs_state& devices() const noexcept = 0;
  virtual verbs_stats stats() const = 0;
};

/// Makes the driver.
/// Errors:  `unavailable` without a device.
result<std::shared_ptr<driver>> make_verbs_driver(
  const driver_deps& deps, const verbs_options& options);

/// Makes the driver; its options must be within their bounds. Without a device it reaches no peer,
/// and its state says why.
std::shared_ptr<verbs_driver> make_verbs_driver(
  std::shared_ptr<net::io_loop> loop, std::shared_ptr<mover_pool> movers, const copy_limits& limits,
  const verbs_options& options);

} // namespace millrace::transport
