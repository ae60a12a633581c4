// Writes datagrams of a few words: libsystemd would bring its own libraries into every process.
#include <millrace/config/units.hpp>
#include <millrace/core/environment.hpp>
#include <millrace/core/log.hpp>
#include <millrace/tools/service_manager.hpp>
#include <millrace/tools/text.hpp>

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>

namespace millrace::tools {

namespace {

// Half of WATCHDOG_USEC in milliseconds. A time that is meant for another process does not count.
result<std::uint32_t> read_watchdog_interval() {
  auto text = environment("WATCHDOG_USEC");
  auto meant = environment("WATCHDOG_PID");
  if (text.empty() || (!meant.empty() && meant != std::to_string(getpid())))
    return 0u;
  auto usec = config::parse_count(text);
  if (!usec || *usec == 0)
    return fail(errc::invalid_argument, "WATCHDOG_USEC={}: give microseconds above 0", text);
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(*usec / 2000, 1, most));
}

} // namespace

result<service_manager> service_manager::of_this_process() {
  service_manager found;
  auto name = environment("NOTIFY_SOCKET");
  if (name.empty())
    return found;
  auto& path = found.manager_.sun_path;
  // The name of an abstract socket begins with '@' here, and with a zero for the kernel.
  bool is_abstract = name.front() == '@';
  if ((!is_abstract && name.front() != '/') || name.size() < 2 || name.size() >= sizeof path)
    return fail(
      errc::invalid_argument,
      "NOTIFY_SOCKET={}: give the path of a Unix socket, or @ and a name, of {} bytes at most",
      name, sizeof path - 1);
  found.manager_.sun_family = AF_UNIX;
  std::memcpy(path, name.data(), name.size());
  if (is_abstract)
    path[0] = '\0';
  found.manager_bytes_ =
    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + (is_abstract ? 0 : 1));
  auto interval = read_watchdog_interval();
  if (!interval)
    return fail(interval.error());
  found.watchdog_interval_ms_ = *interval;
  found.socket_ = net::unique_fd{socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  timeval patience{.tv_sec = 5, .tv_usec = 0};
  if (
    !found.socket_ ||
    setsockopt(found.socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0)
    return fail(status_from_errno(errno, "making a socket for the service manager"));
  return found;
}

void service_manager::starting(const std::string& what) const { tell("", what); }
void service_manager::ready(const std::string& what) const { tell("READY=1\n", what); }
void service_manager::stopping(const std::string& why) const { tell("STOPPING=1\n", why); }
void service_manager::alive() const { send("WATCHDOG=1", MSG_DONTWAIT); }

void service_manager::tell(const std::string& state, const std::string& what) const {
  if (socket_ && !send(state + "STATUS=" + printable(what), 0))
    log().warn(
      "the service manager was not told what=\"{}\" why=\"{}\"", printable(what),
      status_from_errno(errno, "sending to NOTIFY_SOCKET").to_string());
}

bool service_manager::send(const std::string& text, int flags) const {
  if (!socket_)
    return true;
  auto* to = reinterpret_cast<const sockaddr*>(&manager_);
  ssize_t sent = 0;
  do {
    sent =
      sendto(socket_.get(), text.data(), text.size(), flags | MSG_NOSIGNAL, to, manager_bytes_);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

} // namespace millrace::tools
