// `millrace predict`: computes how long a broadcast takes on clusters of many sizes.
#include <millrace/actors/broadcast/broadcast_choice.hpp>
#include <millrace/config/units.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/predict/constants.hpp>
#include <millrace/tools/predict/line_chart.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <ostream>
#include <vector>

namespace millrace::tools {

namespace {

using actors::broadcast_algorithm;
using actors::broadcast_case;
using actors::broadcast_choice;
using actors::broadcast_members_max;
using actors::broadcast_memory;

struct predict_options {
  std::string members = "16..4096";
  std::string size = "2MiB";
  std::optional<std::uint32_t> hosts, per_host;
  std::string roots = "1";
  std::string overlap;
  std::string memory = "host";
  bool no_multicast = false;
  std::string bandwidth, latency, setup;
  std::string parameters_file, plot_file;
};

// One row of the table.
struct prediction {
  broadcast_case of;
  std::vector<broadcast_choice> best; // of each algorithm that is possible
  broadcast_choice choice;
};

struct wanted {
  actors::broadcast_costs costs;
  std::vector<broadcast_case> cases;
};

// Reads "64", or "16..4096" as 16 and each double of it up to 4096.
result<std::vector<std::uint32_t>> parse_members(const std::string& text) {
  auto dots = text.find("..");
  auto first = config::parse_count(text.substr(0, dots));
  auto last = dots == text.npos ? first : config::parse_count(text.substr(dots + 2));
  if (!first || !last || *first < 2 || *last < *first || *last > broadcast_members_max)
    return fail(
      errc::invalid_argument, "--members {}: a number from 2 to {}, or two as 16..4096", text,
      broadcast_members_max);
  std::vector<std::uint32_t> out;
  for (auto members = *first; members < *last; members *= 2)
    out.push_back(static_cast<std::uint32_t>(members));
  out.push_back(static_cast<std::uint32_t>(*last));
  return out;
}

result<std::optional<double>> parse_overlap(const std::string& text) {
  if (text.empty())
    return std::nullopt;
  double part = 0;
  auto end = text.data() + text.size();
  auto [rest, bad] = std::from_chars(text.data(), end, part);
  if (bad != std::errc{} || rest != end || !(part >= 0 && part < 1))
    return fail(
      errc::invalid_argument, "--overlap {}: a part from 0 to below 1, such as 0.2", text);
  return part;
}

// The option of this name as a number, if it is given.
using parser = result<std::uint64_t> (*)(std::string_view);
result<std::optional<double>> parse_number(
  const char* option, const std::string& text, parser parse) {
  if (text.empty())
    return std::nullopt;
  auto number = parse(text);
  if (!number)
    return fail(number.error().within(option));
  return static_cast<double>(*number);
}

result<actors::broadcast_costs> parse_costs(const predict_options& options) {
  actors::broadcast_costs costs;
  if (!options.parameters_file.empty()) {
    auto read = read_constants(options.parameters_file);
    if (!read)
      return read;
    costs = *read;
  }
  auto bandwidth = parse_number("--bandwidth", options.bandwidth, config::parse_size);
  auto latency = parse_number("--latency", options.latency, config::parse_duration_us);
  auto setup = parse_number("--setup", options.setup, config::parse_duration_us);
  for (auto* one : {&bandwidth, &latency, &setup})
    if (!*one)
      return fail(one->error());
  if (*bandwidth && **bandwidth == 0)
    return fail(errc::invalid_argument, "--bandwidth 0: a size above 0, such as 12500000000");
  if (*bandwidth) {
    costs.host_bytes_per_s = **bandwidth;
    costs.gpu_bytes_per_s = std::min(costs.gpu_bytes_per_s, **bandwidth);
  }
  costs.latency_s = latency->value_or(costs.latency_s * 1e6) / 1e6;
  costs.setup_s = setup->value_or(costs.setup_s * 1e6) / 1e6;
  return costs;
}

result<std::uint32_t> hosts_of(const predict_options& options, std::uint32_t members) {
  auto hosts = options.hosts.value_or(members);
  if (options.per_host)
    hosts = (members + *options.per_host - 1) / *options.per_host;
  if (hosts > members)
    return fail(
      errc::invalid_argument,
      "--hosts {}: {} members are on {} hosts at most; let --members begin at {}", hosts, members,
      members, hosts);
  return hosts;
}

result<std::uint32_t> roots_of(const predict_options& options, std::uint32_t members) {
  if (options.roots == "all")
    return members;
  auto roots = config::parse_count(options.roots);
  if (!roots || *roots < 1 || *roots > members)
    return fail(
      errc::invalid_argument, "--roots {}: a number from 1 to {}, the members, or all",
      options.roots, members);
  return static_cast<std::uint32_t>(*roots);
}

// What all rows have in common.
result<broadcast_case> parse_common(const predict_options& options) {
  broadcast_case out;
  auto size = config::parse_size(options.size);
  if (!size)
    return fail(size.error().within("--size"));
  if (*size == 0 || *size > (std::uint64_t{1} << 50))
    return fail(errc::invalid_argument, "--size {}: a size from 1 to 1024TiB", options.size);
  if (options.memory != "host" && options.memory != "gpu")
    return fail(errc::invalid_argument, "--memory {}: host or gpu", options.memory);
  auto overlap = parse_overlap(options.overlap);
  if (!overlap)
    return fail(overlap.error());
  out.bytes = *size;
  out.memory = options.memory == "gpu" ? broadcast_memory::gpu : broadcast_memory::host;
  out.multicast = !options.no_multicast;
  out.overlap = *overlap;
  return out;
}

result<wanted> parse(const predict_options& options) {
  auto members = parse_members(options.members);
  if (!members)
    return fail(members.error());
  auto common = parse_common(options);
  if (!common)
    return fail(common.error());
  auto costs = parse_costs(options);
  if (!costs)
    return fail(costs.error());
  wanted out{*costs, {}};
  for (auto count : *members) {
    auto hosts = hosts_of(options, count);
    auto roots = roots_of(options, count);
    if (!hosts || !roots)
      return fail(hosts ? roots.error() : hosts.error());
    auto& one = out.cases.emplace_back(*common);
    one.members = count;
    one.hosts = *hosts;
    one.roots = *roots;
  }
  return out;
}

prediction predict_one(const actors::broadcast_costs& costs, const broadcast_case& of) {
  prediction out{of, {}, actors::choose_broadcast(costs, of)};
  for (auto algorithm : {broadcast_algorithm::ring, broadcast_algorithm::knomial})
    out.best.push_back(actors::best_of(costs, of, algorithm));
  if (of.multicast)
    out.best.push_back(actors::best_of(costs, of, broadcast_algorithm::multicast));
  return out;
}

json choice_json(const broadcast_choice& choice) {
  json out = {{"seconds", choice.predicted_s}, {"chunk_bytes", choice.scheme.chunk_bytes}};
  if (choice.scheme.algorithm == broadcast_algorithm::knomial)
    out["k"] = choice.scheme.k;
  return out;
}

json prediction_json(const prediction& p) {
  json out = {{"members", p.of.members}, {"hosts", p.of.hosts}, {"roots", p.of.roots}};
  json algorithms;
  for (auto& one : p.best)
    algorithms[std::string{to_string(one.scheme.algorithm)}] = choice_json(one);
  out["algorithms"] = algorithms;
  out["choice"] = to_string(p.choice.scheme.algorithm);
  return out;
}

void print_as_json(
  invocation& call, const wanted& of, const predict_options& options,
  const std::vector<prediction>& all) {
  json rows = json::array();
  for (auto& one : all)
    rows.push_back(prediction_json(one));
  print_json(
    call,
    {{"size_bytes", of.cases.front().bytes},
     {"memory", options.memory},
     {"parameters", constants_json(of.costs)},
     {"predictions", rows}});
}

void print_table(std::ostream& out, const std::vector<prediction>& all) {
  std::vector<std::string> headings{">members", ">hosts",    ">roots", ">ring",
                                    ">chunk",   ">k-nomial", ">k",     ">chunk"};
  auto& first = all.front().of;
  if (first.multicast)
    headings.emplace_back(">multicast");
  headings.emplace_back("choice");
  table rows{headings};
  for (auto& p : all) {
    std::vector<std::string> cells{
      std::to_string(p.of.members), std::to_string(p.of.hosts), std::to_string(p.of.roots)};
    for (auto& one : p.best) {
      cells.push_back(human_seconds(one.predicted_s));
      if (one.scheme.algorithm == broadcast_algorithm::knomial)
        cells.push_back(std::to_string(one.scheme.k));
      if (one.scheme.algorithm != broadcast_algorithm::multicast)
        cells.push_back(human_size(one.scheme.chunk_bytes));
    }
    cells.emplace_back(to_string(p.choice.scheme.algorithm));
    rows.add(std::move(cells));
  }
  rows.print(out);
}

void print(
  invocation& call, const wanted& of, const predict_options& options,
  const std::vector<prediction>& all) {
  if (call.json)
    return print_as_json(call, of, options, all);
  call.out << human_size(of.cases.front().bytes) << " from each root to all members, in memory of "
           << (options.memory == "gpu" ? "GPUs" : "the host") << '\n';
  print_table(call.out, all);
  if (options.parameters_file.empty())
    call.out << "Constants that no option names have their defaults, mostly those of the broadcast "
                "paper's cluster; give yours with --parameters FILE.\n";
}

line_chart chart_of(const std::vector<prediction>& all) {
  auto& first = all.front().of;
  line_chart out{
    fmt::format("broadcast of {}: predicted time", human_size(first.bytes)), "members", {}};
  for (auto& one : all.front().best)
    out.lines.push_back({std::string{to_string(one.scheme.algorithm)}, {}});
  for (auto& p : all)
    for (std::size_t i = 0; i < p.best.size(); ++i)
      out.lines[i].points.emplace_back(p.of.members, p.best[i].predicted_s);
  return out;
}

status write_plot(const std::string& path, const std::vector<prediction>& all) {
  std::ofstream file{path};
  file << to_svg(chart_of(all));
  file.close();
  return file ? status{} : status_from_errno(errno, "writing the chart " + path);
}

int predict_broadcast(invocation& call, const predict_options& options) {
  auto of = parse(options);
  if (!of)
    return report(call, {of.error(), exit_usage});
  std::vector<prediction> all;
  for (auto& one : of->cases)
    all.push_back(predict_one(of->costs, one));
  if (!options.plot_file.empty())
    if (auto bad = write_plot(options.plot_file, all); !bad.ok())
      return report(call, bad);
  print(call, *of, options, all);
  return exit_ok;
}

void add_shape_options(CLI::App& command, predict_options& options) {
  command
    .add_option(
      "--members", options.members,
      "their number, or two as 16..4096: the first one and each double of it up to the second one")
    ->type_name("NUMBERS")
    ->capture_default_str();
  command.add_option("--size", options.size, "size of the message of each root")
    ->type_name("SIZE")
    ->capture_default_str();
  auto* hosts = command
                  .add_option(
                    "--hosts", options.hosts,
                    "hosts on which the members are dealt out evenly (default: one for each)")
                  ->type_name("NUMBER")
                  ->check(whole_number(1, broadcast_members_max));
  command.add_option("--per-host", options.per_host, "members of one host at most")
    ->type_name("NUMBER")
    ->check(whole_number(1, broadcast_members_max))
    ->excludes(hosts);
  command
    .add_option(
      "--roots", options.roots, "members that broadcast a message each at the same time, or all")
    ->type_name("NUMBER")
    ->capture_default_str();
  command
    .add_option(
      "--overlap", options.overlap,
      "part of several broadcasts that overlaps, such as 0.2 (default: as the paper measured)")
    ->type_name("PART");
  command.add_option("--memory", options.memory, "where the messages lie: host or gpu")
    ->type_name("KIND")
    ->capture_default_str();
  command.add_flag("--no-multicast", options.no_multicast, "the network has no multicast");
}

void add_cost_options(CLI::App& command, predict_options& options) {
  command
    .add_option(
      "--parameters", options.parameters_file,
      "constants of the cluster in JSON, as --json prints them under `parameters`")
    ->type_name("FILE");
  command
    .add_option(
      "--bandwidth", options.bandwidth,
      "bytes in a second that a host sends, instead of that in the file")
    ->type_name("SIZE");
  command
    .add_option(
      "--latency", options.latency,
      "time from the sender's port to the receiver's memory, instead of that in the file")
    ->type_name("TIME");
  command
    .add_option(
      "--setup", options.setup, "time to begin sending a chunk, instead of that in the file")
    ->type_name("TIME");
  command
    .add_option("--plot", options.plot_file, "also draw the table as a chart, as SVG to this file")
    ->type_name("FILE");
}

} // namespace

void add_predict_command(CLI::App& app, invocation& call) {
  auto* predict = app.add_subcommand("predict", "Compute times on clusters of any size");
  predict->require_subcommand(1);
  auto [command, options] = add_command<predict_options>(
    *predict, call, "broadcast",
    "Show how long a broadcast takes by each algorithm, and which one is chosen; asks no service",
    predict_broadcast);
  add_shape_options(*command, *options);
  add_cost_options(*command, *options);
}

} // namespace millrace::tools
