// Checks the files of a cluster, the host names in it, and the ports of this host.
#include <millrace/actors/loader/data_options.hpp>
#include <millrace/config/address.hpp>
#include <millrace/core/control_group.hpp>
#include <millrace/net/tls/context.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/tools/doctor/checks.hpp>
#include <millrace/tools/doctor/cluster_checks.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <set>

namespace millrace::tools::doctor {

namespace {

constexpr std::size_t lookups_at_once = 16;

using address_list = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

result<address_list> look_up(const std::string& host, const std::string& port, int flags) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags;
  addrinfo* found = nullptr;
  int bad = getaddrinfo(host.c_str(), port.c_str(), &wanted, &found);
  if (bad != 0)
    return fail(errc::unavailable, gai_strerror(bad));
  return address_list{found, freeaddrinfo};
}

result<std::vector<std::string>> real_resolve(const std::string& host) {
  auto found = look_up(host, "0", 0);
  if (!found)
    return fail(found.error());
  std::vector<std::string> all;
  for (auto* a = found->get(); a; a = a->ai_next) {
    char text[NI_MAXHOST] = {};
    if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      all.emplace_back(text);
  }
  return all;
}

int try_listen(const addrinfo& where) {
  int fd = socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return errno;
  // A listener sets this option, too, so that connections that ended lately do not block the port.
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  int why = bind(fd, where.ai_addr, where.ai_addrlen) == 0 && listen(fd, 1) == 0 ? 0 : errno;
  close(fd);
  return why;
}

int real_listen(const std::string& host, std::uint16_t port) {
  auto found = look_up(host, std::to_string(port), AI_PASSIVE);
  if (!found)
    return EADDRNOTAVAIL;
  int why = 0;
  for (auto* a = found->get(); a && why == 0; a = a->ai_next)
    why = try_listen(*a);
  return why;
}

finding named(finding f, std::string check) {
  f.check = std::move(check);
  return f;
}

finding check_security(const config::settings& s) {
  auto& given = s.security;
  if (!given.configured())
    return s.is_cluster && s.nodes.size() > 1
      ? note(
          "none: nodes can be reached on their own host only",
          "millrace cluster secret FILE, and security: { secret: FILE }")
      : ok("none, and none is needed on one host");
  auto opened =
    net::tls::context::open({given.secret, given.certificate, given.key, given.authority});
  if (!opened)
    return missing(opened.error().detail(), "make the file right, as the line above says");
  return ok(
    given.secret.empty() ? "certificates: " + given.certificate : "secret: " + given.secret);
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

finding judge_host(
  const std::string& host, const result<std::vector<std::string>>& found, bool several_hosts) {
  if (!found || found->empty())
    return missing(
      fmt::format("{}: {}", host, found ? "no address" : found.error().detail()),
      "add it to the DNS or /etc/hosts of every host, or give the node a numeric 'host'");
  auto value = fmt::format("{}: {}", host, join(*found));
  bool meant = config::check_host(host).ok() && is_loopback(host);
  if (several_hosts && !meant && std::all_of(found->begin(), found->end(), is_loopback))
    return note(
      value + ", which only this host reaches",
      "let the name mean its address on the network in /etc/hosts, or listen on "
      "tls://0.0.0.0:PORT");
  return ok(value);
}

std::set<std::string> hosts_of(const config::settings& s) {
  std::set<std::string> hosts;
  for (auto& node : s.nodes)
    for (auto& address : node.addresses())
      if (auto where = config::parse_tls_address(address))
        hosts.insert(where->host);
  return hosts;
}

void check_hosts(const config::settings& s, const network_calls& calls, std::vector<finding>& out) {
  auto names = hosts_of(s);
  std::vector<std::string> hosts{names.begin(), names.end()};
  for (std::size_t begin = 0; begin < hosts.size(); begin += lookups_at_once) {
    auto end = std::min(begin + lookups_at_once, hosts.size());
    std::vector<std::future<result<std::vector<std::string>>>> answers;
    for (auto i = begin; i < end; ++i)
      answers.push_back(std::async(std::launch::async, calls.resolve, hosts[i]));
    for (auto i = begin; i < end; ++i)
      out.push_back(named(
        judge_host(hosts[i], answers[i - begin].get(), hosts.size() > 1), "host " + hosts[i]));
  }
}

finding judge_port(const std::string& address, int why) {
  if (why == 0)
    return ok(address + " is free");
  if (why == EADDRINUSE)
    return note(
      address + " is in use", "nothing to do if this node is running; ss -ltnp says who listens");
  return missing(
    fmt::format("{}: {}", address, std::strerror(why)),
    "give the node an address of this host, or tls://0.0.0.0:PORT");
}

} // namespace

finding check_sizes(const config::settings& node, const machine& m) {
  std::uint64_t needed = 0;
  bool staged = false;
  for (auto& p : node.providers) {
    auto needs = configuration_schema().bucket(p.bucket)->needs(p.options);
    needed += needs.own_bytes + needs.heap_bytes + needs.file_bytes;
    if (needs.snapshots)
      needed += node.checkpoints.staging_piece_bytes * node.checkpoints.staging_pieces;
    staged |= needs.own_bytes == 0;
  }
  auto for_data = node.options.of<actors::data_options>().capacity_bytes;
  needed += for_data + (staged ? node.staging.size_bytes : 0);
  auto allowed = m.field_bytes("/proc/meminfo", "MemTotal").value_or(machine::unlimited);
  std::string by = "this machine";
  if (auto group = lowest_group_memory(m.root); group && group->limit_bytes < allowed) {
    allowed = group->limit_bytes;
    by = "control group " + group->group;
  }
  auto name = "sizes of " + node.node.name;
  auto value = fmt::format(
    "{} for providers{} staging", human_size(needed), for_data > 0 ? ", working sets and" : " and");
  auto for_peers = bytes_for_peers(node);
  if (needed + for_peers <= allowed)
    return named(ok(value), name);
  if (needed <= allowed)
    return named(
      note(
        fmt::format(
          "{}, peers may add {}, {} has {}", value, human_size(for_peers), by, human_size(allowed)),
        give_peers_less_memory()),
      name);
  return named(
    missing(fmt::format("{}, {} has {}", value, by, human_size(allowed)), take_less_memory(node)),
    name);
}

network_calls network_calls::real() { return {real_resolve, real_listen}; }

std::vector<finding> examine_cluster(
  const config::settings& s, const std::string& own_node, const network_calls& calls) {
  std::vector<finding> all{named(check_security(s), "security")};
  check_hosts(s, calls, all);
  for (auto& node : s.nodes)
    for (auto& address : node.listen) {
      auto where = config::parse_tls_address(address);
      if (where && node.name == own_node)
        all.push_back(named(
          judge_port(address, calls.listen(where->host, where->port)), "port of " + node.name));
    }
  return all;
}

} // namespace millrace::tools::doctor
