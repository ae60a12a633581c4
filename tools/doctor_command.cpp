// `millrace doctor`: shows what this machine grants a service, and how to grant what is missing.
#include <millrace/config/place.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/tools/doctor/cluster_checks.hpp>
#include <millrace/tools/doctor/doctor.hpp>
#include <millrace/tools/doctor/gpu_checks.hpp>
#include <millrace/tools/doctor/verbs_checks.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/text.hpp>

#include <algorithm>
#include <ostream>

namespace millrace::tools {

namespace {

json finding_json(const doctor::finding& f) {
  return {
    {"check", f.check},
    {"state", doctor::to_string(f.state)},
    {"value", f.value},
    {"remedy", f.remedy}};
}

void print_findings(std::ostream& out, const std::vector<doctor::finding>& findings) {
  std::size_t width = 0;
  for (auto& f : findings)
    width = std::max(width, f.check.size());
  for (auto& f : findings) {
    std::string state{doctor::to_string(f.state)};
    out << state << std::string(9 - state.size(), ' ') << f.check
        << std::string(width + 2 - f.check.size(), ' ') << printable(f.value) << '\n';
    if (!f.remedy.empty())
      out << std::string(9 + width + 2, ' ') << "→ " << printable(f.remedy) << '\n';
  }
}

struct doctor_options {
  std::string path = ".";
  std::string config_file;
};

int examine(invocation& call, const doctor_options& options) {
  doctor::machine here;
  here.path = options.path;
  auto findings = doctor::examine(here);
  auto add = [&](std::vector<doctor::finding> more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  auto settings = options.config_file.empty() ? parse_configuration("", "defaults")
                                              : load_configuration(options.config_file);
  if (!settings)
    return report(call, {settings.error(), exit_usage});
  auto ports = transport::describe_verbs_devices(settings->options.of<transport::verbs_options>());
  add(doctor::examine_verbs(ports));
  add(doctor::examine_gpus(doctor::find_gpus(), ports));
  if (!options.config_file.empty()) {
    auto own = config::pick_node(*settings, {}, config::surroundings::of_this_process());
    if (own)
      add({doctor::check_sizes(*own, here)});
    add(doctor::examine_cluster(
      *settings, own ? own->node.name : std::string{}, doctor::network_calls::real()));
  }
  if (!call.json) {
    print_findings(call.out, findings);
    return exit_ok;
  }
  json all = json::array();
  for (auto& f : findings)
    all.push_back(finding_json(f));
  print_json(call, all);
  return exit_ok;
}

} // namespace

void add_doctor_command(CLI::App& app, invocation& call) {
  auto [command, options] = add_command<doctor_options>(
    app, call, "doctor", "Report what this machine offers and lacks", examine);
  command->add_option("--path", options->path, "directory whose file system is examined")
    ->type_name("DIR")
    ->capture_default_str();
  command
    ->add_option(
      "-c,--config", options->config_file,
      "examine the files, hosts and ports of this configuration, too")
    ->type_name("FILE");
}

} // namespace millrace::tools
