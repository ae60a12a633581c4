// A channel without a socket; the test says who the peer is. It drops what is sent. Tests that need
// the frames override `send`.
// Used by transport and lab tests, and by fault_world.
#pragma once

#include <millrace/net/channel/channel.hpp>

#include <string>
#include <utility>

namespace millrace::testing {

class fake_channel : public net::channel {
public:
  fake_channel(const peer_id& id, std::string name) {
    who_.id = id;
    who_.name = std::move(name);
  }

  /// Sets the user of the peer's process.
  void set_user(std::uint32_t uid) { who_.uid = uid; }
  /// Makes it a channel between hosts.
  void set_address(const std::string& text) {
    who_.address = net::socket_address::parse(text).value();
  }

  const net::peer_info& peer() const noexcept override { return who_; }
  bool is_open() const noexcept override { return true; }
  net::channel_key derive_key(std::string_view) const override { return {}; }
  status send(
    net::frame_kind, std::uint64_t, std::span<const std::byte>, std::span<const int>) override {
    return {};
  }
  void close(status, std::uint32_t) override {}

private:
  net::peer_info who_;
};

} // namespace millrace::testing
