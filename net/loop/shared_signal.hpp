// Work that shared memory announces, beside a descriptor. Polled by `io_loop`.
#pragma once

#include <cstdint>

namespace millrace::net {

/// Memory in which another process shows that it has left work, and in which this one asks it for
/// an event of a descriptor before it sleeps.
/// Threads: the loop that polls it.
class shared_signal {
public:
  virtual ~shared_signal() = default;

  virtual bool raised() const noexcept = 0;

  /// Asks for an event of the descriptor. Returns false, and asks for nothing, if it is raised.
  virtual bool ask_for_event() noexcept = 0;

  /// Tells the other process on which core this one looks, counted from 1. Returns true if that
  /// process has last looked from the same core: it can do nothing before this one lets it.
  virtual bool shares_core(std::uint32_t core) noexcept = 0;

  bool polled = false; // by the loop
};

} // namespace millrace::net
