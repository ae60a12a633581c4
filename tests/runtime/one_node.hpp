// A node in this process with one provider, for tests from a client to the bytes.
#pragma once

#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <optional>
#include <string>

namespace millrace::testing {

/// The node listens at a socket in the directory.
inline config::settings with_provider(
  const std::string& directory, const config::provider_settings& provider) {
  config::settings s;
  s.node.name = "n0";
  s.node.listen = {"unix:" + directory + "/n0.sock"};
  s.staging.size_bytes = 64 << 20;
  s.providers = {provider};
  s.nodes = {{s.node.name, s.node.listen, s.providers}};
  return s;
}

/// Who derives from it fills `settings` and starts the node.
struct one_node {
  void start() {
    n.emplace(node::embed(settings));
    direct.emplace(n->client());
  }
  void stop() {
    direct.reset();
    n.reset();
  }
  client connect() { return client::connect(settings.node.listen.front()); }
  client by(bool over_socket) { return over_socket ? connect() : *direct; }

  scratch_directory dir;
  scratch_directory memory{"/dev/shm"};
  config::settings settings;
  std::optional<node> n;
  std::optional<client> direct;
};

} // namespace millrace::testing
