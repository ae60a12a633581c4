// A whole service in this process: its providers, its actors, its socket.
#pragma once

#include <millrace/config/settings.hpp>
#include <millrace/runtime/client.hpp>

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
  /// Reads the file first; `name` picks a node when it describes several.
  static node embed(const std::string& path, const std::string& name = {});

  node(node&&) noexcept;
  node& operator=(node&&) noexcept;
  ~node();

  /// A client that asks this node's providers directly, without a socket.
  class client client() const;

  const std::string& address() const noexcept;

  /// Refuses new work, lets what runs finish within `limits.shutdown_timeout`, closes. Idempotent.
  void stop();

private:
  struct state;
  explicit node(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

} // namespace millrace
