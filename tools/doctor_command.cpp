// `millrace doctor`: what this machine grants a service, and how to grant what it does not.
#include <millrace/tools/doctor/doctor.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/text.hpp>

#include <algorithm>
#include <memory>
#include <ostream>

namespace millrace::tools {

namespace {

json to_json(const doctor::finding& f) {
  return {
    {"check", f.check},
    {"state", doctor::to_string(f.state)},
    {"value", f.value},
    {"remedy", f.remedy}};
}

void print(std::ostream& out, const std::vector<doctor::finding>& findings) {
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

int examine(invocation& call, const std::string& path) {
  doctor::machine here;
  here.path = path;
  auto findings = doctor::examine(here);
  if (!call.json) {
    print(call.out, findings);
    return exit_ok;
  }
  json all = json::array();
  for (auto& f : findings)
    all.push_back(to_json(f));
  print_json(call, all);
  return exit_ok;
}

} // namespace

void add_doctor_command(CLI::App& app, invocation& call) {
  auto path = std::make_shared<std::string>(".");
  auto* command =
    add_command(app, call, "doctor", "Report what this machine offers and lacks", [&call, path] {
      return examine(call, *path);
    });
  command->add_option("--path", *path, "directory whose file system is examined")
    ->type_name("DIR")
    ->capture_default_str();
}

} // namespace millrace::tools
