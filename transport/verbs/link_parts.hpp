// The objects that every link of a verbs driver uses, and both sides of each link. Made by the
// driver.
#pragma once

#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/verbs/completion_thread.hpp>
#include <millrace/transport/verbs/grant_book.hpp>
#include <millrace/transport/verbs/rail.hpp>

#include <memory>
#include <vector>

namespace millrace::transport::verbs {

struct link_parts {
  std::shared_ptr<completion_thread> thread;
  std::shared_ptr<setup_pool> setup;
  std::shared_ptr<cm_hub> cm;   // null: queue pairs are connected over the channel
  std::vector<bool> cm_reaches; // by the device's index
  std::shared_ptr<mover_pool> movers;
  copy_limits limits;
  memory_sources sources;
  verbs_options options;
};

} // namespace millrace::transport::verbs
