// Starts, stops and kills the nodes of a simulated cluster.
#include <millrace/tests/sim/cluster.hpp>

#include <fmt/format.h>

#include <filesystem>

namespace millrace::sim {

namespace fs = std::filesystem;

namespace {

std::string text_of(const provider_list& file) {
  std::string out;
  for (auto& p : file)
    out += fmt::format("{}{}@{}*{}", out.empty() ? "" : " ", p.name, p.rests, p.weight);
  return out;
}

} // namespace

cluster::cluster(std::uint64_t seed, std::map<std::string, std::string> kinds)
  : in(seed), kinds_(std::move(kinds)) {}

cluster::~cluster() {
  net->heal_all();
  for (auto& [rests, n] : nodes_)
    stop(rests);
}

std::string cluster::kind_of(const std::string& rests) const {
  auto at = kinds_.find(rests);
  return at == kinds_.end() ? "memory" : at->second;
}

std::string cluster::text(const provider_list& file) const {
  std::string out =
    "staging: { size: 4MiB, lock: off, huge_pages: off }\n"
    "limits: { shutdown_timeout: 5s, request_timeout: 30s, progress_timeout: 10s }\n"
    "checkpoints: { staging_piece: 1MiB, staging_pieces: 1 }\n"
    "client: { connect_timeout: 3s, reconnect_backoff_max: 100ms }\n"
    "cluster:\n  nodes:\n";
  for (auto& p : file) {
    auto kind = kind_of(p.rests);
    auto path = path_of(p.rests);
    out += fmt::format(
      "    - name: on-{}\n      listen: 'unix:{}.sock'\n      providers: [{{ name: {}, group: {}, "
      "weight: {}, {} {} }}]\n",
      p.rests, path, p.name, p.group, p.weight, p.id.empty() ? "" : "id: " + p.id + ",",
      kind == "memory" ? "bucket: memory, capacity: 4MiB"
                       : "bucket: pmem, window: 1MiB, capacity: 32MiB, path: " + path);
  }
  return out;
}

config::settings cluster::settings(const provider_list& file) const {
  return parse_configuration(text(file), "cluster.yaml").value();
}

status cluster::start(const provider_list& file, const std::string& rests) {
  auto& n = nodes_[rests];
  auto& p = in.start_process("on-" + rests);
  auto started =
    in.as(p, [&] { return node::start(settings(file).for_node("on-" + rests).value()); });
  in.say(fmt::format(
    "node on-{} starts as {}: {}", rests, text_of(file),
    started ? "done" : started.error().to_string()));
  if (!started)
    return started.error();
  n.in = &p;
  n.runs.emplace(std::move(*started));
  return {};
}

actors::node_status cluster::status_of(const std::string& rests) {
  auto& n = nodes_[rests];
  return in.as(*n.in, [&] {
    auto answers = n.runs->client().status().get();
    for (auto& answer : answers)
      if (answer && answer->node == "on-" + rests)
        return *answer;
    throw testing::promise_broken{"node on-" + rests + " answers"};
  });
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

// The dead process ends in order afterwards, which nothing may see.
void cluster::crash(const std::string& rests) {
  auto& n = nodes_[rests];
  if (!n.runs)
    return;
  in.say("node on-" + rests + " dies");
  auto path = path_of(rests);
  auto image = path + ".image";
  auto on_disk = kind_of(rests) != "memory";
  if (on_disk)
    fs::copy(path, image, fs::copy_options::recursive);
  in.kill(*n.in);
  in.as(*n.in, [&] { n.runs.reset(); });
  in.bury(*n.in);
  if (!on_disk)
    return;
  fs::remove_all(path);
  fs::rename(image, path);
}

} // namespace millrace::sim
