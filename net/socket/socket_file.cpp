// Binds a Unix socket so that one of two starting services wins, and the file of a dead service is
// replaced.
#include <millrace/core/log.hpp>
#include <millrace/net/socket/socket_file.hpp>
#include <millrace/net/socket/unix_socket.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace millrace::net {

namespace {

constexpr int backlog = 128;

const sockaddr* as_sockaddr(const sockaddr_un& where) noexcept {
  return reinterpret_cast<const sockaddr*>(&where);
}

// A user who can rename files in the directory can replace our socket by another.
status check_directory(const std::string& directory) {
  struct stat found {};
  if (::stat(directory.c_str(), &found) != 0)
    return status_from_errno(errno, "looking at the directory " + directory);
  bool ours = found.st_uid == 0 || found.st_uid == ::geteuid();
  bool open_to_all = (found.st_mode & S_IWOTH) != 0 && (found.st_mode & S_ISVTX) == 0;
  if (ours && !open_to_all)
    return {};
  return {
    errc::permission_denied,
    "other users can replace files in {}; listen in a directory of this user that only it can "
    "write to",
    directory};
}

// Other users reach a socket that they may write to only if they may pass through its directory:
// those of the group, all, or both.
status make_directory_of(const std::string& path, std::uint32_t socket_mode) {
  auto directory = path.substr(0, path.rfind('/'));
  mode_t group = (socket_mode & S_IWGRP) != 0 ? S_IXGRP : 0;
  mode_t others = (socket_mode & S_IWOTH) != 0 ? S_IXOTH : 0;
  mode_t mode = 0700 | group | others;
  if (!directory.empty() && ::mkdir(directory.c_str(), mode) != 0 && errno != EEXIST)
    return status_from_errno(
      errno, "making the directory " + directory + " of a socket (choose another with `listen`)");
  struct stat found {};
  auto missing = ::stat(directory.c_str(), &found) == 0 ? (group | others) & ~found.st_mode : 0;
  if (missing != 0)
    log().warn(
      "other users cannot reach the socket, since they may not enter its directory: chmod {}{}+x "
      "{}",
      (missing & S_IXGRP) != 0 ? "g" : "", (missing & S_IXOTH) != 0 ? "o" : "", directory);
  return check_directory(directory.empty() ? "/" : directory);
}

// True if the locked file still has that name: a process that ends removes its lock file.
bool is_still_named(int fd, const std::string& path) {
  struct stat held {};
  struct stat named {};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
    held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

result<unique_fd> lock_beside(const std::string& path) {
  auto lock_path = path + ".lock";
  while (true) {
    unique_fd fd{::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
    if (!fd)
      return fail(status_from_errno(errno, "opening the lock file " + lock_path));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK)
        return fail(status_from_errno(errno, "locking " + lock_path));
      return fail(
        errc::already_exists,
        std::string{"a live service listens on "}
          .append(path)
          .append(" (it holds ")
          .append(lock_path)
          .append("); stop it or choose another address"));
    }
    if (is_still_named(fd.get(), lock_path))
      return fd;
  }
}

// Removes the socket of a dead process, after a check that it is dead.
status clear_stale(const sockaddr_un& where) {
  struct stat found {};
  if (::lstat(where.sun_path, &found) != 0)
    return errno == ENOENT ? status{}
                           : status_from_errno(errno, fmt::format("looking at {}", where.sun_path));
  if (!S_ISSOCK(found.st_mode))
    return status{errc::already_exists, "{} exists and is not a socket; remove it", where.sun_path};
  auto probe = make_unix_socket();
  if (!probe)
    return probe.error();
  if (::connect(probe->get(), as_sockaddr(where), sizeof(where)) == 0 || errno == EAGAIN)
    return status{
      errc::already_exists, "a live process listens on {}; stop it or choose another address",
      where.sun_path};
  if (errno != ECONNREFUSED)
    return status_from_errno(errno, fmt::format("probing the socket {}", where.sun_path));
  if (::unlink(where.sun_path) != 0)
    return status_from_errno(errno, fmt::format("removing the stale socket {}", where.sun_path));
  return {};
}

// The mode of the file is the mode of the socket without the umask. Setting it before `bind` makes
// sure that it is never wider than asked for, even if other threads change the umask. What the
// umask removed is added afterwards.
status bind_and_listen(int fd, const sockaddr_un& where, std::uint32_t mode) {
  auto doing = fmt::format("listening on {}", where.sun_path);
  if (::fchmod(fd, mode) != 0 || ::bind(fd, as_sockaddr(where), sizeof(where)) != 0)
    return status_from_errno(errno, doing);
  if (::chmod(where.sun_path, mode) != 0 || ::listen(fd, backlog) != 0) {
    auto failed = status_from_errno(errno, doing);
    ::unlink(where.sun_path);
    return failed;
  }
  return {};
}

} // namespace

result<std::unique_ptr<socket_file>> socket_file::bind(
  const std::string& address, std::uint32_t mode) {
  auto where = parse_unix_address(address);
  if (!where)
    return fail(where.error());
  std::string path = where->sun_path;
  if (auto made = make_directory_of(path, mode); !made.ok())
    return fail(made);
  auto lock = lock_beside(path);
  if (!lock)
    return fail(lock.error());
  if (auto cleared = clear_stale(*where); !cleared.ok())
    return fail(cleared);
  auto socket = make_unix_socket();
  if (!socket)
    return fail(socket.error());
  if (auto bound = bind_and_listen(socket->get(), *where, mode); !bound.ok())
    return fail(bound);
  auto made = std::make_unique<socket_file>();
  made->path_ = std::move(path);
  made->lock_ = std::move(*lock);
  made->socket_ = std::move(*socket);
  return made;
}

socket_file::~socket_file() { remove(); }

void socket_file::remove() noexcept {
  if (!lock_)
    return;
  ::unlink(path_.c_str());
  ::unlink((path_ + ".lock").c_str());
  lock_ = unique_fd{};
}

} // namespace millrace::net
