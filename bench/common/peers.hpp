// Other libraries that do the same work. A peer that this machine lacks is skipped, and its name is
// printed.
// Used by the store, checkpoint and transfer benchmarks.
#pragma once

#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/model_table.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::bench {

/// A peer in Python; see peers/peer.py.
/// Errors:  throws `millrace::error` when the peer fails.
class python_peer {
public:
  /// Starts a peer. If this machine lacks it, returns nothing and prints a line. `announce` prints
  /// its version.
  static std::optional<python_peer> start(const std::string& name, bool announce = true);

  /// Starts a peer that uses the package millrace of the build, as a client of the service at
  /// `address`. A build without the package is a machine that lacks it.
  static std::optional<python_peer> start_with_package(
    const std::string& name, const std::string& address, bool announce = true);

  const std::string& name() const noexcept { return name_; }

  /// Makes the tensors for the following saves.
  void build(const model_table& table);
  /// Makes the tensors, and a training of them on so many cores whose iterations take about
  /// `iteration_s`.
  void build_training(const model_table& table, double iteration_s, unsigned cores);
  /// Returns the seconds of a loop that saves in every `distance`-th iteration; 0: in none.
  double train(int iterations, int distance, const std::string& path);
  /// Returns the seconds of what the peer calls `what`, for a number.
  double measure(const std::string& what, int count);
  double save(const std::string& path, bool sync);
  /// Returns the seconds of another save, by stage; empty where the peer does not report them.
  std::vector<std::pair<std::string, double>> save_stages(const std::string& path);
  /// Loads a file. `cold` drops the file's pages from the cache first. Without names it loads all
  /// tensors.
  double load(const std::string& path, bool cold, const std::vector<std::string>& names = {});
  /// Loads into the tensors that `build` made.
  double restore(const std::string& path, bool cold);

  /// Begins a save or a restore without waiting, so that several peers can work at the same time.
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

  pid_t pid() const noexcept { return process_.pid(); }

  /// Returns the seconds of `count` SETs or GETs of as many keys, sent in one pipeline.
  double set_many(std::size_t count, const std::byte* data, std::size_t size_bytes);
  double get_many(std::size_t count, std::byte* data, std::size_t size_bytes);

private:
  redis_peer(child process, void* connection);

  child process_;
  void* connection_;
};

/// Prints what is not measured, and why.
void skip_aloud(const std::string& what, const std::string& why);

} // namespace millrace::bench
