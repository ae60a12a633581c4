// Makes identifiers of librdmacm and delivers their events.
#include <millrace/core/log.hpp>
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/transport/verbs/cm_hub.hpp>

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string_view>

namespace millrace::transport::verbs {

namespace {

// Private data is shorter than this on every fabric.
constexpr std::size_t words_max = 256;

bool is_usable(const in6_addr& a) {
  return !IN6_IS_ADDR_LINKLOCAL(&a) && !IN6_IS_ADDR_LOOPBACK(&a) && !IN6_IS_ADDR_UNSPECIFIED(&a);
}

void add(std::vector<net::socket_address>& out, const sockaddr* a, socklen_t size_bytes) {
  if (auto made = net::socket_address::from(a, size_bytes))
    out.push_back(made->with_port(0));
}

void add_ipv4(std::vector<net::socket_address>& out, const void* four_bytes) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  std::memcpy(&a.sin_addr, four_bytes, 4);
  add(out, reinterpret_cast<sockaddr*>(&a), sizeof(a));
}

void add_ipv6(std::vector<net::socket_address>& out, const in6_addr& address) {
  if (!is_usable(address))
    return;
  sockaddr_in6 a{};
  a.sin6_family = AF_INET6;
  a.sin6_addr = address;
  add(out, reinterpret_cast<sockaddr*>(&a), sizeof(a));
}

// The GIDs of Ethernet are made from IP addresses.
void add_gid(std::vector<net::socket_address>& out, const rail_info& rail) {
  if (rail.infiniband)
    return;
  in6_addr a;
  std::memcpy(&a, rail.gid.data(), sizeof(a));
  if (IN6_IS_ADDR_V4MAPPED(&a))
    add_ipv4(out, rail.gid.data() + 12);
  else
    add_ipv6(out, a);
}

void add_interfaces(std::vector<net::socket_address>& out) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    return;
  for (int family : {AF_INET, AF_INET6})
    for (auto* i = list; i; i = i->ifa_next) {
      auto up = (i->ifa_flags & IFF_UP) != 0 && (i->ifa_flags & IFF_LOOPBACK) == 0;
      if (!up || !i->ifa_addr || i->ifa_addr->sa_family != family)
        continue;
      if (family == AF_INET)
        add_ipv4(out, &reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr);
      else
        add_ipv6(out, reinterpret_cast<sockaddr_in6*>(i->ifa_addr)->sin6_addr);
    }
  freeifaddrs(list);
}

net::socket_address address_of(const sockaddr* a) {
  auto size = a->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return net::socket_address::from(a, static_cast<socklen_t>(size)).value_or(net::socket_address{});
}

} // namespace

cm_id::~cm_id() {
  hub_->forget(id_);
  rdma_destroy_id(id_);
}

net::socket_address cm_id::local_address() const {
  return address_of(rdma_get_local_addr(id_)).with_port(ntohs(rdma_get_src_port(id_)));
}

std::string cm_id::source() const { return net::source_of(address_of(rdma_get_peer_addr(id_))); }

bool cm_id::is_at(const device& d) const noexcept {
  return id_->verbs && id_->port_num == d.port() &&
    std::string_view{ibv_get_device_name(id_->verbs->device)} ==
    ibv_get_device_name(d.context()->device);
}

result<std::shared_ptr<cm_hub>> cm_hub::open(std::shared_ptr<net::io_loop> loop) {
  auto* events = rdma_create_event_channel();
  if (!events)
    return fail(
      errc::unavailable, "the kernel has no rdma_cm (module rdma_ucm): {}", std::strerror(errno));
  fcntl(events->fd, F_SETFL, fcntl(events->fd, F_GETFL) | O_NONBLOCK);
  std::shared_ptr<cm_hub> hub{new cm_hub{std::move(loop), events}};
  hub->loop_->post([hub] {
    auto watched =
      hub->loop_->watch(hub->events_->fd, EPOLLIN, [weak = std::weak_ptr{hub}](std::uint32_t) {
        if (auto h = weak.lock())
          h->take_events();
      });
    if (!watched.ok())
      log().error("events of rdma_cm are not seen: {}", watched.to_string());
  });
  return hub;
}

cm_hub::~cm_hub() { rdma_destroy_event_channel(events_); }

void cm_hub::let_go(std::shared_ptr<void> holder, const std::shared_ptr<device>& port) {
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return;
    leaving_.emplace_back(port, std::move(holder));
  }
  sweep();
}

void cm_hub::sweep() {
  // This runs without the lock, since asking a port takes time and the loop needs the lock.
  decltype(leaving_) all;
  {
    std::lock_guard guard{mutex_};
    all.swap(leaving_);
  }
  auto is_down = [](auto& entry) {
    auto now = entry.first->now();
    return !now || !now->active;
  };
  auto gone = std::partition(all.begin(), all.end(), is_down);
  std::lock_guard guard{mutex_};
  if (!closed_)
    leaving_.insert(leaving_.end(), std::move_iterator{all.begin()}, std::move_iterator{gone});
}

void cm_hub::close() {
  {
    std::unique_lock guard{mutex_};
    closed_ = true;
    auto all = std::move(leaving_);
    leaving_.clear();
    guard.unlock();
    all.clear();
  }
  loop_->post([self = shared_from_this()] { self->loop_->unwatch(self->events_->fd); });
}

result<cm_id_ptr> cm_hub::make_id(std::weak_ptr<cm_listener> who) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(events_, &id, nullptr, RDMA_PS_TCP) != 0)
    return fail(status_from_errno(errno, "making an identifier of rdma_cm"));
  auto out = std::make_shared<cm_id>(shared_from_this(), id);
  std::lock_guard guard{mutex_};
  listeners_[id] = std::move(who);
  return out;
}

void cm_hub::forget(rdma_cm_id* id) {
  std::lock_guard guard{mutex_};
  listeners_.erase(id);
}

result<cm_id_ptr> cm_hub::bind(const device& d, std::weak_ptr<cm_listener> who) {
  std::vector<net::socket_address> candidates;
  if (auto now = d.now())
    add_gid(candidates, now->rail);
  add_interfaces(candidates);
  for (auto& a : candidates) {
    auto id = make_id(who);
    if (!id)
      return id;
    if (rdma_bind_addr((*id)->get(), const_cast<sockaddr*>(a.get())) == 0 && (*id)->is_at(d))
      return id;
  }
  return fail(errc::unavailable, "no IP address belongs to RDMA device " + d.name());
}

void cm_hub::take_events() {
  rdma_cm_event* e = nullptr;
  while (rdma_get_cm_event(events_, &e) == 0)
    take(e);
}

void cm_hub::take(rdma_cm_event* e) {
  auto asks = e->event == RDMA_CM_EVENT_CONNECT_REQUEST;
  std::shared_ptr<cm_listener> who;
  {
    std::lock_guard guard{mutex_};
    if (auto found = listeners_.find(asks ? e->listen_id : e->id); found != listeners_.end())
      who = found->second.lock();
  }
  cm_event copy;
  copy.type = e->event;
  copy.status = e->status;
  if (asks) {
    auto& conn = e->param.conn;
    copy.request = std::make_shared<cm_id>(shared_from_this(), e->id);
    copy.number = conn.qp_num;
    auto* data = static_cast<const std::byte*>(conn.private_data);
    if (data)
      copy.words.assign(data, data + std::min<std::size_t>(conn.private_data_len, words_max));
  }
  // A thread that destroys an identifier waits until the identifier's events are acknowledged.
  rdma_ack_cm_event(e);
  if (who)
    who->on_event(std::move(copy));
}

} // namespace millrace::transport::verbs
