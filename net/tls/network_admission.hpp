// Admission on a network: connections are few and short-lived until they have proved themselves.
// Held by the listener and, until they have proved themselves, by its connections.
#pragma once

#include <millrace/net/channel/admission.hpp>

#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace millrace::net::tls {

class unproven_connection;

class network_admission final : public admission {
public:
  using unproven_list = std::list<unproven_connection*>;
  using admission::admission;

  void close() override;

  // For connections that have not proved themselves, and for those that have.
  result<std::shared_ptr<channel_handler>> admit(const peer_info& peer);
  void left(const peer_info& peer);
  void forget(unproven_connection& c);
  void refused(const std::string& source, const status& why);

private:
  // A process that has proved itself, under the name of the node that it announces.
  struct named_process {
    peer_id id;
    std::string host;
    std::uint32_t connections = 0;
  };

  void receive(unique_fd fd, const socket_address& from) override;
  void make_room(const std::string& source);
  status check_name(const peer_info& peer) const;

  unproven_list unproven_; // the oldest first
  std::unordered_map<std::string, std::uint32_t> unproven_of_source_;
  std::unordered_map<std::string, std::vector<named_process>> named_;
};

} // namespace millrace::net::tls
