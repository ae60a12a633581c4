// Names and wire numbers of the error codes. Called by every room.
#include <millrace/core/status.hpp>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace millrace {

namespace {

constexpr std::array<std::string_view, 18> names = {
  "ok",
  "invalid_argument",
  "not_found",
  "already_exists",
  "permission_denied",
  "busy",
  "no_space",
  "corrupt_data",
  "unsupported_version",
  "peer_lost",
  "deadline_exceeded",
  "cancelled",
  "unavailable",
  "io_error",
  "protocol_error",
  "unknown_layers",
  "unsupported",
  "internal"};

errc errc_from_errno(int error_number) noexcept {
  switch (error_number) {
  case ENOENT:
    return errc::not_found;
  case EEXIST:
  case EADDRINUSE:
    return errc::already_exists;
  case EACCES:
  case EPERM:
  case EROFS:
    return errc::permission_denied;
  case ENOSPC:
  case EDQUOT:
  case ENOMEM:
    return errc::no_space;
  case EPIPE:
  case ECONNRESET:
    return errc::peer_lost;
  case ECONNREFUSED:
    return errc::unavailable;
  case ETIMEDOUT:
    return errc::deadline_exceeded;
  case EINVAL:
  case ENAMETOOLONG:
    return errc::invalid_argument;
  default:
    return errc::io_error;
  }
}

} // namespace

std::string_view to_string(errc code) noexcept {
  auto index = static_cast<std::size_t>(code);
  return index < names.size() ? names[index] : names.back();
}

errc errc_from_wire(std::uint8_t value) noexcept {
  return value < names.size() ? static_cast<errc>(value) : errc::internal;
}

status status::within(std::string_view context) const {
  return status{code_, "{}: {}", context, detail_};
}

std::string status::to_string() const {
  std::string text{millrace::to_string(code_)};
  return detail_.empty() ? text : fmt::format("{}: {}", text, detail_);
}

status status_from_errno(int error_number, std::string_view doing) {
  return {
    errc_from_errno(error_number), "{}: {}", doing, std::generic_category().message(error_number)};
}

} // namespace millrace
