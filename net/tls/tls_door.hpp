// The part of a network's listener that lives on the loop: whom it accepts, and how many.
// Held by the listener and, until they have proved themselves, by its visitors.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/net/socket/socket_address.hpp>

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace millrace::net {

class tls_visitor;

/// The part of a listener that lives on the loop.
class tls_door : public std::enable_shared_from_this<tls_door> {
public:
  using accept_function = std::function<std::shared_ptr<channel_handler>(const peer_info&)>;
  using visitors = std::list<tls_visitor*>;

  tls_door(
    std::shared_ptr<io_loop> loop, listener_options where, const channel_options& options,
    accept_function accept, std::vector<unique_fd> sockets)
    : loop(std::move(loop)), where(std::move(where)), options(options), accept_(std::move(accept)),
      sockets_(std::move(sockets)), connections_(counter_of(this->where)) {}

  void open();
  void shut();  // any thread: once it returns, nobody is accepted any more
  void close(); // on the loop, after `shut`

  // For visitors.
  result<std::shared_ptr<channel_handler>> admit(const peer_info& peer);
  void left(const peer_info& peer);
  void forget(tls_visitor& v);
  void refused(const std::string& source, const status& why);

  const std::shared_ptr<io_loop> loop;
  const listener_options where;
  const channel_options options;

private:
  // A process that has proved itself, under the node's name that it bears.
  struct guest {
    peer_id id;
    std::string host;
    std::uint32_t connections = 0;
  };

  void on_ready(int listening);
  bool accept_one(int listening);
  void pause();
  void receive(unique_fd fd, const socket_address& from);
  void make_room(const std::string& source);
  status check_name(const peer_info& peer) const;

  std::mutex accept_mutex_;
  accept_function accept_; // null once shut
  std::vector<unique_fd> sockets_;
  visitors visitors_; // the oldest first
  std::unordered_map<std::string, std::uint32_t> visitors_of_;
  const std::shared_ptr<std::uint32_t> connections_;
  std::unordered_map<std::string, std::vector<guest>> guests_;
};

} // namespace millrace::net
