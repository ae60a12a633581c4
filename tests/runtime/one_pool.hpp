// A node in this process with one pool, for tests that save and restore.
#pragma once

#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/storage/pmem/pmem_kind.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <optional>
#include <string>

namespace millrace::testing {

inline config::settings with_pool(
  const std::string& socket_directory, const std::string& pool_directory) {
  config::settings s;
  s.node.name = "n0";
  s.node.listen = {"unix:" + socket_directory + "/n0.sock"};
  s.staging.size_bytes = 64 << 20;
  s.checkpoints.staging_piece_bytes = 1 << 20;
  s.checkpoints.staging_pieces = 4;
  config::provider_settings pool;
  pool.name = "pool";
  pool.bucket = "pmem";
  auto& options = pool.options.edit<storage::pmem_options>().pool;
  options.capacity_bytes = 128 << 20;
  options.path = pool_directory + "/p.pool";
  s.providers = {pool};
  s.nodes = {{s.node.name, s.node.listen, s.providers}};
  return s;
}

struct one_pool {
  explicit one_pool(bool in_memory = true)
    : settings(with_pool(dir.path(), in_memory ? memory.path() : dir.path())) {
    start();
  }

  void start() {
    n.emplace(node::embed(settings));
    direct.emplace(n->client());
  }
  void stop() {
    direct.reset();
    n.reset();
  }
  client connect() { return client::connect("unix:" + dir.path() + "/n0.sock"); }
  client by(bool over_socket) { return over_socket ? connect() : *direct; }

  scratch_directory dir;
  scratch_directory memory{"/dev/shm"}; // there slots are used in place
  config::settings settings;
  std::optional<node> n;
  std::optional<client> direct;
};

} // namespace millrace::testing
