// `millrace status`: shows the state of every node of a cluster.
#include <millrace/tools/connection.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/text.hpp>

#include <memory>
#include <ostream>

namespace millrace::tools {

namespace {

using actors::node_status;
using outcomes = std::vector<std::pair<actors::node_entry, result<node_status>>>;

tl::expected<outcomes, failure> ask(const connection_options& options) {
  auto client = connect_to(options);
  if (!client)
    return tl::unexpected{client.error()};
  auto answers = client->status().result();
  if (!answers)
    return tl::unexpected{failure{answers.error()}};
  outcomes out;
  auto nodes = client->nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i)
    out.emplace_back(std::move(nodes[i]), std::move((*answers)[i]));
  return out;
}

json to_json(const actors::provider_status& p) {
  json out = {
    {"name", p.name},
    {"kind", p.kind},
    {"group", p.group},
    {"durable", p.durable},
    {"models", p.store.models},
    {"used_bytes", p.used_bytes},
    {"capacity_bytes", p.capacity_bytes},
    {"in_flight", p.in_flight},
    {"queued", p.queued},
    {"stores", p.store.stores},
    {"loads", p.store.loads},
    {"failures", p.store.failures},
    {"evictions", p.store.evictions},
    {"stored_bytes", p.store.stored_bytes},
    {"loaded_bytes", p.store.loaded_bytes}};
  auto& c = p.checkpoints;
  if (c.kept)
    out["checkpoints"] = {{"registered", c.registered},     {"saves_in_flight", c.saves_in_flight},
                          {"saves_queued", c.saves_queued}, {"saves", c.saves},
                          {"saves_failed", c.saves_failed}, {"saved_bytes", c.saved_bytes},
                          {"restores", c.restores},         {"restored_bytes", c.restored_bytes}};
  if (c.flushes)
    out["flush"] = {
      {"waiting", c.flushed.waiting},
      {"steps", c.flushed.steps},
      {"failures", c.flushed.failures},
      {"flushed_bytes", c.flushed.bytes}};
  return out;
}

void print_checkpoints(std::ostream& out, const node_status& s) {
  table shown{
    {"checkpoints", ">registered", ">saving", ">queued", ">saves", ">saved", ">failed", ">restores",
     ">restored"}};
  bool any = false;
  for (auto& p : s.providers) {
    auto& c = p.checkpoints;
    if (!c.kept)
      continue;
    any = true;
    shown.add(
      {p.name, std::to_string(c.registered), std::to_string(c.saves_in_flight),
       std::to_string(c.saves_queued), std::to_string(c.saves), human_size(c.saved_bytes),
       std::to_string(c.saves_failed), std::to_string(c.restores), human_size(c.restored_bytes)});
  }
  if (any)
    shown.print(out, "  ");
}

void print_flushes(std::ostream& out, const node_status& s) {
  table shown{{"flushed on", ">waiting", ">steps", ">copied", ">failed"}};
  bool any = false;
  for (auto& p : s.providers) {
    auto& flushed = p.checkpoints.flushed;
    if (!p.checkpoints.flushes)
      continue;
    any = true;
    shown.add(
      {p.name, std::to_string(flushed.waiting), std::to_string(flushed.steps),
       human_size(flushed.bytes), std::to_string(flushed.failures)});
  }
  if (any)
    shown.print(out, "  ");
}

json to_json(const actors::rdma_status& s) {
  json rails = json::array();
  for (auto& r : s.rails)
    rails.push_back(
      {{"peer", r.peer},
       {"device", r.device},
       {"state", r.state},
       {"connected_by", r.connected_by},
       {"bytes", r.bytes},
       {"rate_bytes_per_s", r.rate_bytes_per_s},
       {"depth", r.depth},
       {"requests", r.requests},
       {"retried", r.retried},
       {"failures", r.failures},
       {"last_error", r.last_error}});
  return {
    {"rails", rails},
    {"registrations", s.registrations},
    {"registered_bytes", s.registered_bytes},
    {"grants", s.grants},
    {"windows", s.windows},
    {"by_dma_buf", s.by_dma_buf},
    {"by_peer_memory", s.by_peer_memory}};
}

json to_json(const node_status& s) {
  json providers = json::array();
  for (auto& p : s.providers)
    providers.push_back(to_json(p));
  json paths = json::array();
  for (auto& p : s.paths)
    paths.push_back(
      {{"peer", p.peer},
       {"driver", p.driver},
       {"carrier", p.carrier},
       {"chosen", p.chosen},
       {"bytes", p.bytes},
       {"rate_bytes_per_s", p.rate_bytes_per_s},
       {"transfers", p.transfers},
       {"failures", p.failures},
       {"fallbacks", p.fallbacks},
       {"last_reason", p.last_reason}});
  json out = {
    {"node", s.node},
    {"address", s.address},
    {"addresses", s.addresses},
    {"version", s.version},
    {"pid", s.pid},
    {"uptime_ms", s.uptime_ms},
    {"connections", s.connections},
    {"staging",
     {{"used_bytes", s.staging_used_bytes}, {"capacity_bytes", s.staging_capacity_bytes}}},
    {"providers", providers},
    {"paths", paths}};
  if (s.rdma.present)
    out["rdma"] = to_json(s.rdma);
  return out;
}

void print_json_of(invocation& call, const outcomes& all) {
  json nodes = json::array();
  for (auto& [node, answer] : all)
    nodes.push_back(
      answer ? to_json(*answer)
             : json{
                 {"node", node.name},
                 {"address", node.addresses.front()},
                 {"addresses", node.addresses},
                 {"error", millrace::tools::to_json(answer.error())}});
  print_json(call, {{"nodes", nodes}});
}

std::string used_of(std::uint64_t used_bytes, std::uint64_t capacity_bytes) {
  return human_size(used_bytes) + " of " + human_size(capacity_bytes);
}

void print_providers(std::ostream& out, const node_status& s) {
  table providers{
    {"provider", "kind", "group", ">models", ">used", ">in flight", ">queued", ">stores", ">stored",
     ">loads", ">loaded", ">failures", ">evictions"}};
  for (auto& p : s.providers)
    providers.add(
      {p.name, p.kind, p.group, std::to_string(p.models), used_of(p.used_bytes, p.capacity_bytes),
       std::to_string(p.in_flight), std::to_string(p.queued), std::to_string(p.stores),
       human_size(p.stored_bytes), std::to_string(p.loads), human_size(p.loaded_bytes),
       std::to_string(p.failures), std::to_string(p.evictions)});
  if (!s.providers.empty())
    providers.print(out, "  ");
}

// The star marks the driver that the next transfer uses.
void print_paths(std::ostream& out, const node_status& s) {
  table paths{
    {"peer", "driver", ">bytes", ">rate", ">transfers", ">failures", ">fallbacks", "last failure"}};
  for (auto& p : s.paths)
    paths.add(
      {p.peer, p.driver + (p.carrier.empty() ? "" : " over " + p.carrier) + (p.chosen ? " *" : ""),
       human_size(p.bytes), human_size(p.rate_bytes_per_s) + "/s", std::to_string(p.transfers),
       std::to_string(p.failures), std::to_string(p.fallbacks), p.last_reason});
  if (!s.paths.empty())
    paths.print(out, "  ");
}

void print_rdma(std::ostream& out, const actors::rdma_status& s) {
  if (!s.present)
    return;
  out << "  rdma: " << counted(s.rails.size(), "rail") << ", "
      << counted(s.registrations, "registration") << " (" << human_size(s.registered_bytes) << "), "
      << counted(s.grants, "grant") << ", " << counted(s.windows, "window");
  if (s.by_dma_buf + s.by_peer_memory > 0)
    out << "; memory of GPUs registered " << s.by_dma_buf << " times by dma-buf, "
        << s.by_peer_memory << " by peer memory";
  out << '\n';
  table rails{
    {"rail to", "device", "state", "by", ">bytes", ">rate", ">depth", ">requests", ">retried",
     ">failures", "last failure"}};
  for (auto& r : s.rails)
    rails.add(
      {r.peer, r.device, r.state, r.connected_by, human_size(r.bytes),
       human_size(r.rate_bytes_per_s) + "/s", std::to_string(r.depth), std::to_string(r.requests),
       std::to_string(r.retried), std::to_string(r.failures), r.last_error});
  if (!s.rails.empty())
    rails.print(out, "  ");
}

void print(std::ostream& out, const node_status& s) {
  out << "node " << printable(s.node) << " at "
      << printable(s.addresses.empty() ? s.address : joined(s.addresses)) << ": up "
      << human_duration(s.uptime_ms) << ", pid " << s.pid << ", version " << printable(s.version)
      << ", " << counted(s.connections, "connection");
  if (s.staging_capacity_bytes > 0)
    out << ", staging " << used_of(s.staging_used_bytes, s.staging_capacity_bytes);
  out << '\n';
  print_providers(out, s);
  print_checkpoints(out, s);
  print_flushes(out, s);
  print_paths(out, s);
  print_rdma(out, s.rdma);
}

int show_status(invocation& call, const connection_options& options) {
  auto all = ask(options);
  if (!all)
    return report(call, all.error());
  if (call.json)
    print_json_of(call, *all);
  bool complete = true;
  for (auto& [node, answer] : *all) {
    complete &= answer.has_value();
    if (call.json)
      continue;
    if (answer)
      print(call.out, *answer);
    else
      call.out << "node " << printable(node.name) << " at " << printable(joined(node.addresses))
               << ": no answer: " << printable(answer.error().detail()) << '\n';
  }
  return complete ? exit_ok : exit_failed;
}

} // namespace

void add_status_command(CLI::App& app, invocation& call) {
  auto options = std::make_shared<connection_options>();
  auto* command =
    add_command(app, call, "status", "Show how every node and provider stands", [&call, options] {
      return show_status(call, *options);
    });
  add_connection_options(*command, *options);
}

} // namespace millrace::tools
