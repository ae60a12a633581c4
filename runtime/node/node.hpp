// A whole service in this process: its providers, its actors, its socket.
#pragma once

#include <millrace/config/settings.hpp>
#include <millrace/runtime/client/client.hpp>

#include <memory>
#include <string>

namespace millrace {

/// Several may live in one process. Movable; destroying one stops it. Threads: any.
class node {
public:
  /// Starts what the settings describe. Returns when clients can connect.
  /// Errors: whatever does not start, naming it: a socket in use, a provider's directory, memory.
  static result<node> start(const config::settings& settings);

  /// As `start`; throws `millrace::error`.
  static node embed(const config::settings& settings);
  /// Reads the file first. When it describes several nodes, `name` picks one; without a name the host or a Slurm job
  /// does, as for `millrace serve`.
  static node embed(const std::string& path, const std::string& name = {});

  node(node&&) noexcept;
  node& operator=(node&&) noexcept;
  ~node();

  /// A client that asks this node's providers directly, without a socket.
  class client client() const;

  /// Where clients on this host connect: the first of `addresses`.
  const std::string& address() const noexcept;
  const std::vector<std::string>& addresses() const noexcept;

  /// Refuses new work, lets what runs finish within `limits.shutdown_timeout`, closes. Idempotent.
  void stop();

private:
  struct state;
  explicit node(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

} // namespace millrace
