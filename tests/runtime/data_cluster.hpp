// Nodes in this process with a data server each, for tests of working sets that are divided. They
// are one peer, so a transfer to another node than that of the memory succeeds here; in
// tests/system/data_test.cpp, where each is a process, it does not.
#pragma once

#include <millrace/actors/loader/data_options.hpp>
#include <millrace/actors/loader/read_options.hpp>
#include <millrace/net/network_options.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/tests/runtime/data_node.hpp>
#include <millrace/transport/fabric_options.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace::testing {

struct data_cluster {
  static constexpr auto sample_bytes = data_node::sample_bytes;

  explicit data_cluster(std::size_t count, std::uint64_t regions = 8) {
    std::string text = "staging: { size: 8MiB }\n"
                       "client: { connect_timeout: 3s, reconnect_backoff_max: 100ms }\n";
    text += fmt::format("data: {{ capacity: {}MiB, region_size: 1MiB }}\n", regions);
    text += "cluster:\n  nodes:\n";
    for (std::size_t i = 0; i < count; ++i)
      text += fmt::format(
        "    - name: n{0}\n      listen: 'unix:{1}/n{0}.sock'\n"
        "      providers: [{{ name: p{0}, bucket: memory, capacity: 1MiB }}]\n",
        i, dir.path());
    settings = parse_configuration(text, "cluster.yaml").value();
    settings.options.edit<transport::tcp_options>().listen = {"127.0.0.1:0"};
    // A machine that has much to do is not a lost one.
    settings.options.edit<net::network_options>().channel.peer_timeout_ms = 600'000;
    for (std::size_t i = 0; i < count; ++i)
      start(fmt::format("n{}", i));
  }

  void start(const std::string& name) {
    nodes[name].emplace(node::embed(settings.for_node(name).value()));
  }
  void stop(const std::string& name) { nodes[name].reset(); }

  /// Returns a client that maps the memory of the nodes, or one that has the driver tcp alone.
  client connect(bool maps = true) const {
    auto s = settings;
    s.options.edit<actors::read_options>().retry_ms = 50;
    if (!maps) {
      auto& transport = s.options.edit<transport::fabric_options>();
      transport.prefer = {"tcp"};
      transport.prefer_is_explicit = true;
    }
    return client::of(s).value();
  }

  /// Returns the path of a file of samples whose bytes are those of the pattern.
  std::string file(const std::string& name, std::uint64_t samples, std::uint64_t salt = 1) const {
    auto bytes = pattern(samples * sample_bytes, salt);
    return write_npy(dir.path() + "/" + name, {"x", dtype::u8, {samples, 10, 100}}, bytes);
  }

  /// Returns the bytes of memory that the sets of all running nodes have.
  std::uint64_t used_bytes() {
    std::uint64_t sum = 0;
    for (auto& [name, running] : nodes) {
      if (!running)
        continue;
      auto client = running->client();
      for (auto& one : client.status().get())
        if (one && one->node == name)
          sum += one->data.used_bytes;
    }
    return sum;
  }
  /// The memory of what was given up returns a little later.
  bool frees_all() {
    auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (used_bytes() > 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    return used_bytes() == 0;
  }

  scratch_directory dir;
  config::settings settings;
  std::map<std::string, std::optional<node>> nodes;
};

inline preload_options among(std::uint32_t servers) {
  preload_options out;
  out.servers = servers;
  return out;
}

} // namespace millrace::testing
