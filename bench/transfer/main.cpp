// bench_transfer: compares the drivers with each other and with other programs that move the same
// bytes.
// See bench/README.md; scripts/bench transfer runs it.
#include <millrace/bench/common/guest.hpp>
#include <millrace/bench/common/options.hpp>
#include <millrace/bench/transfer/rig.hpp>
#include <millrace/bench/transfer/stage.hpp>
#include <millrace/core/log.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace {

using namespace millrace::bench;

constexpr std::size_t few_rounds = 3;      // for quick runs and emulated devices
constexpr std::uint64_t page_bytes = 4096; // enough where no floor needs the memory

struct options : run_options {
  bool emulated = false;
  std::string guest;
  std::vector<std::string> drivers, tcp;
  std::vector<std::uint64_t> sizes;
};

void declare(CLI::App& app, options& o) {
  std::vector<std::string> columns;
  for (auto& kind : driver_table())
    columns.push_back(kind.column);
  add_options(app, o, {"latency", "sizes", "segments", "peers"});
  app.add_flag("--emulated", o.emulated, "less of all, for devices that a guest emulates");
  app.add_option(
    "--guest", o.guest,
    "runs a program in a guest with RDMA devices, for drivers that need some where here are none");
  app.add_option("--driver", o.drivers, "only these drivers")->check(CLI::IsMember(columns));
  app.add_option("--size", o.sizes, "only these sizes of latency and sizes, such as 4KiB")
    ->transform(CLI::AsSizeValue(false));
  app.add_option("--tcp", o.tcp, "an option of the tcp drivers, such as streams=8; sizes in bytes");
}

std::vector<const driver_kind*> chosen(const std::vector<std::string>& names) {
  std::vector<const driver_kind*> out;
  for (auto& kind : driver_table())
    if (names.empty() || std::ranges::find(names, kind.column) != names.end())
      out.push_back(&kind);
  return out;
}

std::vector<std::string> arguments_in_guest(const options& o, const driver_kind& kind) {
  std::vector<std::string> out{"--emulated", "--driver", kind.column};
  if (o.rounds > 0)
    out.insert(out.end(), {"--rounds", std::to_string(o.rounds)});
  if (o.no_peers)
    out.emplace_back("--no-peers");
  if (o.quick)
    out.emplace_back("--quick");
  if (!o.only.empty())
    out.insert(out.end(), {"--only", o.only});
  for (auto size : o.sizes)
    out.insert(out.end(), {"--size", std::to_string(size)});
  return out;
}

// If this machine has no RDMA device, the drivers that need one are measured in a guest alone.
void measure_in_guest(stage& s, const options& o) {
  if (rdma_ports())
    return;
  auto there = s.drivers;
  std::erase_if(there, [](auto* kind) { return !kind->rdma; });
  std::erase_if(s.drivers, [](auto* kind) { return kind->rdma; });
  for (auto* kind : there)
    run_in_guest(s.out, kind->column, {o.guest, {}, arguments_in_guest(o, *kind)});
}

void run_sections(stage& s, const std::string& only) {
  auto wanted = [&](const std::string& name) { return only.empty() || only == name; };
  if (wanted("latency"))
    latency_section(s);
  if (wanted("sizes"))
    sizes_section(s);
  if (wanted("segments"))
    segments_section(s);
  if (wanted("peers"))
    peers_section(s);
}

int run(const options& o) {
  auto out = begin_run(o);
  scratch_directory files{"/tmp"};
  for (auto& text : o.tcp)
    if (auto bad = set_tcp_option(text); !bad.ok())
      give_up(bad, "--tcp");
  extent how;
  how.only_sizes = o.sizes;
  how.quick = o.quick;
  how.emulated = o.emulated;
  how.rounds = o.rounds > 0 ? o.rounds : o.quick || o.emulated ? few_rounds : how.rounds;
  auto drivers = chosen(o.drivers);
  auto largest =
    std::ranges::any_of(drivers, &driver_kind::copies) ? how.places_bytes_max() : page_bytes;
  warm_buffer source{largest}, target{largest};
  source.fill_randomly(1);
  stage s{how, out, files, drivers, {}, {}, {}, source, target};
  auto over_network = [](auto* kind) { return kind->streams; };
  if (!o.no_peers)
    s.ucx = ucx_peer::find();
  if (!o.no_peers && std::ranges::any_of(s.drivers, over_network))
    s.iperf = iperf_peer::start(how.rounds);
  if (!o.no_peers && std::ranges::any_of(s.drivers, &driver_kind::rdma))
    s.perftest = perftest_peer::find();
  out.print_header();
  if (!o.guest.empty())
    measure_in_guest(s, o);
  run_sections(s, o.only);
  return finish(out, o);
}

} // namespace

int main(int argc, char** argv) {
  try {
    if (argc >= 4 && argv[1] == std::string{"--owner"})
      return own(argv[2], argv[3], {argv + 4, argv + argc});
    if (argc == 3 && argv[1] == std::string{"--echo"})
      return answer_pings(static_cast<std::uint32_t>(std::atoi(argv[2])));
    options o;
    CLI::App app{"Drivers side by side, against others who move the same bytes."};
    declare(app, o);
    CLI11_PARSE(app, argc, argv);
    return run(o);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "bench_transfer: %s\n", e.what());
    return EXIT_FAILURE;
  }
}
