// `millrace status`: shows the state of every node of a cluster.
#include <millrace/tools/connection.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace millrace::tools {

namespace {

using outcomes = std::vector<std::pair<node_entry, result<node_status>>>;

tl::expected<outcomes, failure> ask_nodes(const connection_options& options) {
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

json status_json(const provider_status& p) {
  if (!p.down.empty())
    return {{"name", p.name}, {"kind", p.kind}, {"group", p.group}, {"down", p.down}};
  json out = {
    {"name", p.name},
    {"kind", p.kind},
    {"group", p.group},
    {"durable", p.durable},
    {"models", p.store.models},
    {"marks", p.store.marks},
    {"used_bytes", p.used_bytes},
    {"capacity_bytes", p.capacity_bytes},
    {"in_flight", p.in_flight},
    {"queued", p.queued},
    {"stores", p.store.stores},
    {"loads", p.store.loads},
    {"failures", p.store.failures},
    {"evictions", p.store.evictions},
    {"stored_bytes", p.store.stored_bytes},
    {"loaded_bytes", p.store.loaded_bytes},
    {"descriptions_bytes", p.store.descriptions_bytes},
    {"views_bytes", p.store.views_bytes},
    {"watches", p.store.watches},
    {"actor_failures", p.actor_failures}};
  if (!p.last_failure.empty())
    out["last_failure"] = p.last_failure;
  auto& c = p.checkpoints;
  if (c.kept)
    out["checkpoints"] = {
      {"registered", c.registered},
      {"saves_in_flight", c.saves_in_flight},
      {"saves_queued", c.saves_queued},
      {"saves", c.saves},
      {"saves_failed", c.saves_failed},
      {"saved_bytes", c.saved_bytes},
      {"restores", c.restores},
      {"restored_bytes", c.restored_bytes},
      {"watches", c.watches}};
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

json status_json(const staging_status& s) {
  return {
    {"name", s.name},
    {"quota_bytes", s.quota_bytes},
    {"budget_bytes", s.budget_bytes},
    {"used_bytes", s.used_bytes},
    {"waiting", s.waiting},
    {"waits", s.waits},
    {"waited_us", s.waited_us},
    {"lent_bytes", s.lent_bytes},
    {"lent", s.lent_count},
    {"calls", s.calls}};
}

void print_staging(std::ostream& out, const node_status& s) {
  table shown{
    {"staging of", ">used", ">granted", ">at most", ">lent", ">waiting", ">waits", ">waited",
     ">calls"}};
  bool any = false;
  for (auto& one : s.staging) {
    if (one.lent_count == 0 && one.waiting == 0)
      continue;
    any = true;
    shown.add(
      {one.name, human_size(one.used_bytes), human_size(one.budget_bytes),
       human_size(one.quota_bytes), human_size(one.lent_bytes), std::to_string(one.waiting),
       std::to_string(one.waits), human_duration(one.waited_us / 1000), std::to_string(one.calls)});
  }
  if (any)
    shown.print(out, "  ");
}

json status_json(const data_status& d) {
  return {
    {"capacity_bytes", d.capacity_bytes},
    {"used_bytes", d.used_bytes},
    {"region_bytes", d.region_bytes},
    {"sets", d.sets},
    {"filling", d.filling},
    {"readers", d.readers},
    {"preloads", d.preloads},
    {"unloads", d.unloads},
    {"evictions", d.evictions},
    {"streams", d.streams},
    {"samples_appended", d.samples_appended},
    {"samples_given", d.samples_given},
    {"windows", d.windows},
    {"joins", d.joins}};
}

void add_lines(json& out, const std::vector<report_line>& lines) {
  for (auto& line : lines)
    out[line.name] = line.is_number ? json(line.number) : json(line.text);
}

json status_json(const driver_report& r) {
  json out = json::object();
  for (auto& t : r.tables) {
    auto& rows = out[t.name] = json::array();
    for (auto& lines : t.rows)
      add_lines(rows.emplace_back(json::object()), lines);
  }
  add_lines(out, r.lines);
  return out;
}

json status_json(const node_status& s) {
  json providers = json::array();
  for (auto& p : s.providers)
    providers.push_back(status_json(p));
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
  json lenders = json::array();
  for (auto& one : s.staging)
    lenders.push_back(status_json(one));
  json out = {
    {"node", s.node},
    {"address", s.address},
    {"addresses", s.addresses},
    {"version", s.version},
    {"pid", s.pid},
    {"uptime_ms", s.uptime_ms},
    {"connections", s.connections},
    {"stalls", s.stalls},
    {"requests", {{"count", s.requests}, {"size_bytes", s.requests_bytes}}},
    {"buffers_bytes", s.buffers_bytes},
    {"staging",
     {{"used_bytes", s.staging_used_bytes},
      {"capacity_bytes", s.staging_capacity_bytes},
      {"lenders", lenders}}},
    {"actor_failures", s.actor_failures},
    {"providers", providers},
    {"paths", paths}};
  if (s.data.capacity_bytes > 0)
    out["data"] = status_json(s.data);
  if (!s.last_failure.empty())
    out["last_failure"] = s.last_failure;
  if (!s.down.empty())
    out["down"] = s.down;
  // A driver's report is a key beside the node's own keys.
  for (auto& r : s.reports)
    if (!out.contains(r.about))
      out[r.about] = status_json(r);
  return out;
}

void print_json_of(invocation& call, const outcomes& all) {
  json nodes = json::array();
  for (auto& [node, answer] : all)
    nodes.push_back(
      answer ? status_json(*answer)
             : json{
                 {"node", node.name},
                 {"address", node.addresses.front()},
                 {"addresses", node.addresses},
                 {"error", to_json(answer.error())}});
  print_json(call, {{"nodes", nodes}});
}

std::string used_of(std::uint64_t used_bytes, std::uint64_t capacity_bytes) {
  return fmt::format("{} of {}", human_size(used_bytes), human_size(capacity_bytes));
}

void print_providers(std::ostream& out, const node_status& s) {
  table providers{
    {"provider", "kind", "group", ">models", ">used", ">described", ">in flight", ">queued",
     ">stores", ">stored", ">loads", ">loaded", ">failures", ">evictions"}};
  auto any = false;
  for (auto& p : s.providers) {
    if (!p.down.empty())
      continue;
    any = true;
    providers.add(
      {p.name, p.kind, p.group, std::to_string(p.store.models),
       used_of(p.used_bytes, p.capacity_bytes),
       human_size(p.store.descriptions_bytes + p.store.views_bytes), std::to_string(p.in_flight),
       std::to_string(p.queued), std::to_string(p.store.stores), human_size(p.store.stored_bytes),
       std::to_string(p.store.loads), human_size(p.store.loaded_bytes),
       std::to_string(p.store.failures), std::to_string(p.store.evictions)});
  }
  if (any)
    providers.print(out, "  ");
  for (auto& p : s.providers)
    if (p.store.marks > 0)
      out << "  provider " << printable(p.name) << " keeps " << counted(p.store.marks, "mark")
          << " of removed models\n";
  for (auto& p : s.providers)
    if (!p.down.empty())
      out << "  provider " << printable(p.name) << " is down: " << printable(p.down) << '\n';
    else if (p.actor_failures > 0)
      out << "  provider " << printable(p.name) << " was started anew after "
          << counted(p.actor_failures, "failure") << ", the last one: " << printable(p.last_failure)
          << '\n';
  if (!any && !s.providers.empty())
    out << "  no provider could be opened: the node serves nothing\n";
}

void print_data(std::ostream& out, const data_status& d) {
  if (d.capacity_bytes == 0)
    return;
  table shown{
    {"data server", ">used", ">region", ">preloading", ">readers", ">preloads", ">unloads",
     ">joins", ">evictions"}};
  shown.add(
    {counted(d.sets, "set"), used_of(d.used_bytes, d.capacity_bytes), human_size(d.region_bytes),
     std::to_string(d.filling), std::to_string(d.readers), std::to_string(d.preloads),
     std::to_string(d.unloads), std::to_string(d.joins), std::to_string(d.evictions)});
  shown.print(out, "  ");
  if (d.windows > 0)
    out << "  " << counted(d.windows, "set") << " of these through a window\n";
  if (d.streams > 0 || d.samples_appended > 0)
    out << "  " << counted(d.streams, "stream") << ", " << counted(d.samples_appended, "sample")
        << " appended, " << d.samples_given << " given to readers since the start\n";
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

// Turns "registered_bytes" and its number into "registered", "1.5 KiB".
std::pair<std::string, std::string> shown(const report_line& line) {
  auto name = line.name;
  auto take = [&](std::string_view unit) {
    bool has = name.ends_with(unit);
    if (has && name.size() > unit.size())
      name.resize(name.size() - unit.size() - 1);
    return has && line.is_number;
  };
  auto text = take("bytes_per_s") ? human_size(line.number) + "/s"
    : take("bytes")               ? human_size(line.number)
    : line.is_number              ? std::to_string(line.number)
                                  : line.text;
  std::replace(name.begin(), name.end(), '_', ' ');
  return {name, text};
}

void print_report(std::ostream& out, const driver_report& r) {
  std::string facts;
  for (auto& line : r.lines) {
    auto [name, text] = shown(line);
    facts += fmt::format("{}{} {}", facts.empty() ? " " : ", ", name, text);
  }
  out << "  " << printable(r.about) << ":" << printable(facts) << '\n';
  for (auto& t : r.tables) {
    if (t.rows.empty())
      continue;
    std::vector<std::string> headings;
    for (auto& line : t.rows.front())
      headings.push_back((line.is_number ? ">" : "") + printable(shown(line).first));
    table rows{std::move(headings)};
    for (auto& lines : t.rows) {
      std::vector<std::string> cells;
      cells.reserve(lines.size());
      for (auto& line : lines)
        cells.push_back(shown(line).second);
      // Every row of the table must have the same number of cells; a node may send any number.
      cells.resize(t.rows.front().size());
      rows.add(std::move(cells));
    }
    rows.print(out, "  ");
  }
}

void print_node(std::ostream& out, const node_status& s) {
  out << "node " << printable(s.node) << " at "
      << printable(s.addresses.empty() ? s.address : joined(s.addresses)) << ": up "
      << human_duration(s.uptime_ms) << ", pid " << s.pid << ", version " << printable(s.version)
      << ", " << counted(s.connections, "connection");
  if (s.staging_capacity_bytes > 0)
    out << ", staging " << used_of(s.staging_used_bytes, s.staging_capacity_bytes);
  if (s.stalls > 0)
    out << ", its I/O loop stood still " << counted(s.stalls, "time");
  out << '\n';
  if (s.actor_failures > 0)
    out << "  " << counted(s.actor_failures, "failure")
        << " of actors that serve all providers, the last one: " << printable(s.last_failure)
        << '\n';
  if (!s.down.empty())
    out << "  " << printable(s.down) << '\n';
  print_providers(out, s);
  print_checkpoints(out, s);
  print_flushes(out, s);
  print_staging(out, s);
  print_data(out, s.data);
  print_paths(out, s);
  for (auto& r : s.reports)
    print_report(out, r);
}

int show_status(invocation& call, const connection_options& options) {
  auto all = ask_nodes(options);
  if (!all)
    return report(call, all.error());
  if (call.json)
    print_json_of(call, *all);
  bool complete = true;
  for (auto& [node, answer] : *all) {
    complete &= answer && answer->down.empty() &&
      std::all_of(answer->providers.begin(), answer->providers.end(),
                  [](auto& p) { return p.down.empty(); });
    if (call.json)
      continue;
    if (answer)
      print_node(call.out, *answer);
    else
      call.out << "node " << printable(node.name) << " at " << printable(joined(node.addresses))
               << ": no answer: " << printable(answer.error().detail()) << '\n';
  }
  return complete ? exit_ok : exit_failed;
}

} // namespace

void add_status_command(CLI::App& app, invocation& call) {
  auto [command, options] = add_command<connection_options>(
    app, call, "status", "Show how every node and provider stands", show_status);
  add_connection_options(*command, *options);
}

} // namespace millrace::tools
