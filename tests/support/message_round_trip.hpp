// Checks what a decoder must do with every message. Used by the fuzzer of messages and by tests of
// the wire.
#pragma once

#include <millrace/core/codec.hpp>

#include <span>

namespace millrace::testing {

/// True if `in` does not decode to a `Message`, or decodes to one whose bytes decode to the same
/// bytes again.
template <class Message>
bool comes_again(std::span<const std::byte> in) {
  auto value = decode<Message>(in, "a message", {.decoded_bytes_max = 1u << 20});
  if (!value)
    return true;
  auto once = encode(*value);
  auto again = decode<Message>(once, "a message");
  return again && encode(*again) == once;
}

/// Runs `f.template operator()<Message>()` for every request and reply of a service.
template <class Service, class F>
void each_message(F&& f) {
  Service::each_method([&]<class Method>() {
    f.template operator()<typename Method::request>();
    f.template operator()<typename Method::reply>();
  });
}

} // namespace millrace::testing
