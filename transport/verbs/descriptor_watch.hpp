// The descriptors on which the completion thread sleeps. Owned by it.
#pragma once

#include <poll.h>

#include <chrono>
#include <vector>

namespace millrace::transport::verbs {

/// *Problem*: the descriptors of a device that was taken out report an error for ever, which no reading clears, and a
/// thread that goes on sleeping on them never sleeps again.
class descriptor_watch {
public:
  explicit descriptor_watch(const std::vector<int>& descriptors);

  /// Sleeps until one can be read, or an interrupt. Returns those that broke; no later sleep looks at them.
  std::vector<int> sleep(std::chrono::milliseconds longest);

private:
  std::vector<pollfd> watched_;
};

} // namespace millrace::transport::verbs
