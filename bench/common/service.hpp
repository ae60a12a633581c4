// A Millrace service in its own process: this program, started again with --serve.
// Used by the store and checkpoint benchmarks.
#pragma once

#include <millrace/bench/common/child.hpp>
#include <millrace/runtime/client/client.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace millrace::bench {

enum class service_kind { memory, on_demand, rocksdb, pmem }; // on_demand: in bench_store

/// Returns the kind's name in cases.
std::string to_string(service_kind kind);

struct service_options {
  service_kind kind = service_kind::memory;
  std::uint64_t capacity_bytes = 0;
  std::string path;         // rocksdb: a directory; pmem: the pool
  std::uint32_t movers = 0; // 0: the default number
};

class service {
public:
  /// Starts the service and connects to it.
  /// Errors:  throws `millrace::error`.
  service(const std::string& directory, const service_options& options);

  /// Returns this process's client of the service.
  class client& client() {
    return *client_;
  }
  class repository repository() const {
    return client_->repository();
  }
  /// Makes another connection.
  class client connect(const config::settings& settings = {}) const {
    return client::connect(address_, settings);
  }
  const std::string& address() const noexcept { return address_; }
  pid_t pid() const noexcept { return process_.pid(); }
  /// Returns what its process has spent on cores so far.
  double core_seconds() const noexcept { return process_.core_seconds(); }

private:
  std::string address_;
  child process_;
  std::optional<class client> client_;
};

/// Runs the child's side: serves until SIGTERM. Returns the exit status.
int serve(const std::string& config_path);

} // namespace millrace::bench
