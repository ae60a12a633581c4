// Hosts of a small network on this machine: network namespaces on one switch.
// Used by the section `network` of bench_loader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace millrace::bench {

/// Host i has the address 10.98.0.(i+1). The namespaces have no names, so they end with this
/// process. Unix sockets and files are those of the machine.
class hosts {
public:
  /// Why there can be none; empty if they can be made: that takes root, `ip` and `tc`.
  static std::string why_none();

  /// Errors:  throws `millrace::error`.
  explicit hosts(std::size_t count);
  ~hosts();
  hosts(const hosts&) = delete;
  hosts& operator=(const hosts&) = delete;

  static std::string address(std::size_t host);
  /// Calls `f` on that host. Sockets, threads and processes that it makes are there.
  void on(std::size_t host, const std::function<void()>& f) const;

  /// From now on the switch's port to the host sends so fast, has a buffer of so many bytes, and
  /// drops what does not fit.
  void bound_port(std::size_t host, std::uint64_t bytes_per_s, std::uint64_t buffer_bytes) const;
  /// Returns how many frames the bounded port has dropped.
  std::uint64_t dropped_frames(std::size_t host) const;

  static constexpr std::uint64_t frame_bytes = 9000; // the largest

private:
  // Returns a namespace of its own, or gives up.
  static int make_space();
  // Runs a command in the switch's namespace. Returns what it prints.
  std::string in_switch(const std::string& command) const;

  int switch_ = -1;
  std::vector<int> spaces_;
};

} // namespace millrace::bench
