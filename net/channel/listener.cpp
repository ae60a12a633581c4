// Listeners, and admission at Unix sockets: who may connect, how many, and what the refused are
// told. Opened by a node; runs on its I/O loop.
#include <millrace/net/channel/admission.hpp>
#include <millrace/net/channel/connection.hpp>
#include <millrace/net/channel/unix_stream.hpp>
#include <millrace/net/socket/socket_file.hpp>
#include <millrace/net/tls/address.hpp>
#include <millrace/net/tls/channel.hpp>

#include <unistd.h>

#include <algorithm>
#include <unordered_map>

namespace millrace::net {

namespace {

/// Admission at a Unix socket, where the kernel names the other process.
class unix_admission final : public admission {
public:
  unix_admission(
    std::shared_ptr<io_loop> loop, listener_options where, const channel_options& options,
    accept_function accept, std::vector<unique_fd> sockets, std::unique_ptr<socket_file> file)
    : admission(std::move(loop), std::move(where), options, std::move(accept), std::move(sockets)),
      file_(std::move(file)) {}

  void shut() override {
    admission::shut();
    file_->remove();
  }

private:
  struct process {
    std::uint32_t pid = 0;
    std::uint32_t connections = 0;
  };
  // What a connection holds here from its admission to its end.
  struct admitted_process {
    std::optional<peer_id> id;
    std::shared_ptr<void> place;
  };
  using held = std::shared_ptr<admitted_process>;

  void receive(unique_fd fd, const socket_address& from) override;
  void begin(unique_fd fd, const peer_credentials& who, const std::string& source);
  status check(const peer_credentials& who) const;
  result<std::shared_ptr<channel_handler>> admit(const peer_info& peer, const held& holds);
  void left(const held& holds);
  std::shared_ptr<unix_admission> self() {
    return std::static_pointer_cast<unix_admission>(shared_from_this());
  }

  const std::unique_ptr<socket_file> file_;
  std::unordered_map<peer_id, process> processes_; // with connections
};

void tell_why_not(int fd, const status& why) {
  auto body = encode_goodbye(why);
  auto head = encode_header({frame_kind::goodbye, 0, static_cast<std::uint32_t>(body.size()), 0});
  iovec parts[]{{head.data(), head.size()}, {body.data(), body.size()}};
  send_with_fds(fd, parts, {});
}

void unix_admission::receive(unique_fd fd, const socket_address&) {
  auto who = credentials_of(fd.get());
  auto source = who ? "user " + std::to_string(who->uid) : "an unknown user";
  auto allowed = who ? check(*who) : who.error();
  if (allowed.ok())
    return begin(std::move(fd), *who, source);
  refused(source, allowed);
  tell_why_not(fd.get(), allowed);
}

void unix_admission::begin(unique_fd fd, const peer_credentials& who, const std::string& source) {
  auto made = std::make_shared<std::weak_ptr<connection>>();
  auto number = newcomers.add(source, [a = self(), made, source](const status& why) {
    a->refused(source, why);
    if (auto c = made->lock())
      c->close(why, 0);
  });
  auto holds = std::make_shared<admitted_process>();
  connection_hooks hooks;
  hooks.admit = [a = self(), holds, number, source](const peer_info& peer) {
    a->newcomers.remove(number);
    auto handler = a->admit(peer, holds);
    if (!handler)
      a->refused(source, handler.error());
    return handler;
  };
  hooks.gone = [a = self(), holds, number] {
    a->newcomers.remove(number);
    a->left(holds);
  };
  connection_seed seed;
  seed.side = handshake_side::acceptor;
  seed.stream = make_unix_stream(handshake_side::acceptor, std::move(fd));
  seed.who = who;
  seed.began = steady_clock::now();
  auto c = std::make_shared<connection>(loop, std::move(seed), options, std::move(hooks));
  *made = c;
  c->start();
}

status unix_admission::check(const peer_credentials& who) const {
  if (
    who.uid == ::geteuid() || who.uid == 0 ||
    std::count(where.allow_uids.begin(), where.allow_uids.end(), who.uid) > 0)
    return {};
  return status{
    errc::permission_denied,
    "user {} (pid {}) may not use this service; its owner can list the user", who.uid, who.pid};
}

// A process names itself. When two processes use the same name, one of them lies.
result<std::shared_ptr<channel_handler>> unix_admission::admit(
  const peer_info& peer, const held& holds) {
  auto known = processes_.find(peer.id);
  if (known != processes_.end() && known->second.pid != peer.pid)
    return fail(
      errc::permission_denied, "the identity belongs to the process {}", known->second.pid);
  auto placed = place_for(peer);
  if (!placed)
    return fail(placed.error());
  *holds = {peer.id, std::move(placed->place)};
  auto& entry = processes_[peer.id];
  entry.pid = peer.pid;
  ++entry.connections;
  return std::move(placed->handler);
}

void unix_admission::left(const held& holds) {
  auto gone = std::exchange(*holds, {});
  if (!gone.id)
    return;
  auto found = processes_.find(*gone.id);
  if (--found->second.connections == 0)
    processes_.erase(found);
}

} // namespace

result<std::shared_ptr<listener>> listener::open(
  const std::shared_ptr<io_loop>& loop, const listener_options& where,
  const channel_options& options, accept_function accept) {
  if (where.address.starts_with(tls::scheme))
    return tls::listen(loop, where, options, std::move(accept));
  auto file = socket_file::bind(where.address, where.socket_mode);
  if (!file)
    return fail(file.error());
  std::vector<unique_fd> sockets;
  sockets.push_back((*file)->take_socket());
  return listener_of(std::make_shared<unix_admission>(
    loop, where, options, std::move(accept), std::move(sockets), std::move(*file)));
}

} // namespace millrace::net
