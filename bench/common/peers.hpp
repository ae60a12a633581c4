// What others take for the same work. A peer that cannot be had is skipped aloud, by name.
#pragma once

#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/model_table.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::bench {

/// A peer in Python; see peers/peer.py. Throws `millrace::error` when it fails at its work.
class python_peer {
public:
  /// Nothing, and a line on standard output, when it cannot be had.
  /// `announce`: print its version.
  static std::optional<python_peer> start(const std::string& name, bool announce = true);

  const std::string& name() const noexcept { return name_; }

  /// Makes the tensors that are saved from now on.
  void build(const model_table& table);
  double save(const std::string& path, bool sync);
  /// Seconds of one more save by what it does; empty where the peer cannot tell.
  std::vector<std::pair<std::string, double>> save_stages(const std::string& path);
  /// `cold`: after the file's pages were dropped from the cache. No names: all tensors.
  double load(const std::string& path, bool cold, const std::vector<std::string>& names = {});
  /// Loads into the tensors that `build` made.
  double restore(const std::string& path, bool cold);

  /// `save` and `restore` in two halves, so that several peers can work at once.
  void begin_save(const std::string& path, bool sync);
  void begin_restore(const std::string& path, bool cold);
  double finish();

private:
  python_peer(std::string name, child process)
    : name_(std::move(name)), process_(std::move(process)) {}
  void send(const std::string& command);
  std::string answer();
  double ask(const std::string& command);

  std::string name_;
  child process_;
};

/// A Redis server of our own on a Unix socket, without persistence, and one connection to it.
class redis_peer {
public:
  static std::optional<redis_peer> start(const std::string& directory);
  redis_peer(redis_peer&&) noexcept;
  ~redis_peer();

  /// Seconds of one SET of `size_bytes`.
  double set(const std::byte* data, std::size_t size_bytes);

private:
  redis_peer(child process, void* connection);

  child process_;
  void* connection_;
};

/// Prints that something is not measured, and why.
void skip_aloud(const std::string& what, const std::string& why);

} // namespace millrace::bench
