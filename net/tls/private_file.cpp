// Checks the open descriptor, so that the file cannot be replaced between check and use.
#include <millrace/net/socket/unique_fd.hpp>
#include <millrace/net/tls/private_file.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace millrace::net::tls {

namespace {

status check(const struct stat& found, const std::string& shown, std::size_t bytes_max) {
  if (!S_ISREG(found.st_mode))
    return {errc::corrupt_data, shown + " is not a regular file"};
  if (found.st_uid != ::geteuid() && found.st_uid != 0)
    return {
      errc::permission_denied,
      "{} belongs to user {}, who could change it; make it your own: chown {}", shown, found.st_uid,
      ::geteuid()};
  if ((found.st_mode & 077) != 0)
    return {
      errc::permission_denied,
      shown + " can be reached by its group or by others; make it private: chmod 600"};
  if (static_cast<std::size_t>(found.st_size) > bytes_max)
    return {errc::corrupt_data, "{} has more than {} bytes", shown, bytes_max};
  return {};
}

} // namespace

result<std::string> read_private_file(
  const std::string& path, std::string_view what, std::size_t bytes_max) {
  auto shown = std::string{what} + " in " + path;
  // Non-blocking: a pipe in its place must not block this process.
  unique_fd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  if (!fd)
    return fail(status_from_errno(errno, "reading " + shown));
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0)
    return fail(status_from_errno(errno, "reading " + shown));
  if (auto bad = check(found, shown, bytes_max); !bad.ok())
    return fail(bad);
  std::string text(bytes_max + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    auto n = ::read(fd.get(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return fail(status_from_errno(errno, "reading " + shown));
    if (n == 0)
      break;
    size += static_cast<std::size_t>(n);
  }
  if (size > bytes_max)
    return fail(errc::corrupt_data, "{} has more than {} bytes", shown, bytes_max);
  text.resize(size);
  return text;
}

} // namespace millrace::net::tls
