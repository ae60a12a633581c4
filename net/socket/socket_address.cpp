// Reading and writing numeric addresses with the system's own functions.
#include <millrace/net/socket/socket_address.hpp>

#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstring>

namespace millrace::net {

namespace {

status bad_address(const std::string& text, const char* why) {
  return {
    errc::invalid_argument, "\"{}\" is not an address such as 10.0.0.2:7710 or [fd00::2]:7710: {}",
    text, why};
}

} // namespace

result<socket_address> socket_address::parse(const std::string& text) {
  // getaddrinfo would ignore what follows it.
  if (text.find('\0') != std::string::npos)
    return fail(errc::invalid_argument, "an address with a zero byte");
  auto colon = text.rfind(':');
  if (colon == std::string::npos || colon + 1 == text.size())
    return fail(bad_address(text, "the port is missing"));
  auto host = text.substr(0, colon);
  auto bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed)
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string::npos)
    return fail(bad_address(text, "an IPv6 address stands in brackets"));
  auto port = text.substr(colon + 1);
  if (
    port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos ||
    std::stoul(port) > 65535)
    return fail(bad_address(text, "the port is not a number up to 65535"));
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = bracketed ? AF_INET6 : AF_INET;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0)
    return fail(bad_address(text, "it is not numeric"));
  auto out = from(found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return out;
}

result<socket_address> socket_address::from(const sockaddr* given, socklen_t size_bytes) {
  socket_address out;
  auto expected = given->sa_family == AF_INET ? sizeof(sockaddr_in)
    : given->sa_family == AF_INET6            ? sizeof(sockaddr_in6)
                                              : 0;
  if (expected == 0 || size_bytes < expected)
    return fail(errc::invalid_argument, "neither an IPv4 nor an IPv6 address");
  std::memcpy(&out.storage_, given, expected);
  out.size_bytes_ = static_cast<socklen_t>(expected);
  return out;
}

std::uint16_t socket_address::port() const noexcept {
  return ntohs(
    family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port
                         : reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

socket_address socket_address::with_port(std::uint16_t port) const noexcept {
  auto out = *this;
  if (family() == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(&out.storage_)->sin6_port = htons(port);
  else
    reinterpret_cast<sockaddr_in*>(&out.storage_)->sin_port = htons(port);
  return out;
}

std::string socket_address::host() const {
  char text[NI_MAXHOST] = "";
  if (
    size_bytes_ == 0 ||
    ::getnameinfo(get(), size_bytes_, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
    return "?";
  return text;
}

std::string socket_address::to_string() const {
  auto bracketed = family() == AF_INET6 ? "[" + host() + "]" : host();
  return fmt::format("{}:{}", bracketed, port());
}

socket_address without_mapping(const socket_address& address) {
  if (address.family() != AF_INET6)
    return address;
  sockaddr_in6 v6{};
  std::memcpy(&v6, address.get(), sizeof(v6));
  if (!IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
    return address;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = v6.sin6_port;
  std::memcpy(&v4.sin_addr, v6.sin6_addr.s6_addr + 12, sizeof(v4.sin_addr));
  auto out = socket_address::from(reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
  return out ? *out : address;
}

bool operator==(const socket_address& a, const socket_address& b) noexcept {
  return a.family() == b.family() && a.to_string() == b.to_string();
}

} // namespace millrace::net
