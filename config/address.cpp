// Parses and checks addresses. It looks up no names.
#include <millrace/config/address.hpp>
#include <millrace/config/document.hpp>
#include <millrace/config/settings.hpp>
#include <millrace/core/environment.hpp>

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>

namespace millrace::config {

namespace {

constexpr std::string_view unix_scheme = "unix:";
constexpr std::string_view tls_scheme = "tls://";

status refuse(std::string_view text, const std::string& what) {
  return {errc::invalid_argument, "'{}'{}", shown(text), what};
}

bool is_host_character(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
    c == '_' || c == '-';
}

bool is_ipv6(std::string_view text) {
  std::string number{text.substr(0, text.find('%'))}; // fe80::1%eth0
  in6_addr parsed{};
  return text.size() <= host_bytes_max && inet_pton(AF_INET6, number.c_str(), &parsed) == 1;
}

// A text of digits and dots is meant as a number.
bool is_broken_ipv4(const std::string& text) {
  in_addr parsed{};
  return text.find_first_not_of("0123456789.") == text.npos &&
    inet_pton(AF_INET, text.c_str(), &parsed) != 1;
}

status check_unix(std::string_view text) {
  auto path = text.substr(unix_scheme.size());
  if (!path.starts_with('/'))
    return refuse(
      text,
      " is not an address: it reads unix:/absolute/path, or tls://HOST:PORT between machines");
  if (path.size() > socket_path_bytes_max)
    return refuse(
      text,
      fmt::format(
        ": the path has {} bytes, a socket's has at most {}", path.size(), socket_path_bytes_max));
  auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(path.begin(), path.end(), control))
    return refuse(text, " is not a path");
  return {};
}

} // namespace

status check_host(std::string_view text) {
  if (text.find(':') != text.npos)
    return is_ipv6(text) ? status{} : refuse(text, " is not an IPv6 address");
  if (
    text.empty() || text.size() > host_bytes_max ||
    !std::all_of(text.begin(), text.end(), is_host_character))
    return refuse(text, " is not the name or address of a host");
  if (is_broken_ipv4(std::string{text}))
    return refuse(text, " is not an IPv4 address");
  return {};
}

result<tls_endpoint> parse_tls_address(std::string_view text) {
  auto bad = [&](const std::string& what) { return fail(refuse(text, what)); };
  if (!is_tls_address(text))
    return bad(" is not an address such as tls://host:7710");
  auto rest = text.substr(tls_scheme.size());
  tls_endpoint where;
  auto host_end = rest.find(':');
  if (rest.starts_with('[')) {
    auto close = rest.find(']');
    if (close == rest.npos || !is_ipv6(rest.substr(1, close - 1)))
      return bad(": what stands in brackets is no IPv6 address");
    where.host = rest.substr(1, close - 1);
    host_end = close + 1;
  } else {
    if (rest.find(':') != rest.rfind(':'))
      return bad(": an IPv6 address stands in brackets, as in tls://[::1]:7710");
    where.host = rest.substr(0, host_end);
    if (auto wrong = check_host(where.host); !wrong.ok())
      return bad(": " + wrong.detail());
  }
  if (host_end >= rest.size() || rest[host_end] != ':')
    return bad(": it reads tls://HOST:PORT");
  auto digits = rest.substr(host_end + 1);
  auto end = digits.data() + digits.size();
  auto [stop, wrong] = std::from_chars(digits.data(), end, where.port);
  if (wrong != std::errc{} || stop != end || where.port == 0)
    return bad(": the port is no number from 1 to 65535");
  return where;
}

std::string client_address(std::string_view given) {
  if (!given.empty())
    return std::string{given};
  auto set = environment("MILLRACE_ADDRESS");
  return set.empty() ? default_listen("n0") : set;
}

status check_address(std::string_view text) {
  if (text.starts_with('/'))
    return refuse(text, " is not an address; did you mean 'unix:" + shown(text) + "'?");
  if (text.starts_with("tcp://"))
    return refuse(text, " is not an address; did you mean 'tls://" + shown(text.substr(6)) + "'?");
  if (is_tls_address(text)) {
    auto parsed = parse_tls_address(text);
    return parsed ? status{} : parsed.error();
  }
  if (is_unix_address(text))
    return check_unix(text);
  return refuse(
    text, " is not an address: it reads unix:/absolute/path, or tls://HOST:PORT between machines");
}

status check_endpoint(std::string_view text) {
  bool any_port = text.ends_with(":0");
  auto where =
    parse_tls_address(std::string{tls_scheme} + std::string{text} + (any_port ? "1" : ""));
  bool number = where &&
    (where->host.find(':') != text.npos ||
     where->host.find_first_not_of("0123456789.") == text.npos);
  if (!number)
    return refuse(text, " is not a numeric address such as 10.1.0.2:0 or [::1]:7711");
  return {};
}

std::string to_address(const tls_endpoint& where) {
  bool brackets = where.host.find(':') != where.host.npos;
  return fmt::format(
    "{}{}{}{}{}", tls_scheme, brackets ? "[" : "", where.host, brackets ? "]:" : ":", where.port);
}

bool is_any_host(std::string_view host) { return host == "0.0.0.0" || host == "::"; }

} // namespace millrace::config
