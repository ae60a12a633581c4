// `millrace serve`: runs a node as a process until a signal stops it.
#include <millrace/config/place.hpp>
#include <millrace/core/log.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/service_manager.hpp>
#include <millrace/tools/signals.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <ostream>
#include <utility>

namespace millrace::tools {

namespace {

struct serve_options {
  std::string config_file;
  std::string node;
};

result<config::settings> settings_of(const serve_options& options) {
  auto loaded = options.config_file.empty() ? parse_configuration("", "defaults")
                                            : load_configuration(options.config_file);
  if (!loaded)
    return loaded;
  return config::pick_node(*loaded, options.node, config::surroundings::of_this_process());
}

// Every connection takes a descriptor, and so does every arena of a peer.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max)
    return;
  auto before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
    log().warn("limit of open files not raised limit={}", before);
}

void print_ready(invocation& call, const config::settings& settings, const node& running) {
  auto& addresses = running.addresses();
  auto& down = running.down();
  if (call.json) {
    json providers = json::array();
    for (auto& p : settings.providers) {
      providers.push_back(to_json(p));
      if (auto why = down.find(p.name); why != down.end())
        providers.back()["down"] = to_json(why->second);
    }
    // One line, so that the program that started the service can read one line and know that it is
    // ready.
    call.out << json{{"ready",
                      {{"node", settings.node.name},
                       {"address", addresses.front()},
                       {"addresses", addresses},
                       {"pid", getpid()},
                       {"providers", providers},
                       {"data", data_to_json(settings.options)}}}}
                  .dump(-1, ' ', false, json::error_handler_t::replace)
             << std::endl;
    return;
  }
  std::string providers;
  for (auto& p : settings.providers)
    providers += " " + describe(p) + (down.contains(p.name) ? " (down)" : "");
  std::string served;
  if (!providers.empty())
    served = " providers" + providers;
  if (auto data = describe_data(settings.options); !data.empty())
    served += " " + data;
  call.out << "millrace: node " << settings.node.name << " ready on " << joined(addresses) << served
           << std::endl;
}

// What `systemctl status` shows.
std::string standing_of(const config::settings& settings, const node& running) {
  auto text = fmt::format("node {} on {}", settings.node.name, joined(running.addresses()));
  for (auto& [provider, why] : running.down())
    text += fmt::format("; provider {} is down: {}", provider, why.to_string());
  return text;
}

int serve(invocation& call, const serve_options& options) {
  auto& signals = stop_signals::install();
  auto settings = settings_of(options);
  if (!settings)
    return report(call, {settings.error(), exit_usage});
  configure_log(settings->node.log_level);
  raise_file_limit();
  auto found = service_manager::of_this_process();
  if (!found)
    return report(call, {found.error(), exit_usage});
  auto manager = std::make_shared<service_manager>(std::move(*found));
  manager->starting("opening the providers of node " + settings->node.name);
  auto node = node::start(*settings);
  if (!node)
    return report(call, node.error());
  if (auto interval_ms = manager->watchdog_interval_ms(); interval_ms > 0)
    node->repeat(interval_ms, [manager] { manager->alive(); });
  manager->ready(standing_of(*settings, *node));
  print_ready(call, *settings, *node);
  auto number = signals.wait();
  log().info("stopping node={} signal={}", settings->node.name, number);
  manager->stopping(fmt::format("node {} stops after signal {}", settings->node.name, number));
  node->stop();
  return exit_ok;
}

} // namespace

void add_serve_command(CLI::App& app, invocation& call) {
  auto [command, options] =
    add_command<serve_options>(app, call, "serve", "Run a service until SIGTERM or SIGINT", serve);
  command->add_option("-c,--config", options->config_file, "configuration (default: one node)")
    ->type_name("FILE");
  command->add_option("--node", options->node, "which of the nodes in the file to be")
    ->type_name("NAME");
}

} // namespace millrace::tools
