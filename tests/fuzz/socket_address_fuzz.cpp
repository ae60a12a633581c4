// Parses numeric addresses, as peers announce them for their streams. Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/net/socket/socket_address.hpp>

#include <cstddef>
#include <cstdint>

using namespace millrace;
using net::socket_address;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text{reinterpret_cast<const char*>(data), size};
  auto at = socket_address::parse(text);
  if (!at) {
    MILLRACE_ASSERT(at.error().code() == errc::invalid_argument);
    return 0;
  }
  // Nothing of the text was left out: what was understood ends with the same port, and is
  // understood again.
  MILLRACE_ASSERT(text.find('\0') == std::string::npos);
  MILLRACE_ASSERT(std::stoul(text.substr(text.rfind(':') + 1)) == at->port());
  auto again = socket_address::parse(at->to_string());
  MILLRACE_ASSERT(again && *again == *at);
  MILLRACE_ASSERT(socket_address::from(at->get(), at->size_bytes()).value() == *at);
  MILLRACE_ASSERT(at->with_port(1).host() == at->host());
  return 0;
}
