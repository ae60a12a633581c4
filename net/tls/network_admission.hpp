// Admission on a network: connections are few and short-lived until they have proved themselves.
// Held by the listener and, until they have proved themselves, by its connections.
#pragma once

#include <millrace/net/channel/admission.hpp>

#include <string>
#include <unordered_map>
#include <vector>

namespace millrace::net::tls {

class network_admission final : public admission {
public:
  using admission::admission;

  // For connections that have proved themselves.
  result<admitted> admit(const peer_info& peer);
  void left(const peer_info& peer);

private:
  // A process that has proved itself, under the name of the node that it announces.
  struct named_process {
    peer_id id;
    std::string host;
    std::uint32_t connections = 0;
  };

  void receive(unique_fd fd, const socket_address& from) override;
  status check_name(const peer_info& peer) const;

  std::unordered_map<std::string, std::vector<named_process>> named_;
};

} // namespace millrace::net::tls
