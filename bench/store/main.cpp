// bench_store: stores and loads models, compared with other libraries and with the machine's own
// speed.
// See bench/README.md; scripts/bench store runs it.
#include <millrace/bench/common/options.hpp>
#include <millrace/bench/store/sections.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>

namespace {

using namespace millrace::bench;
using millrace::error;

struct options : model_options {
  std::string serve;
};

void declare(CLI::App& app, options& o) {
  add_options(
    app, o, {"graph", "memory", "own", "clients", "latency", "small", "watch", "rocksdb"});
  // For the service, which is this program. No group: --help leaves it out.
  app.add_option("--serve", o.serve)->group("");
}

std::uint64_t largest_of(const std::vector<model_table>& tables) {
  std::uint64_t largest = 0;
  for (auto& t : tables)
    largest = std::max(largest, t.size_bytes);
  // O_DIRECT needs whole pages.
  return (largest + 4095) / 4096 * 4096;
}

void start_peers(stage& s) {
  s.torch = python_peer::start("torch");
  s.h5py = python_peer::start("h5py");
  if (auto redis = redis_peer::start(s.on_disk.path()))
    s.redis.emplace(std::move(*redis));
}

void run_sections(stage& s, const std::string& only) {
  auto wanted = [&](const std::string& name) { return only.empty() || only == name; };
  if (wanted("graph"))
    graph_section(s);
  auto in_memory = {"latency", "small", "watch", "memory", "own", "clients"};
  if (std::none_of(in_memory.begin(), in_memory.end(), wanted))
    return wanted("rocksdb") ? rocksdb_section(s) : void();
  {
    // A version lives until the next one exists, and odd sizes leave gaps.
    auto room = std::max(3 * s.source.bytes().size(), 20 * s.how.client_bytes);
    service memory{
      s.on_disk.path(), {.kind = service_kind::memory, .capacity_bytes = room, .path = {}}};
    if (wanted("latency"))
      latency_section(s, memory);
    if (wanted("small"))
      small_section(s, memory);
    if (wanted("watch"))
      watch_section(s, memory);
    if (wanted("memory"))
      memory_section(s, memory);
    if (wanted("own"))
      own_section(s, memory);
    if (wanted("clients"))
      clients_section(s, memory);
  }
  if (wanted("rocksdb"))
    rocksdb_section(s);
}

int run(const options& o) {
  auto out = begin_run(o);
  scratch_directory in_memory{o.memory};
  scratch_directory on_disk{o.disk};
  auto how = o.quick ? extent::quick() : extent{};
  how.rounds = o.rounds > 0 ? o.rounds : how.rounds;
  how.model = o.model;
  auto clients_bytes = how.clients.back() * how.client_bytes;
  auto bytes = std::max({largest_of(how.tables()), clients_bytes, how.large_bytes});
  warm_buffer source{bytes}, target{bytes};
  source.fill_randomly(1);
  stage s{how, out, in_memory, on_disk, source, target, {}, {}, {}};
  if (!o.no_peers)
    start_peers(s);
  out.print_header();
  run_sections(s, o.only);
  return finish(out, o);
}

} // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"Models stored and loaded, against peers and floors."};
  declare(app, o);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? EXIT_SUCCESS : 2;
  }
  if (!o.serve.empty())
    return serve(o.serve);
  try {
    return run(o);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "bench_store: %s\n", e.what());
    return EXIT_FAILURE;
  }
}
