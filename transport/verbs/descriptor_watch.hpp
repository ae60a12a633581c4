// The descriptors on which the completion thread sleeps.
// Owned by that thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <vector>

namespace millrace::transport::verbs {

/// Sleeps on descriptors and drops the broken ones.
///
/// *Problem*: the descriptors of a removed device report an error for ever, which reading does not
/// clear. A thread that kept them in its list would never sleep again.
class descriptor_watch {
public:
  explicit descriptor_watch(const std::vector<int>& descriptors);

  /// Sleeps until a descriptor can be read, or a signal interrupts. Returns the descriptors that
  /// broke; later sleeps leave them out.
  std::vector<int> sleep(std::chrono::milliseconds longest);

private:
  std::vector<pollfd> watched_;
};

} // namespace millrace::transport::verbs
