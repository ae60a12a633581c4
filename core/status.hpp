// Errors as values. Returned by every room, and turned into exceptions by the public API only.
#pragma once

#include <fmt/core.h>
#include <tl/expected.hpp>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace millrace {

/// The kind of an error. Its numbers are sent over the wire: append, never renumber.
enum class errc : std::uint8_t {
  ok = 0,
  invalid_argument = 1,    // the request is wrong; repeating it will not help
  not_found = 2,           // no such model, tensor, provider or version
  already_exists = 3,      // a name or address is taken
  permission_denied = 4,   // a key, handle or user that may not do this
  busy = 5,                // a configured limit is reached; try again
  no_space = 6,            // the capacity of a bucket, pool or device is exhausted
  corrupt_data = 7,        // a checksum or an invariant of stored data does not hold
  unsupported_version = 8, // a format or protocol of another version
  peer_lost = 9,           // the process at the other end is gone
  deadline_exceeded = 10,  // the request took too long
  cancelled = 11,          // the caller cancelled the request
  unavailable = 12,        // shutting down, or not reachable now
  io_error = 13,           // the operating system reported an error
  protocol_error = 14,     // the peer sent something malformed
  unknown_layers = 15,     // the provider lacks descriptions of layers
  unsupported = 16,        // this build or machine cannot do it
  internal = 17,           // a defect in Millrace
};

/// Returns the name of the code as it appears in messages: "not_found".
std::string_view to_string(errc code) noexcept;

/// Returns the code for a number from the wire; `internal` for a number that this version does not
/// know.
errc errc_from_wire(std::uint8_t value) noexcept;

/// An error, or none. The detail says what was being done to which key, device, peer or path, and
/// the remedy.
class [[nodiscard]] status {
public:
  status() = default;
  status(errc code, std::string detail) : code_(code), detail_(std::move(detail)) {}
  /// Formats the detail: `{errc::busy, "{} of {} slots are taken", taken, all}`.
  template <class First, class... More>
  status(errc code, fmt::format_string<First, More...> text, First&& first, More&&... more)
    : status(code, fmt::vformat(text, fmt::make_format_args(first, more...))) {}

  bool ok() const noexcept { return code_ == errc::ok; }
  errc code() const noexcept { return code_; }
  const std::string& detail() const noexcept { return detail_; }

  /// Returns the same error with a context before its detail: "loading resnet: no such tensor".
  status within(std::string_view context) const;

  /// Returns code and detail as text: "not_found: no model named resnet".
  std::string to_string() const;

  friend bool operator==(const status&, const status&) = default;

private:
  errc code_ = errc::ok;
  std::string detail_;
};

/// A value, or the status that says why there is none.
template <class T>
using result = tl::expected<T, status>;

/// Called exactly once, on any thread, with no lock held.
template <class T>
using completion = std::function<void(result<T>)>;

/// Makes an error that a function of type `result<T>` returns. The detail is formatted as in
/// `status`.
inline tl::unexpected<status> fail(status error) {
  return tl::unexpected<status>{std::move(error)};
}
inline tl::unexpected<status> fail(errc code, std::string detail) {
  return fail(status{code, std::move(detail)});
}
template <class First, class... More>
tl::unexpected<status> fail(
  errc code, fmt::format_string<First, More...> text, First&& first, More&&... more) {
  return fail(status{code, fmt::vformat(text, fmt::make_format_args(first, more...))});
}

/// Returns "opening /x: No such file or directory" with the code that fits `error_number`.
status status_from_errno(int error_number, std::string_view doing);

/// The exception that `future::get` throws.
class error : public std::runtime_error {
public:
  explicit error(status why) : std::runtime_error(why.to_string()), status_(std::move(why)) {}
  const status& why() const noexcept { return status_; }
  errc code() const noexcept { return status_.code(); }

private:
  status status_;
};

} // namespace millrace
