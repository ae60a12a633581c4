// The connecting side of a channel.
// Called by links, and directly where one connection is enough.
#include <millrace/net/channel/connection.hpp>
#include <millrace/net/channel/unix_stream.hpp>
#include <millrace/net/tls/address.hpp>
#include <millrace/net/tls/channel.hpp>
#include <millrace/net/tls/context.hpp>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace millrace::net {

namespace {

// A listener whose backlog is full returns EAGAIN, and no event tells when it has room again.
constexpr std::uint32_t retry_ms = 10;

/// One attempt to connect to a Unix socket. If the loop drops it, the caller still gets its answer.
class attempt : public std::enable_shared_from_this<attempt> {
public:
  attempt(
    std::shared_ptr<io_loop> loop, std::string address, const channel_options& options,
    std::shared_ptr<channel_handler> handler, completion<std::shared_ptr<channel>> done)
    : loop_(std::move(loop)), address_(std::move(address)), options_(options),
      handler_(std::move(handler)), done_(std::move(done)), began_(steady_clock::now()),
      deadline_(began_ + std::chrono::milliseconds{options.handshake_timeout_ms}) {}

  ~attempt() { end(status{errc::unavailable, "the I/O loop has stopped"}); }

  void run() {
    auto where = parse_unix_address(address_);
    if (!where)
      return end(where.error());
    auto fd = make_unix_socket();
    if (!fd)
      return end(fd.error().within("connecting to " + address_));
    auto* name = reinterpret_cast<const sockaddr*>(&*where);
    if (::connect(fd->get(), name, sizeof(*where)) == 0)
      return shake_hands(std::move(*fd));
    if (errno == EAGAIN && steady_clock::now() < deadline_) {
      loop_->run_after(retry_ms, [a = shared_from_this()] { a->run(); });
      return;
    }
    end(explain(errno));
  }

private:
  void shake_hands(unique_fd fd) {
    auto who = credentials_of(fd.get());
    if (!who)
      return end(who.error());
    if (auto bad = check(*who); !bad.ok())
      return end(bad);
    auto hooks =
      connector_hooks(address_, options_, std::move(handler_), std::exchange(done_, nullptr));
    connection_seed seed;
    seed.stream = make_unix_stream(handshake_side::connector, std::move(fd));
    seed.who = *who;
    seed.began = began_;
    std::make_shared<connection>(loop_, std::move(seed), options_, std::move(hooks))->start();
  }

  // Any user may have made the socket first. Nothing has been sent yet.
  status check(const peer_credentials& who) const {
    auto& trusted = options_.trust_uids;
    if (
      who.uid == 0 || who.uid == ::geteuid() ||
      std::find(trusted.begin(), trusted.end(), who.uid) != trusted.end())
      return {};
    return {
      errc::permission_denied,
      "connecting to {}: the service there belongs to user {} (pid {}), not to root or to this "
      "user; list the user in client.trust_users if it may see this process's tensors",
      address_, who.uid, who.pid};
  }

  status explain(int error_number) const {
    if (error_number == ENOENT || error_number == ECONNREFUSED)
      return status{
        errc::unavailable, "connecting to {}: no process listens there; is the service running?",
        address_};
    if (error_number == EAGAIN)
      return status{
        errc::deadline_exceeded,
        "connecting to {}: the service does not accept connections; it may be overloaded or "
        "stopped",
        address_};
    return status_from_errno(error_number, "connecting to " + address_);
  }

  void end(const status& why) {
    if (auto done = std::exchange(done_, nullptr))
      done(fail(why));
  }

  const std::shared_ptr<io_loop> loop_;
  const std::string address_;
  const channel_options options_;
  std::shared_ptr<channel_handler> handler_;
  completion<std::shared_ptr<channel>> done_;
  const time_point began_;
  const time_point deadline_;
};

status wrong_node(const std::string& expected, const std::string& found) {
  return {
    errc::permission_denied,
    "node {} answered instead of node {}; check which node has this address", found, expected};
}

status other_cluster(const std::string& node) {
  return {
    errc::permission_denied,
    "a node named {} answered that does not have the secret of this cluster; give one of the two "
    "another `node.listen`",
    node};
}

} // namespace

connection_hooks connector_hooks(
  const std::string& address, const channel_options& options,
  std::shared_ptr<channel_handler> handler, completion<std::shared_ptr<channel>> done) {
  connection_hooks hooks;
  hooks.admit = [h = std::move(handler), expected = options.expected_name,
                 ours = options.tls ? options.tls->mark() : cluster_mark{}](
                  const peer_info& peer) -> result<std::shared_ptr<channel_handler>> {
    if (!expected.empty() && peer.name != expected)
      return fail(wrong_node(expected, peer.name));
    if (!expected.empty() && peer.cluster != ours && ours != cluster_mark{})
      return fail(other_cluster(peer.name));
    return h;
  };
  hooks.done = [done = std::move(done), address](result<std::shared_ptr<channel>> outcome) {
    done(outcome ? std::move(outcome) : fail(outcome.error().within("connecting to " + address)));
  };
  return hooks;
}

void connect(
  const std::shared_ptr<io_loop>& loop, const std::string& address, const channel_options& options,
  std::shared_ptr<channel_handler> handler, completion<std::shared_ptr<channel>> done) {
  if (address.starts_with(tls::scheme))
    return tls::connect(loop, address, options, std::move(handler), std::move(done));
  auto a = std::make_shared<attempt>(loop, address, options, std::move(handler), std::move(done));
  loop->post([a = std::move(a)] { a->run(); });
}

} // namespace millrace::net
