// This process's access to librdmacm: its identifiers, and the events for them.
// Made by the driver.
#pragma once

#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/socket/socket_address.hpp>
#include <millrace/transport/verbs/device.hpp>

#include <rdma/rdma_cma.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::transport::verbs {

class cm_hub;

/// An identifier of librdmacm and the event channel that it needs.
class cm_id {
public:
  cm_id(std::shared_ptr<cm_hub> hub, rdma_cm_id* id) : hub_(std::move(hub)), id_(id) {}
  ~cm_id();
  cm_id(const cm_id&) = delete;
  cm_id& operator=(const cm_id&) = delete;

  rdma_cm_id* get() const noexcept { return id_; }
  /// Returns its address and the port on which it listens.
  net::socket_address local_address() const;
  /// Returns the address of the peer that requests or answers, as `source_of` names it.
  std::string source() const;
  /// Returns true once it is bound to that port of that device.
  bool is_at(const device& d) const noexcept;

private:
  std::shared_ptr<cm_hub> hub_;
  rdma_cm_id* id_;
};
using cm_id_ptr = std::shared_ptr<cm_id>;

/// A copy of an event.
struct cm_event {
  rdma_cm_event_type type = RDMA_CM_EVENT_DEVICE_REMOVAL;
  int status = 0;
  cm_id_ptr request;            // the id of a requested connection
  std::uint32_t number = 0;     // the requester's queue pair
  std::vector<std::byte> words; // the request's private data
};

class cm_listener {
public:
  virtual ~cm_listener() = default;
  /// Called on the loop; must not block.
  virtual void on_event(cm_event e) = 0;
};

/// Makes identifiers and delivers their events. The loop reads the events; listeners handle them on
/// another thread.
/// Threads: any.
class cm_hub : public std::enable_shared_from_this<cm_hub> {
public:
  /// Opens the event channel.
  /// Errors:  `unavailable` where the kernel has no rdma_cm.
  static result<std::shared_ptr<cm_hub>> open(std::shared_ptr<net::io_loop> loop);
  ~cm_hub();
  /// Stops the events. Call it before the loop ends.
  void close();

  /// Releases an object that holds identifiers at a port, once the port is up. Identifiers send
  /// their disconnection through the port, and soft-RoCE's management queue pair receives nothing
  /// more after a failed send.
  void let_go(std::shared_ptr<void> holder, const std::shared_ptr<device>& port);
  /// Releases the objects whose port is up now.
  void sweep();

  /// Makes an identifier. Its events go to `who` while that lives.
  /// Errors:  `no_space`, `io_error`.
  result<cm_id_ptr> make_id(std::weak_ptr<cm_listener> who);

  /// Makes an identifier bound to an IP address of that port: the address in the port's GID, else
  /// one of an interface that belongs to the port.
  /// Errors:  `unavailable` when there is none.
  result<cm_id_ptr> bind(const device& d, std::weak_ptr<cm_listener> who);

private:
  friend class cm_id;
  cm_hub(std::shared_ptr<net::io_loop> loop, rdma_event_channel* events)
    : loop_(std::move(loop)), events_(events) {}
  void take_events();
  void take(rdma_cm_event* e);
  void forget(rdma_cm_id* id);

  const std::shared_ptr<net::io_loop> loop_;
  rdma_event_channel* const events_;
  std::mutex mutex_;
  std::map<rdma_cm_id*, std::weak_ptr<cm_listener>> listeners_;
  bool closed_ = false;
  std::vector<std::pair<std::shared_ptr<device>, std::shared_ptr<void>>> leaving_;
};

} // namespace millrace::transport::verbs
