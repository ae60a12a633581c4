// Compares host names with and without their domains, and numbers the hosts of a Slurm job.
#include <millrace/config/address.hpp>
#include <millrace/config/host_list.hpp>
#include <millrace/config/place.hpp>
#include <millrace/config/units.hpp>
#include <millrace/core/environment.hpp>

#include <unistd.h>

#include <algorithm>
#include <optional>

namespace millrace::config {

namespace {

// Returns "n1" for "n1.cluster.example". Numeric addresses have no domain.
std::string_view short_of(std::string_view host) {
  bool number = host.find_first_not_of("0123456789.") == host.npos;
  return number ? host : host.substr(0, host.find('.'));
}

/// How closely two names of hosts have to agree.
enum class closeness { exact, domain_left_out, domains_left_out };

bool agree(std::string_view node, std::string_view host, closeness how) {
  if (node.empty() || host.empty())
    return false;
  switch (how) {
  case closeness::exact:
    return node == host;
  case closeness::domain_left_out:
    return node == short_of(host);
  case closeness::domains_left_out:
    return short_of(node) == short_of(host);
  }
  return false;
}

bool runs_on(const cluster_node& node, std::string_view host, closeness how) {
  return node.host.empty() ? agree(node.name, host, how)
                           : agree(node.host, host, how) || agree(node.name, host, how);
}

std::vector<const cluster_node*> nodes_on(const settings& all, std::string_view host) {
  std::vector<const cluster_node*> found;
  for (auto how : {closeness::exact, closeness::domain_left_out, closeness::domains_left_out}) {
    for (auto& node : all.nodes)
      if (runs_on(node, host, how))
        found.push_back(&node);
    if (!found.empty())
      break;
  }
  return found;
}

std::optional<std::size_t> number_in(const std::string& text) {
  auto number = parse_count(text);
  return number ? std::optional<std::size_t>{*number} : std::nullopt;
}

std::optional<std::size_t> position_of(
  const std::vector<std::string>& hosts, const surroundings& here) {
  for (auto& name : {here.slurm_node_name, here.host_name})
    for (auto how : {closeness::exact, closeness::domains_left_out})
      for (std::size_t i = 0; i < hosts.size(); ++i)
        if (agree(hosts[i], name, how))
          return i;
  return {};
}

result<std::vector<std::string>> hosts_of(const surroundings& here) {
  if (here.slurm_node_list.empty())
    return std::vector<std::string>{};
  auto hosts = expand_host_list(here.slurm_node_list);
  return hosts ? std::move(hosts) : fail(hosts.error().within("SLURM_JOB_NODELIST"));
}

// Returns true if nodes are found by name, and the file names some of the job's hosts. A host that
// it does not name is then missing in the file, and must not get a node by number.
bool knows_some(const settings& all, const std::vector<std::string>& hosts) {
  if (all.cluster.hosts == host_source::job)
    return false;
  for (auto& host : hosts)
    if (!nodes_on(all, host).empty())
      return true;
  return false;
}

// Returns true if no address of the node is known before its host is.
bool lacks_host(const settings& all, const cluster_node& node) {
  if (!node.host.empty())
    return false;
  if (node.listens_by_default)
    return all.security.configured();
  return std::any_of(node.listen.begin(), node.listen.end(), [](auto& address) {
    auto where = parse_tls_address(address);
    return where && is_any_host(where->host);
  });
}

status give_hosts(settings& all, const std::vector<std::string>& hosts) {
  auto each = all.nodes.size() / hosts.size();
  auto with_one_more = all.nodes.size() % hosts.size();
  std::size_t next = 0;
  for (std::size_t h = 0; h < hosts.size(); ++h)
    for (auto end = next + each + (h < with_one_more); next < end; ++next) {
      auto& node = all.nodes[next];
      if (node.host.empty())
        node.host = hosts[h];
      if (!node.listens_by_default)
        continue;
      auto listen = default_addresses(all, node);
      if (!listen)
        return listen.error();
      node.listen = std::move(*listen);
    }
  return {};
}

status no_job(const settings& all) {
  for (auto& node : all.nodes)
    if (lacks_host(all, node))
      return {
        errc::invalid_argument,
        "cluster.hosts is 'job', and this process is in none: where the node {} is cannot be "
        "known. Start it by srun or sbatch, or set SLURM_JOB_NODELIST to the list of the job's "
        "hosts (squeue -h -j JOB -o %N), or give every node a 'host' or 'listen'",
        node.name};
  return {};
}

// Returns the number of the node in the file, for jobs whose hosts the file does not name.
result<std::size_t> number_in_job(const settings& all, const surroundings& here) {
  auto hosts = hosts_of(here);
  if (!hosts)
    return fail(hosts.error());
  auto none = fail(errc::not_found, "");
  if (knows_some(all, *hosts))
    return none;
  auto number = number_in(here.slurm_task);
  bool by_host = hosts->size() >= all.nodes.size();
  if (by_host)
    if (auto position = position_of(*hosts, here))
      number = position;
  if (!number)
    return none;
  if (*number >= all.nodes.size())
    return fail(
      errc::invalid_argument,
      "this is {} number {} (from 0) of the job, and the configuration describes {} nodes",
      by_host ? "host" : "task", *number, all.nodes.size());
  return *number;
}

std::string names_of(const std::vector<const cluster_node*>& nodes) {
  std::string names;
  for (auto& node : nodes)
    names += (names.empty() ? "" : ", ") + node->name;
  return names;
}

status nobody_here(const settings& all, const surroundings& here) {
  std::vector<const cluster_node*> nodes;
  for (auto& node : all.nodes)
    nodes.push_back(&node);
  auto several = !nodes_on(all, here.host_name).empty();
  auto why = here.host_name.empty() ? ""
    : several                       ? "; several are on this host, " + here.host_name
                                    : "; none is on this host, " + here.host_name;
  return {
    errc::invalid_argument, "the configuration describes several nodes, name the one to be: {}{}",
    names_of(nodes), why};
}

// Picks one of several nodes on this host. Their order in the file is that of the host's tasks.
result<const cluster_node*> local_one(
  const std::vector<const cluster_node*>& found, const settings& all, const surroundings& here) {
  if (found.size() == 1)
    return found.front();
  auto local = number_in(here.slurm_local);
  if (!local)
    return fail(nobody_here(all, here));
  if (*local >= found.size())
    return fail(
      errc::invalid_argument,
      "this is task number {} (from 0) of its host, on which the configuration has {} nodes: {}",
      *local, found.size(), names_of(found));
  return found[*local];
}

} // namespace

surroundings surroundings::of_this_process() {
  surroundings here;
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) == 0)
    here.host_name = name;
  here.slurm_node_list = environment("SLURM_JOB_NODELIST");
  if (here.slurm_node_list.empty())
    here.slurm_node_list = environment("SLURM_NODELIST");
  here.slurm_node_name = environment("SLURMD_NODENAME");
  here.slurm_task = environment("SLURM_PROCID");
  here.slurm_local = environment("SLURM_LOCALID");
  return here;
}

result<settings> place_in_job(settings all, const surroundings& here) {
  if (!all.is_cluster || all.cluster.hosts == host_source::names)
    return all;
  auto hosts = hosts_of(here);
  if (!hosts)
    return fail(hosts.error());
  auto bad = hosts->empty() ? no_job(all) : give_hosts(all, *hosts);
  if (!bad.ok())
    return fail(std::move(bad));
  return all.nodes.size() == 1 ? all.for_node() : all;
}

result<settings> pick_node(const settings& all, std::string_view name, const surroundings& here) {
  if (!name.empty() || all.nodes.size() == 1)
    return all.for_node(name);
  for (auto& host : {here.host_name, here.slurm_node_name}) {
    auto found = nodes_on(all, host);
    if (found.empty())
      continue;
    auto one = local_one(found, all, here);
    return one ? all.for_node((*one)->name) : fail(one.error());
  }
  auto number = number_in_job(all, here);
  if (number)
    return all.for_node(all.nodes[*number].name);
  return fail(number.error().code() == errc::not_found ? nobody_here(all, here) : number.error());
}

} // namespace millrace::config
