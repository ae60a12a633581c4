// Checks the file system in which durable providers would store.
#include <millrace/config/settings.hpp>
#include <millrace/tools/doctor/checks.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace millrace::tools::doctor {

namespace {

constexpr std::uint64_t comfortable_disk_bytes = 10 * config::gib;

} // namespace

finding check_direct_io(const machine& m) {
  int why = m.calls.direct_write(m.path);
  if (why == 0)
    return ok("writes past the page cache work in " + m.path);
  auto value = fmt::format("{}: {}", m.path, std::strerror(why));
  if (why == EINVAL || why == EOPNOTSUPP)
    return missing(
      value + " (this file system has no O_DIRECT or no O_TMPFILE)",
      "put durable providers on ext4 or XFS; elsewhere writes go through the page cache");
  if (why == ENOENT || why == ENOTDIR)
    return missing(value, "name a directory: millrace doctor --path DIR");
  if (why == ENOSPC)
    return missing(value, "free space, or choose another directory with --path");
  return missing(value, "make it writable to this user, or choose another with --path");
}

finding check_free_space(const machine& m) {
  std::uint64_t free_bytes = 0;
  if (int why = m.calls.free_bytes(m.path, free_bytes); why != 0)
    return missing(
      fmt::format("{}: {}", m.path, std::strerror(why)),
      "name a directory: millrace doctor --path DIR");
  auto value = fmt::format("{} in {}", human_size(free_bytes), m.path);
  if (free_bytes < comfortable_disk_bytes)
    return note(value, "set `capacity` of durable providers below it");
  return ok(value);
}

finding check_io_limits(const machine& m) {
  auto limits = m.control_group("io.max");
  if (!limits || limits->empty())
    return ok("none by the control group");
  auto first = limits->substr(0, limits->find('\n'));
  return note(
    first,
    "raise io.max of the control group (systemd: IOReadBandwidthMax=, "
    "IOWriteBandwidthMax=)");
}

} // namespace millrace::tools::doctor
