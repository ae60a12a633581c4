// A whole node in this process: its providers, its actors, its sockets.
// Programs embed it; `millrace serve` runs one.
#pragma once

#include <millrace/config/settings.hpp>
#include <millrace/runtime/client/client.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace millrace {

/// Serves the providers of a configuration. Several nodes may live in one process. Destroying a
/// node stops it. In a forked child the node still belongs to the parent: stopping or destroying it
/// there does nothing, and each call on its clients gives `unavailable`.
/// Threads: any.
class node {
public:
  /// Starts what the settings describe. Returns when clients are served. The sockets open before
  /// the providers, and clients that connect meanwhile are refused with `unavailable`. The node
  /// starts without the providers that cannot be opened (see `down`), unless `node.require` says
  /// otherwise.
  /// Errors:  those of the part that did not start, with its name: a socket in use, a provider's
  ///          directory, memory. Those of the providers that `node.require` needs.
  static result<node> start(const config::settings& settings);

  /// Does what `start` does on another thread, and returns at once. A node that touches many
  /// gigabytes of memory takes seconds to start. The last copy of the pointer stops the node.
  static future<std::shared_ptr<node>> start_async(config::settings settings);

  /// Does what `start` does, but throws `millrace::error`.
  static node embed(const config::settings& settings);
  /// Reads the settings from a file. If the file describes several nodes, `name` picks one; without
  /// a name the host or the Slurm job decides, as for `millrace serve`.
  static node embed(const std::string& path, const std::string& name = {});

  /// Does what `embed` does with a file, on another thread, and returns at once. Its errors are in
  /// the future. The last copy of the pointer stops the node.
  static future<std::shared_ptr<node>> embed_async(std::string path, std::string name = {});

  node(node&&) noexcept;
  node& operator=(node&&) noexcept;
  ~node();

  /// Returns a client that asks this node's providers directly, without a socket.
  class client client() const;

  /// Returns the address for clients on this host: the first of `addresses`.
  const std::string& address() const noexcept;
  const std::vector<std::string>& addresses() const noexcept;

  /// Returns the providers that could not be opened, and why.
  const std::map<std::string, status>& down() const noexcept;

  /// Calls `f` on the node's I/O loop every `interval_ms`. There is no call while the loop stands
  /// still, so a watchdog that `f` feeds sees it. `f` must not block. No call begins once the node
  /// is stopped; the last one may still be under way.
  void repeat(std::uint32_t interval_ms, std::function<void()> f);

  /// Refuses new work, lets running operations finish within `limits.shutdown_timeout`, and closes.
  /// A second call does nothing.
  void stop();
  /// Does what `stop` does on another thread, and returns at once. Nothing may be asked of the node
  /// afterwards; it may be destroyed.
  future<void> stop_async();

private:
  struct state;
  explicit node(std::shared_ptr<state> s);
  std::shared_ptr<state> state_;
};

} // namespace millrace
