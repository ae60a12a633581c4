// millrace_manual FOLDER DATE: writes what is installed beside the program and told by it: manual
// pages, completions, a configuration of nothing but defaults. Run by the build.
#include <millrace/runtime/configuration.hpp>
#include <millrace/tools/command.hpp>
#include <millrace/tools/manual/completion.hpp>
#include <millrace/tools/manual/page.hpp>

#include <filesystem>
#include <fstream>
#include <iostream>

namespace fs = std::filesystem;
using namespace millrace::tools;

namespace {

void write(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream file{path};
  file.exceptions(std::ios::failbit | std::ios::badbit);
  file << text << std::flush;
}

void write_all(const fs::path& folder, std::string_view date) {
  CLI::App program;
  invocation call{std::cout, std::cerr, {}};
  add_commands(program, call);
  write(folder / "man1/millrace.1", manual::command_page(program, date));
  for (auto* command : manual::commands_below(program))
    write(
      folder / "man1" / ("millrace-" + command->get_name() + ".1"),
      manual::command_page(*command, date));
  auto& schema = millrace::configuration_schema();
  write(folder / "man5/millrace.yaml.5", manual::configuration_page(schema, date));
  write(folder / "completion/millrace", manual::bash_completion(program));
  write(folder / "completion/_millrace", manual::zsh_completion(program));
  write(folder / "millrace.yaml", millrace::config::default_yaml(schema));
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: millrace_manual FOLDER DATE\n";
    return exit_usage;
  }
  try {
    write_all(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::cerr << "millrace_manual: " << argv[1] << ": " << error.what() << '\n';
    return exit_failed;
  }
  return exit_ok;
}
