// The shm driver's connection to one peer, with the sides that ask and serve. Made by the driver.
#pragma once

#include <millrace/transport/shm/asking_side.hpp>
#include <millrace/transport/shm/lending_side.hpp>
#include <millrace/transport/shm/mapping_side.hpp>
#include <millrace/transport/shm/peer.hpp>

#include <memory>
#include <vector>

namespace millrace::transport::shm {

/// Holds the sides of a link.
/// Threads: any.
class peer_link {
public:
  peer_link(
    const std::shared_ptr<net::channel>& c, std::uint64_t granule_bytes, const shm_options& options,
    std::shared_ptr<lent_places> mappings)
    : asking(c, granule_bytes, options), lending(c, options, std::move(mappings)),
      mapping(c, options), channel_(c) {}

  const net::peer_info& peer() const noexcept { return channel_->peer(); }
  bool is_open() const noexcept { return channel_->is_open(); }

  /// Sends the questions and the answers that were held back.
  void send_held() {
    asking.send_held();
    lending.send_held();
  }
  /// Answers a peer that wants to map a region.
  void answer(const map_question& asked) {
    send_or_close(*channel_, message_kind::mapped, answer_to(asked, asking));
  }
  /// Fails the pending moves and maps. Returns the memory that the peer may still be touching.
  std::vector<std::shared_ptr<void>> close(const status& why) {
    lending.close();
    mapping.close(why);
    return asking.close(why);
  }

  asking_side asking;
  lending_side lending;
  mapping_side mapping;

private:
  const std::shared_ptr<net::channel> channel_;
};

} // namespace millrace::transport::shm
