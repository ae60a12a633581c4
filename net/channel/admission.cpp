// What all listeners share: accepting until stopped, and asking the service for a handler.
#include <millrace/net/channel/admission.hpp>
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/net/tls/address.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace::net {

namespace {

constexpr auto is_starting_text = "is starting; try again";

class admitting_listener final : public listener {
public:
  explicit admitting_listener(std::shared_ptr<admission> a)
    : loop_(a->loop), address_(a->where.address), admission_(std::move(a)) {
    loop_->post([a = admission_] { a->open(); });
  }
  ~admitting_listener() override { stop(); }

  const std::string& address() const noexcept override { return address_; }

  void stop() override {
    std::lock_guard guard{mutex_};
    auto a = std::exchange(admission_, nullptr);
    if (!a)
      return;
    a->shut();
    loop_->post([a = std::move(a)] { a->close(); });
  }

private:
  const std::shared_ptr<io_loop> loop_;
  const std::string address_;
  std::mutex mutex_;
  std::shared_ptr<admission> admission_; // null once stopped
};

} // namespace

void admission::open() {
  acceptor_ = std::make_shared<acceptor>(
    loop, where.address, std::move(sockets_),
    [weak = weak_from_this()](unique_fd fd, const socket_address& from) {
      if (auto a = weak.lock())
        a->receive(std::move(fd), from);
    });
  acceptor_->open();
}

void admission::shut() {
  std::lock_guard guard{accept_mutex_};
  accept_ = nullptr;
}

void admission::close() {
  acceptor_->close();
  newcomers.refuse_all({errc::unavailable, "the service accepts no connections now"});
}

// At a Unix socket a source is a user, whose processes may all start at once.
std::uint32_t admission::per_source_max_of(const listener_options& where) {
  return where.address.starts_with(tls::scheme) ? where.handshakes_per_source_max
                                                : where.handshakes_max;
}

void admission::refused(const std::string& source, const status& why) const {
  if (why.code() != errc::unavailable)
    net::refused(source, why, where.address);
}

result<admitted> admission::place_for(const peer_info& peer) {
  auto who = party_of(peer);
  auto place = lend_place(shares_, who);
  if (!place)
    return fail(
      errc::busy,
      "the service has {} of its {} connections, {} of them to this process, and lends this "
      "process no more",
      shares_->taken(), shares_->places(), shares_->taken_by(who));
  std::lock_guard guard{accept_mutex_};
  if (!accept_)
    return fail(errc::unavailable, "the service accepts no connections now");
  auto handler = accept_(peer);
  if (!handler)
    return fail(handler.error());
  return admitted{std::move(*handler), std::move(place)};
}

std::shared_ptr<fair_shares> shares_of(const listener_options& where) {
  auto all = where.connections_max;
  return where.connections ? where.connections
                           : std::make_shared<fair_shares>(all, places_kept(all));
}

std::shared_ptr<lent_places> buffers_of(const listener_options& where) {
  return std::make_shared<lent_places>(
    where.buffers_bytes_max, "bytes for frames (channel.buffers_max)");
}

party party_of(const peer_info& peer) {
  if (peer.address)
    return {source_of(*peer.address), peer.id};
  party who;
  who.owner = "user " + std::to_string(peer.uid);
  who.privileged = peer.uid == 0 || peer.uid == ::geteuid();
  auto pid = static_cast<pid_t>(peer.pid);
  // 0: in a namespace that is not seen here.
  if (pid == 0)
    who.process = peer.id;
  else if (pid != ::getpid())
    std::memcpy(who.process.bytes.data(), &pid, sizeof pid);
  return who;
}

status starting(const std::string& node) {
  return {errc::unavailable, "node {} {}", node, is_starting_text};
}

bool is_starting(const status& why) {
  return why.code() == errc::unavailable &&
    why.detail().find(is_starting_text) != std::string::npos;
}

std::shared_ptr<listener> listener_of(std::shared_ptr<admission> a) {
  return std::make_shared<admitting_listener>(std::move(a));
}

} // namespace millrace::net
