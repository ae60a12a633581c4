// Picks a node of the file, and computes what a client needs to know of all nodes.
#include <millrace/config/address.hpp>
#include <millrace/config/nearest.hpp>
#include <millrace/config/settings.hpp>

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <limits>

namespace millrace::config {

result<settings> settings::for_node(std::string_view name) const {
  std::vector<std::string_view> known;
  for (auto& node_entry : nodes)
    known.push_back(node_entry.name);
  if (name.empty() && nodes.size() != 1)
    return fail(
      errc::invalid_argument, "the configuration describes several nodes, name the one to be: {}",
      fmt::join(known, ", "));
  for (auto& node_entry : nodes) {
    if (!name.empty() && node_entry.name != name)
      continue;
    auto picked = *this;
    picked.node.name = node_entry.name;
    picked.node.listen = node_entry.listen;
    picked.node.host = node_entry.host;
    picked.providers = node_entry.providers;
    return picked;
  }
  return fail(
    errc::invalid_argument, "the configuration has no node {}{} (nodes: {})", name,
    did_you_mean(name, known), fmt::join(known, ", "));
}

namespace {

bool is_private(const std::string& directory) {
  struct stat found {};
  return directory.starts_with('/') && ::stat(directory.c_str(), &found) == 0 &&
    S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() &&
    (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Several hosts may share it.
std::string below_home() {
  auto* given = std::getenv("HOME");
  auto* user = given && is_private(given) ? nullptr : ::getpwuid(::geteuid());
  char host[HOST_NAME_MAX + 1] = {};
  ::gethostname(host, sizeof host - 1);
  return fmt::format("{}/.millrace-{}", user ? user->pw_dir : given ? given : "", host);
}

// Only one level below an existing directory: a service makes only its socket's directory.
std::string socket_directory() {
  auto* given = std::getenv("XDG_RUNTIME_DIR");
  if (given && is_private(given))
    return std::string{given} + "/millrace";
  if (::geteuid() == 0)
    return "/run/millrace";
  auto of_user = fmt::format("/run/user/{}", ::geteuid());
  return is_private(of_user) ? of_user + "/millrace" : below_home();
}

} // namespace

std::string default_listen(std::string_view node_name) {
  return fmt::format("unix:{}/{}.sock", socket_directory(), node_name);
}

result<std::vector<std::string>> default_addresses(const settings& all, const cluster_node& node) {
  std::vector<std::string> listen{default_listen(node.name)};
  if (!all.is_cluster || !all.security.configured())
    return listen;
  auto& host = node.host_name();
  auto port = all.cluster.port;
  for (auto other = all.nodes.data(); other != &node; ++other)
    port += other->listens_by_default && other->host_name() == host;
  if (port > std::numeric_limits<std::uint16_t>::max())
    return fail(
      errc::invalid_argument, "there are more nodes on {} than ports from cluster.port, {}, on",
      host, all.cluster.port);
  listen.push_back(to_address({host, static_cast<std::uint16_t>(port)}));
  return listen;
}

std::vector<std::string> cluster_node::addresses() const {
  auto all = listen;
  for (auto& address : all)
    if (auto where = parse_tls_address(address); where && is_any_host(where->host))
      address = to_address({host_name(), where->port});
  return all;
}

} // namespace millrace::config
