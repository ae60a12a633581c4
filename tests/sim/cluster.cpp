// Starts, stops and kills the nodes of a simulated cluster.
#include <millrace/net/socket/unique_fd.hpp>
#include <millrace/tests/sim/cluster.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace millrace::sim {

namespace fs = std::filesystem;

using namespace std::chrono_literals;

namespace {

std::string text_of(const provider_list& file) {
  std::string out;
  for (auto& p : file)
    out += fmt::format("{}{}@{}*{}", out.empty() ? "" : " ", p.name, p.rests, p.weight);
  return out;
}

// Copies what a file of a file system in memory has, and leaves its holes. A pool is mostly holes.
void copy_data(const std::string& from, const std::string& to) {
  net::unique_fd in{::open(from.c_str(), O_RDONLY | O_CLOEXEC)};
  net::unique_fd out{::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
  auto size = ::lseek(in.get(), 0, SEEK_END);
  auto done = out && size >= 0 && ::ftruncate(out.get(), size) == 0;
  for (off_t at = 0; done && (at = ::lseek(in.get(), at, SEEK_DATA)) >= 0;) {
    auto end = ::lseek(in.get(), at, SEEK_HOLE);
    done = ::lseek(out.get(), at, SEEK_SET) == at;
    while (done && at < end)
      done = ::sendfile(out.get(), in.get(), &at, static_cast<std::size_t>(end - at)) > 0;
  }
  demand(done && errno == ENXIO, "the image of a pool is copied");
}

void demand_no_staging(const node_status& now) {
  demand(
    now.staging_used_bytes == 0,
    fmt::format(
      "node {} still holds {} bytes of staging memory", now.node, now.staging_used_bytes));
}

// A lease after the last use, all budgets have been given back.
void demand_no_budgets(const node_status& now) {
  for (auto& one : now.staging)
    demand(
      one.budget_bytes == 0 && one.used_bytes == 0 && one.waiting == 0,
      fmt::format(
        "node {}: {} still has a budget of {} bytes, uses {} of it, and {} requests wait", now.node,
        one.name, one.budget_bytes, one.used_bytes, one.waiting));
}

void demand_no_sets(const node_status& now) {
  auto& data = now.data;
  demand(
    data.used_bytes == 0 && data.readers == 0 && data.filling == 0,
    fmt::format(
      "the data server of node {} has {} bytes, {} readers and {} preloads that nobody wants",
      now.node, data.used_bytes, data.readers, data.filling));
}

} // namespace

std::vector<std::string> buckets_of_each_cluster(std::size_t least) {
  std::vector<std::string> out = {"a", "b", "c"};
  out.resize(std::min(out.size(), least));
  auto* wanted = std::getenv("MILLRACE_SIM_NODES");
  while (wanted && out.size() < std::strtoul(wanted, nullptr, 10))
    out.push_back("d" + std::to_string(out.size()));
  return out;
}

std::shared_ptr<storage::pmem::persist_observer> watched_media::opened(
  const std::string& path, std::span<const std::byte> pool) {
  auto recorder = std::make_shared<testing::power_cut_recorder>();
  recorder->watch(pool);
  pools_[path] = recorder;
  return recorder;
}

void watched_media::cut_power(
  const std::string& path, const std::string& copy, testing::dice& random) {
  std::fstream out{copy, std::ios::in | std::ios::out | std::ios::binary};
  // Often nothing that could be lost has arrived.
  auto arrived = random.percent(50) ? 0 : random.below(100);
  auto pick = [&](std::size_t contents) {
    return random.percent(arrived) ? random.below(contents) : 0;
  };
  for (auto& line : pools_.at(path)->lost_by_a_cut(pick)) {
    out.seekp(static_cast<std::streamoff>(line.offset));
    out.write(reinterpret_cast<const char*>(line.content.data()), std::ssize(line.content));
  }
  demand(out.flush().good(), "the image of a pool is written");
}

cluster::cluster(std::uint64_t seed, std::map<std::string, std::string> kinds, std::string more)
  : in(seed), kinds_(std::move(kinds)), more_(std::move(more)) {}

cluster::~cluster() {
  net->heal_all();
  for (auto& [rests, n] : nodes_)
    stop(rests);
}

std::string cluster::kind_of(const std::string& rests) const {
  auto at = kinds_.find(rests);
  return at == kinds_.end() ? "memory" : at->second;
}

bool cluster::has_files(const std::string& rests) const {
  auto kind = kind_of(rests);
  return kind == "rocksdb" || kind.starts_with("flushed");
}

std::string cluster::bucket_text(const std::string& rests) const {
  if (has_pool(rests))
    return "bucket: pmem, window: 1MiB, capacity: 32MiB, path: " + path_of(rests) +
      (has_files(rests) ? ", flush_to: " + flush_directory(rests) : "");
  if (has_files(rests))
    return "bucket: rocksdb, window: 512KiB, capacity: 2MiB, inline_max: 4KiB, index_reserve: 0, "
           "path: " +
      disks_.path_of(rests) + "/models";
  return "bucket: memory, capacity: 4MiB";
}

std::string cluster::text(const provider_list& file) const {
  std::string out =
    "staging: { size: 4MiB, lock: off, huge_pages: off }\n"
    "limits: { shutdown_timeout: 5s, request_timeout: 30s, progress_timeout: 10s }\n"
    "checkpoints: { staging_piece: 1MiB, staging_pieces: 1 }\n"
    "client: { connect_timeout: 3s, reconnect_backoff_max: 100ms }\n" +
    more_ + "cluster:\n  nodes:\n";
  for (auto& p : file) {
    out += fmt::format(
      "    - name: on-{}\n      listen: 'unix:{}.sock'\n      providers: [{{ name: {}, group: {}, "
      "weight: {}, {} {} }}]\n",
      p.rests, path_of(p.rests), p.name, p.group, p.weight, p.id.empty() ? "" : "id: " + p.id + ",",
      bucket_text(p.rests));
  }
  return out;
}

config::settings cluster::settings(const provider_list& file) const {
  auto parsed = parse_configuration(text(file), "cluster.yaml");
  demand(parsed.has_value(), parsed ? "" : parsed.error().to_string());
  return *parsed;
}

status cluster::start(const provider_list& file, const std::string& rests) {
  auto& n = nodes_[rests];
  auto& p = in.start_process("on-" + rests);
  auto started = in.as(p, [&]() -> result<node> {
    auto made = node::start(settings(file).for_node("on-" + rests).value());
    if (made && !made->down().empty())
      return fail(status{made->down().begin()->second});
    return made;
  });
  in.say(fmt::format(
    "node on-{} starts as {}: {}", rests, text_of(file),
    started ? "done" : started.error().to_string()));
  if (!started)
    return started.error();
  n.in = &p;
  n.runs.emplace(std::move(*started));
  return {};
}

node_status cluster::status_of(const std::string& rests) {
  auto& n = nodes_[rests];
  return in.as(*n.in, [&] {
    auto answers = n.runs->client().status().get();
    for (auto& answer : answers)
      if (answer && answer->node == "on-" + rests)
        return *answer;
    throw testing::promise_broken{"node on-" + rests + " answers"};
  });
}

void cluster::demand_settled() {
  for (auto& [rests, one] : nodes_) {
    if (!one.runs)
      continue;
    auto now = status_of(rests);
    // Memory to which a peer may still write stays taken until the peer is gone.
    if (net->stalls_per_mille == 0)
      demand_no_staging(now);
    demand(now.requests == 0, fmt::format("node {} still has {} requests", now.node, now.requests));
    for (auto& p : now.providers) {
      auto left =
        p.in_flight + p.queued + p.checkpoints.saves_in_flight + p.checkpoints.saves_queued;
      demand(left == 0, fmt::format("provider {} still has {} requests", p.name, left));
    }
  }
}

void cluster::demand_rest() {
  in.run_for(60s);
  demand(storage::pmem::leased_slots() == leased_before_, "no slot of a pool stays leased");
  std::size_t running = 0, data_servers = 0;
  for (auto& [rests, one] : nodes_) {
    if (!one.runs)
      continue;
    auto now = status_of(rests);
    ++running;
    data_servers += now.data.capacity_bytes > 0;
    demand_no_staging(now);
    demand_no_budgets(now);
    demand_no_sets(now);
    for (auto& p : now.providers)
      demand(p.checkpoints.registered == 0, "no shard stays registered");
  }
  // Data servers show words about their memory to all.
  auto exposed = exposed_before_ + data_servers;
  demand(transport::exposed_regions() == exposed, "no memory stays exposed");
  in.run_for(10s); // the deadlines of these questions are over
  auto frames = net->frames();
  auto events = in.events(), timers = in.timers();
  in.run_for(60s);
  demand(net->frames() == frames, "an idle cluster sends nothing");
  events = in.events() - events;
  timers = in.timers() - timers;
  in.say(fmt::format("idle for 60 s: {} events, {} timers of actors", events, timers));
  demand(events < 10 + 6 * running, fmt::format("an idle cluster is quiet: {} events", events));
  demand(timers == 0, fmt::format("no actor of an idle cluster has a timer: {}", timers));
  for (auto& [rests, one] : nodes_)
    stop(rests);
  demand(transport::exposed_regions() == exposed_before_, "nodes leave no memory exposed");
  demand(net->connections() == 0, "no connection is left");
  demand(actors::staging_memories() == staging_before_, "no block of staging memory stays lent");
  demand(testing::open_descriptors() == descriptors_before_, "no descriptor is left");
}

void cluster::stop(const std::string& rests) {
  auto& n = nodes_[rests];
  if (!n.runs)
    return;
  in.say("node on-" + rests + " stops");
  in.as(*n.in, [&] { n.runs.reset(); });
  in.kill(*n.in);
  in.bury(*n.in);
}

void cluster::die(const std::string& rests, bool power_cut) {
  auto& n = nodes_[rests];
  in.say(fmt::format("node on-{} {}", rests, power_cut ? "loses power" : "dies"));
  auto path = path_of(rests);
  if (has_pool(rests))
    copy_data(path, path + ".image");
  if (has_pool(rests) && power_cut)
    media_.cut_power(path, path + ".image", random);
  if (has_files(rests))
    n.left = disks_.left_in(rests, power_cut, random);
  in.kill(*n.in);
}

void cluster::die_while_it_writes(const std::string& rests, bool power_cut) {
  auto& n = nodes_[rests];
  auto writes_left = static_cast<int>(random.between(1, 60));
  disks_.watch([&](const std::string& directory) {
    if (directory == rests && --writes_left == 0)
      die(rests, power_cut);
  });
  for (auto until = in.now() + 50ms; n.in->alive() && in.now() < until;)
    in.run_for(1ms);
  disks_.watch(nullptr);
}

// The dead process ends in order afterwards, which nothing may see.
void cluster::crash(const std::string& rests) {
  auto& n = nodes_[rests];
  if (!n.runs)
    return;
  auto power_cut = random.percent(50);
  if (has_files(rests) && random.percent(50))
    die_while_it_writes(rests, power_cut);
  if (n.in->alive())
    die(rests, power_cut);
  in.as(*n.in, [&] { n.runs.reset(); });
  in.bury(*n.in);
  if (has_pool(rests))
    fs::rename(path_of(rests) + ".image", path_of(rests));
  if (has_files(rests))
    disks_.put_back(rests, n.left);
}

} // namespace millrace::sim
