// Operating errors as values. Every room returns them; only the edges turn them into exceptions.
#pragma once

#include <tl/expected.hpp>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace millrace {

/// What kind of thing went wrong. The values travel on the wire: append, never renumber.
enum class errc : std::uint8_t {
  ok = 0,
  invalid_argument = 1,    // the caller's request makes no sense; repeating it will not help
  not_found = 2,           // no such model, tensor, provider or version
  already_exists = 3,      // a name or address is taken
  permission_denied = 4,   // a key, handle or user that may not do this
  busy = 5,                // a bound of the configuration is reached; try again
  no_space = 6,            // capacity of a bucket, pool or device is exhausted
  corrupt_data = 7,        // a checksum or an invariant of stored data does not hold
  unsupported_version = 8, // a format or protocol of another version
  peer_lost = 9,           // the process at the other end is gone
  deadline_exceeded = 10,  // the request's time is up
  cancelled = 11,          // the caller gave up
  unavailable = 12,        // shutting down, or not reachable now
  io_error = 13,           // the operating system refused
  protocol_error = 14,     // the peer sent something malformed
  unknown_layers = 15,     // layer descriptions the provider does not have
  unsupported = 16,        // this build or machine cannot do it
  internal = 17,           // a defect in Millrace
};

/// The name of the code as it appears in messages: "not_found".
std::string_view to_string(errc code) noexcept;

/// The code behind a number from the wire; `internal` for one this version does not know.
errc errc_from_wire(std::uint8_t value) noexcept;

/// An error: its kind, and what was being done to which key, device, peer or path, with the remedy.
class [[nodiscard]] status {
public:
  status() = default;
  status(errc code, std::string detail) : code_(code), detail_(std::move(detail)) {}

  bool ok() const noexcept { return code_ == errc::ok; }
  errc code() const noexcept { return code_; }
  const std::string& detail() const noexcept { return detail_; }

  /// The same error seen from one level up: "loading resnet: no such tensor".
  status within(std::string_view context) const;

  /// "not_found: no model named resnet".
  std::string to_string() const;

  friend bool operator==(const status&, const status&) = default;

private:
  errc code_ = errc::ok;
  std::string detail_;
};

/// A value or the status that explains why there is none.
template <class T>
using result = tl::expected<T, status>;

/// Called exactly once, on any thread, with no lock held.
template <class T>
using completion = std::function<void(result<T>)>;

/// Shorthand for returning an error from a function that returns `result<T>`.
inline tl::unexpected<status> fail(errc code, std::string detail) {
  return tl::unexpected<status>{status{code, std::move(detail)}};
}
inline tl::unexpected<status> fail(status error) {
  return tl::unexpected<status>{std::move(error)};
}

/// "opening /x: No such file or directory" with the code that fits `error_number`.
status status_from_errno(int error_number, std::string_view doing);

/// What `future::get` throws.
class error : public std::runtime_error {
public:
  explicit error(status why) : std::runtime_error(why.to_string()), status_(std::move(why)) {}
  const status& why() const noexcept { return status_; }
  errc code() const noexcept { return status_.code(); }

private:
  status status_;
};

} // namespace millrace
