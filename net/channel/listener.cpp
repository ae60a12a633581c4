// Opening listeners, and admission at Unix sockets: who may connect, how many, and what the refused
// are told.
// Opened by a node; runs on its I/O loop.
#include <millrace/core/log.hpp>
#include <millrace/net/channel/admission.hpp>
#include <millrace/net/channel/connection.hpp>
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
  using admitted_id = std::shared_ptr<std::optional<peer_id>>;

  void receive(unique_fd fd, const socket_address& from) override;
  status check(const peer_credentials& who) const;
  result<std::shared_ptr<channel_handler>> admit(const peer_info& peer, const admitted_id& id);
  void left(const admitted_id& id);
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
  auto allowed = who ? check(*who) : who.error();
  if (!allowed.ok()) {
    log().warn("refused a connection address={}: {}", where.address, allowed.to_string());
    return tell_why_not(fd.get(), allowed);
  }
  if (is_full())
    return tell_why_not(fd.get(), has_all_connections());
  ++*connections_;
  auto id = std::make_shared<std::optional<peer_id>>();
  connection_hooks hooks;
  hooks.admit = [a = self(), id](const peer_info& peer) { return a->admit(peer, id); };
  hooks.gone = [a = self(), id] { a->left(id); };
  connection_seed seed;
  seed.side = handshake_side::acceptor;
  seed.stream = make_unix_stream(std::move(fd));
  seed.who = *who;
  seed.began = steady_clock::now();
  std::make_shared<connection>(loop, std::move(seed), options, std::move(hooks))->start();
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
  const peer_info& peer, const admitted_id& id) {
  auto known = processes_.find(peer.id);
  if (known != processes_.end() && known->second.pid != peer.pid)
    return fail(
      errc::permission_denied, "the identity belongs to the process {}", known->second.pid);
  auto handler = handler_for(peer);
  if (!handler)
    return handler;
  *id = peer.id;
  auto& entry = processes_[peer.id];
  entry.pid = peer.pid;
  ++entry.connections;
  return handler;
}

void unix_admission::left(const admitted_id& id) {
  --*connections_;
  if (!*id)
    return;
  auto found = processes_.find(**id);
  if (--found->second.connections == 0)
    processes_.erase(found);
}

} // namespace

result<std::shared_ptr<listener>> listener::open(
  const std::shared_ptr<io_loop>& loop, const listener_options& where,
  const channel_options& options,
  std::function<std::shared_ptr<channel_handler>(const peer_info&)> accept) {
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
