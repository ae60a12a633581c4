// Moves bytes between hosts by RDMA: the submitter reads and writes the owner's memory with keys that the owner lent.
#pragma once

#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/driver.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/verbs/verbs_options.hpp>
#include <millrace/transport/verbs/verbs_state.hpp>

#include <functional>
#include <memory>
#include <vector>

namespace millrace::transport {

class verbs_driver : public peer_driver {
public:
  /// The devices as they were when the driver was made.
  virtual const verbs_state& devices() const noexcept = 0;
  virtual verbs_stats stats() const = 0;
};

/// Without a device it reaches nobody, and its state says why. `check(options)` is ok.
std::shared_ptr<verbs_driver> make_verbs_driver(
  std::shared_ptr<net::io_loop> loop, std::shared_ptr<mover_pool> movers, const copy_limits& limits,
  const verbs_options& options);

} // namespace millrace::transport
