// Writes the configuration of a service, starts it and ends it.
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/common/service.hpp>
#include <millrace/config/load.hpp>
#include <millrace/runtime/node/node.hpp>

#include <csignal>
#include <cstdio>
#include <fstream>

namespace millrace::bench {

namespace {

// Touching the memory of a large service takes seconds.
constexpr int start_timeout_ms = 180'000;

std::string config_text(const std::string& address, const service_options& options) {
  auto text = "node: { name: " + to_string(options.kind) + ", listen: \"" + address +
    "\", log_level: error }\n";
  if (options.movers > 0)
    text += "transport: { movers: " + std::to_string(options.movers) + " }\n";
  text += "providers:\n  - { name: store, capacity: " + std::to_string(options.capacity_bytes);
  text += ", bucket: " + to_string(options.kind);
  if (!options.path.empty())
    text += ", path: \"" + options.path + "\"";
  return text + " }\n";
}

} // namespace

std::string to_string(service_kind kind) {
  switch (kind) {
  case service_kind::memory:
    return "memory";
  case service_kind::on_demand:
    return "on-demand";
  case service_kind::rocksdb:
    return "rocksdb";
  case service_kind::pmem:
    return "pmem";
  }
  return {};
}

service::service(const std::string& directory, const service_options& options) {
  auto name = to_string(options.kind);
  auto config = directory + "/" + name + ".yaml";
  address_ = "unix:" + directory + "/" + name + ".sock";
  std::ofstream{config} << config_text(address_, options);
  // Runs exactly this program, even if another one was built in its place meanwhile.
  process_ = need(child::start({"/proc/self/exe", "--serve", config}), "starting a service");
  auto ready = need(process_.read_line(start_timeout_ms), "starting the service " + name);
  if (ready != "ready")
    give_up("the service " + name + " does not start: " + ready);
  client_.emplace(connect());
}

int serve(const std::string& config_path) {
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  try {
    auto node = node::embed(config_path);
    std::puts("ready");
    std::fflush(stdout);
    int number = 0;
    sigwait(&ending, &number);
    node.stop();
    return 0;
  } catch (const error& e) {
    std::puts(e.what());
    return 1;
  }
}

} // namespace millrace::bench
