// A node, a publisher's tensors whose bytes tell their version, and who follows them.
// Used by the tests of weights.
#pragma once

#include "three_providers.hpp"

#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/client/weights.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/support/process.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::testing {

/// Two tensors, of which one goes in messages where it is alone.
struct numbered_tensors {
  std::vector<std::uint8_t> large = std::vector<std::uint8_t>(300'000);
  std::vector<std::uint8_t> small = std::vector<std::uint8_t>(100);

  void fill(std::uint64_t version) {
    std::ranges::fill(large, static_cast<std::uint8_t>(version));
    std::ranges::fill(small, static_cast<std::uint8_t>(version));
  }
  std::vector<tensor_view> views() {
    return {
      tensor_view::dense("large", dtype::u8, {1000, 300}, std::span{large}),
      tensor_view::dense("small", dtype::u8, {100}, std::span{small})};
  }
  std::vector<load_target> targets() {
    std::vector<load_target> out;
    for (auto& view : views())
      out.push_back({view});
    return out;
  }
  /// True if all bytes are of that version.
  bool are_of(std::uint64_t version) const {
    auto is_of = [version](auto byte) { return byte == static_cast<std::uint8_t>(version); };
    return std::ranges::all_of(large, is_of) && std::ranges::all_of(small, is_of);
  }
};

struct weights_served : three_providers {
  std::optional<node> n{node::embed(settings)};
  std::optional<client> direct{n->client()};
  client remote = client::connect(settings.node.listen.at(0));
  numbered_tensors trained;

  client& by(bool over_socket) { return over_socket ? remote : *direct; }
  class weights policy(const std::string& group = "fast", bool over_socket = true) {
    return by(over_socket).weights("policy", group);
  }

  /// Waits until followers can load it.
  receipt publish(const weights_publisher& by, std::uint64_t version) {
    trained.fill(version);
    return by.publish(version).stored.get();
  }

  std::uint64_t watches() {
    auto nodes = direct->status().get();
    std::uint64_t out = 0;
    for (auto& p : nodes.at(0)->providers)
      out += p.store.watches;
    return out;
  }
  void restart() {
    direct.reset();
    n.reset();
    n.emplace(node::embed(settings));
    direct.emplace(n->client());
  }
};

} // namespace millrace::testing
