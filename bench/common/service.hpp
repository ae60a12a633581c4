// A Millrace service in a process of its own: this program, started again with --serve.
#pragma once

#include <millrace/bench/common/child.hpp>
#include <millrace/runtime/client/client.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace millrace::bench {

enum class service_kind { memory, on_demand, rocksdb, pmem };

/// What the case names call it.
std::string to_string(service_kind kind);

struct service_options {
  service_kind kind = service_kind::memory;
  std::uint64_t capacity_bytes = 0;
  std::string path;         // rocksdb: a directory; pmem: the pool
  std::uint32_t movers = 0; // 0: as many as it likes
};

class service {
public:
  /// Starts it and connects. Throws `millrace::error`.
  service(const std::string& directory, const service_options& options);

  /// This process's client of it.
  class client& client() {
    return *client_;
  }
  class repository repository() const {
    return client_->repository();
  }
  /// A connection of its own.
  class client connect(const config::settings& settings = {}) const {
    return client::connect(address_, settings);
  }
  const std::string& address() const noexcept { return address_; }

private:
  std::string address_;
  child process_;
  std::optional<class client> client_;
};

/// The child's side: serves until SIGTERM comes. Returns the exit status.
int serve(const std::string& config_path);

} // namespace millrace::bench
