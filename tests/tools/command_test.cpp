// Tests command lines that need no service: what they print, and how they fail.
#include "run.hpp"

#include <millrace/runtime/configuration.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

using namespace millrace;
using millrace::testing::run;
using nlohmann::json;

namespace {

std::string usage_error(std::vector<std::string> arguments) {
  auto o = run(std::move(arguments));
  BOOST_TEST(o.code == 2);
  BOOST_TEST(o.out.empty(), o.out);
  BOOST_TEST(std::count(o.err.begin(), o.err.end(), '\n') == 1, o.err);
  return o.err;
}

} // namespace

BOOST_AUTO_TEST_SUITE(command_lines)

BOOST_AUTO_TEST_CASE(arguments_that_make_no_sense_get_one_line_and_exit_2) {
  BOOST_TEST(usage_error({}) == "millrace: A subcommand is required; see millrace --help\n");
  BOOST_TEST(
    usage_error({"stats"}) ==
    "millrace: no command 'stats'; did you mean 'status'?; see millrace --help\n");
  auto lst = usage_error({"models", "lst"});
  BOOST_TEST(lst.starts_with("millrace: models: no command 'lst'"), lst);
  BOOST_TEST(lst.ends_with("; see millrace models --help\n"), lst);
  BOOST_TEST(
    usage_error({"data", "verify", "digits", "--epoch", "3"}) ==
    "millrace: data verify: --epoch requires --seed; see millrace data verify --help\n");
  for (auto* wrong : {"-1", "x", "4294967296"}) {
    auto said = usage_error({"data", "preload", "a", "b.npy", "--servers", wrong});
    BOOST_TEST(said.starts_with("millrace: data preload: --servers: "), said);
    BOOST_TEST(said.size() < 160u, said);
  }
  auto none = usage_error({"data", "preload", "a", "b.npy", "--image-pixels-max", "0"});
  BOOST_TEST(none.find("0 is not between 1 and 18446744073709551615") != std::string::npos, none);
  BOOST_TEST(usage_error({"data", "append", "a"}).find("FILE is required") != std::string::npos);
  BOOST_TEST(usage_error({"serve", "--frob"}).find("--frob") != std::string::npos);
  BOOST_TEST(
    usage_error({"serve", "--cofig", "a.yaml"}) ==
    "millrace: serve: no option --cofig; did you mean '--config'?; see millrace serve --help\n");
  auto long_name = std::string(1 << 20, 'x');
  BOOST_TEST(usage_error({"status", "--timeout", long_name}).size() < 4096u);
  BOOST_TEST(usage_error({long_name}).size() < 4096u);
  BOOST_TEST(
    usage_error({"status", "--timeout", "5"}).find("did you mean '5s'?") != std::string::npos);
  BOOST_TEST(usage_error({"models", "rm"}).find("MODEL") != std::string::npos);
  BOOST_TEST(
    usage_error({"status", "--address", "tls://a:1"}) ==
    "millrace: status: --address tls://a:1: name the cluster's secret with --secret FILE, or a "
    "configuration that does with -c FILE\n");
  BOOST_TEST(
    usage_error({"status", "--timeout", "5"}).starts_with("millrace: status: --timeout: "));
  BOOST_TEST(usage_error({"status", "--address", "tcp://a"}).starts_with("millrace: status: "));
  BOOST_TEST(
    usage_error({"models", "ls", "-c", "/absent.yaml"}) ==
    "millrace: models ls: opening the configuration /absent.yaml: No such file or directory\n");
}

struct file_of {
  std::string path = std::filesystem::temp_directory_path() /
    ("millrace-command-test-" + std::to_string(::getpid()) + ".yaml");
  explicit file_of(const std::string& text) { std::ofstream{path} << text; }
  ~file_of() { std::filesystem::remove(path); }
};

BOOST_AUTO_TEST_CASE(config_check_warns_of_a_small_reserve_of_the_index) {
  file_of file{
    "providers:\n  - { name: small, bucket: rocksdb, path: /k, index_reserve: 16MiB }\n"
    "  - { name: usual, bucket: rocksdb, path: /l }\n  - { name: none, capacity: 16MiB }\n"};
  auto o = run({"config", "check", file.path});
  BOOST_TEST(o.code == 0);
  BOOST_TEST(o.out.find("warning: provider small: index_reserve is 16MiB") != o.out.npos, o.out);
  auto checked = json::parse(run({"config", "check", "--json", file.path}).out);
  BOOST_TEST(checked.at("warnings").size() == 1u);
}

BOOST_AUTO_TEST_CASE(config_check_shows_a_data_server) {
  file_of file{"{node: {listen: 'unix:/s'}, data: {capacity: 1GiB}}"};
  auto text = run({"config", "check", file.path}).out;
  BOOST_TEST(text.ends_with(" data server (1GiB)\n"), text);
  auto node = json::parse(run({"config", "check", "--json", file.path}).out).at("nodes").at(0);
  BOOST_TEST(node.at("data").at("capacity_bytes") == 1 << 30);
  file_of without{"{node: {listen: 'unix:/s'}}"};
  BOOST_TEST(json::parse(run({"config", "check", "--json", without.path}).out)
               .at("nodes")
               .at(0)
               .at("data")
               .is_null());
}

BOOST_AUTO_TEST_CASE(config_check_looks_up_users) {
  for (auto* key :
       {"node: { allow_users: [nosuchuser], socket_mode: '0666' }",
        "client: { trust_users: [nosuchuser] }"}) {
    file_of file{key};
    auto why = usage_error({"config", "check", file.path});
    BOOST_TEST(why.find("no user \"nosuchuser\"") != std::string::npos, why);
  }
}

BOOST_AUTO_TEST_CASE(config_show_prints_values_and_where_they_come_from) {
  file_of file{"staging: { size: 1GiB }\n"
               "limits:\n"
               "  stores_max: 7\n"
               "providers:\n"
               "  - { name: a, capacity: 2GiB }\n"
               "node: { listen: 'unix:/tmp/n.sock' }\n"};
  auto o = run({"config", "show", file.path, "--json"});
  BOOST_TEST_REQUIRE(o.code == 0, o.err);
  std::map<std::string, std::pair<std::string, std::string>> shown;
  auto printed = json::parse(o.out);
  for (auto& k : printed.at("keys"))
    shown[k.at("key").get<std::string>()] = {
      k.at("value").get<std::string>(), k.at("origin").get<std::string>()};
  auto is = [&](const std::string& key, const std::string& value, const std::string& origin) {
    BOOST_TEST_REQUIRE(shown.contains(key), key);
    BOOST_TEST(shown[key].first == value);
    BOOST_TEST(shown[key].second == origin);
  };
  is("staging.size", "1GiB", file.path + ":1");
  is("limits.stores_max", "7", file.path + ":3");
  is("providers[0].capacity", "2GiB", file.path + ":5");
  is("providers[0].group", "default", "default");
  is("node.listen", "[unix:/tmp/n.sock]", file.path + ":6");
  is("node.name", "n0", "default");
  BOOST_TEST(!shown.contains("limits.loads_max"));
  auto everything = run({"config", "show", file.path, "--all"});
  BOOST_TEST(everything.code == 0);
  BOOST_TEST(everything.out.find("limits.loads_max") != std::string::npos);
  BOOST_TEST(run({"config", "show"}).out.find("staging.size") != std::string::npos);
  usage_error({"config", "show", "/absent.yaml"});
}

BOOST_AUTO_TEST_CASE(errors_are_json_where_that_is_asked_for) {
  auto error = json::parse(usage_error({"models", "rm", "--json"})).at("error");
  BOOST_TEST(error.at("code") == "invalid_argument");
  BOOST_TEST(!error.at("detail").get<std::string>().empty());
  error = json::parse(usage_error({"config", "check", "/absent.yaml", "--json"})).at("error");
  BOOST_TEST(error.at("code") == "not_found");
}

BOOST_AUTO_TEST_CASE(the_environment_names_the_service) {
  ::setenv("MILLRACE_ADDRESS", "unix:/absent-of-environment.sock", 1);
  auto absent = run({"models", "ls", "--timeout", "100ms"});
  auto given = run({"models", "ls", "--timeout", "100ms", "--address", "unix:/absent-given.sock"});
  ::setenv("MILLRACE_ADDRESS", "tcp://a", 1);
  auto wrong = usage_error({"models", "ls"});
  ::unsetenv("MILLRACE_ADDRESS");
  BOOST_TEST(absent.code == 1);
  BOOST_TEST(absent.err.find("/absent-of-environment.sock") != std::string::npos, absent.err);
  BOOST_TEST(given.err.find("/absent-given.sock") != std::string::npos, given.err);
  BOOST_TEST(wrong.starts_with("millrace: models ls: MILLRACE_ADDRESS: "), wrong);
}

BOOST_AUTO_TEST_CASE(a_service_that_is_not_there_is_named_and_gives_exit_1) {
  auto o = run({"models", "ls", "--address", "unix:/absent/millrace.sock"});
  BOOST_TEST(o.code == 1);
  BOOST_TEST(
    o.err.starts_with("millrace: models ls: connecting to unix:/absent/millrace.sock: "), o.err);
  BOOST_TEST(std::count(o.err.begin(), o.err.end(), '\n') == 1, o.err);
}

BOOST_AUTO_TEST_CASE(every_command_has_a_manual_and_takes_json) {
  for (std::vector<std::string> command : std::vector<std::vector<std::string>>{
         {"serve"},
         {"status"},
         {"models", "ls"},
         {"models", "describe"},
         {"models", "rm"},
         {"models", "pin"},
         {"models", "unpin"},
         {"checkpoints", "ls"},
         {"checkpoints", "view"},
         {"checkpoints", "verify"},
         {"checkpoints", "dump"},
         {"checkpoints", "load"},
         {"checkpoints", "rm"},
         {"checkpoints", "repack"},
         {"data", "preload"},
         {"data", "ls"},
         {"data", "describe"},
         {"data", "verify"},
         {"data", "unload"},
         {"pool", "create"},
         {"pool", "check"},
         {"pool", "info"},
         {"cluster", "secret"},
         {"cluster", "nodes"},
         {"config", "check"},
         {"config", "show"},
         {"config", "defaults"},
         {"config", "schema"},
         {"doctor"},
         {"predict", "broadcast"}}) {
    command.push_back("--help");
    auto o = run(command);
    BOOST_TEST(o.code == 0);
    BOOST_TEST((o.out.find("--json") != std::string::npos), o.out);
  }
  BOOST_TEST(run({"--version"}).out.starts_with("millrace "));
}

BOOST_AUTO_TEST_CASE(the_example_configurations_are_good) {
  std::size_t files = 0;
  for (auto& entry : std::filesystem::directory_iterator{MILLRACE_EXAMPLE_CONFIGS}) {
    if (entry.path().extension() != ".yaml")
      continue;
    ++files;
    auto o = run({"config", "check", entry.path().string()});
    BOOST_TEST(o.code == 0, o.err);
    BOOST_TEST(o.out.starts_with(entry.path().string() + ": ok, "), o.out);
  }
  BOOST_TEST(files >= 2u);
  auto three = std::string{MILLRACE_EXAMPLE_CONFIGS} + "/three-nodes.yaml";
  auto checked = json::parse(run({"config", "check", "--json", "-c", three}).out);
  BOOST_TEST(checked.at("ok") == true);
  BOOST_TEST(checked.at("nodes").size() == 3u);
  BOOST_TEST(
    checked.at("nodes").at(2).at("providers").at(0).at("path") == "/var/lib/millrace/kept");
}

BOOST_AUTO_TEST_CASE(the_printed_defaults_are_the_defaults) {
  auto empty = parse_configuration("", "empty").value();
  for (auto& text : {run({"config", "defaults"}).out, run({"config", "defaults", "--json"}).out}) {
    auto parsed = parse_configuration(text, "defaults");
    BOOST_TEST_REQUIRE(parsed.has_value(), text);
    BOOST_TEST((*parsed == empty));
  }
  auto text = run({"config", "defaults"}).out;
  for (auto& key : configuration_schema().keys())
    if (!key.section.starts_with("cluster"))
      BOOST_TEST((text.find(std::string{key.spec.name} + ": ") != text.npos), key.path());
}

BOOST_AUTO_TEST_CASE(the_schema_is_json) {
  BOOST_TEST(json::parse(run({"config", "schema"}).out).at("properties").contains("staging"));
}

namespace {

// Returns the words that a help text lists under a heading: commands, or options as "--name".
std::vector<std::string> listed_in(const std::string& help, const std::string& heading) {
  std::istringstream lines{help};
  std::vector<std::string> found;
  auto inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(" ")) {
      inside = line.starts_with(heading);
      continue;
    }
    std::istringstream names{
      line.substr(0, line.find_first_of(" \t", line.find_first_not_of(' ')))};
    for (std::string name; inside && std::getline(names >> std::ws, name, ',');)
      found.push_back(name);
  }
  return found;
}

// Calls `check` with every command, as words, and its help.
template <class F>
void walk_commands(std::vector<std::string> words, F check) {
  auto asked = words;
  asked.emplace_back("--help");
  auto help = run(asked).out;
  check(words, help);
  for (auto& command : listed_in(help, "Subcommands:")) {
    auto more = words;
    more.push_back(command);
    walk_commands(more, check);
  }
}

// Returns the sections of a manual by their headings.
std::map<std::string, std::string> sections_of(const std::string& manual) {
  std::map<std::string, std::string> out;
  std::istringstream lines{manual};
  std::string heading;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## "))
      heading = line;
    out[heading] += line + '\n';
  }
  return out;
}

} // namespace

BOOST_AUTO_TEST_CASE(the_manual_knows_every_command_and_option) {
  std::ifstream file{MILLRACE_CLI_DOC};
  std::string manual{std::istreambuf_iterator<char>{file}, {}};
  auto sections = sections_of(manual);
  auto shared = sections["## What all commands share"];
  std::size_t commands = 0, options = 0;
  walk_commands({}, [&](const std::vector<std::string>& words, const std::string& help) {
    auto is_group = !listed_in(help, "Subcommands:").empty();
    std::string command = "`millrace";
    for (auto& word : words)
      command += " " + word;
    std::string section;
    for (auto& [heading, text] : sections)
      if (text.find(command + " ") != text.npos || text.find(command + "`") != text.npos)
        section += text;
    BOOST_TEST((is_group || !section.empty()), command << " has no section");
    commands += !is_group;
    // A short name and a long one are one option: either is enough.
    std::istringstream lines{help};
    for (std::string line; std::getline(lines, line);) {
      auto at = line.find_first_not_of(' ');
      if (at == 0 || at == line.npos || line[at] != '-')
        continue;
      auto names = line.substr(at, line.find_first_of(" \t", at) - at);
      auto known = false;
      std::istringstream each{names};
      for (std::string name; std::getline(each, name, ',');)
        known |= (section + shared).find(name) != std::string::npos;
      BOOST_TEST(known, command << " has " << names << ", of which the manual says nothing");
      ++options;
    }
  });
  BOOST_TEST(commands >= 32u);
  BOOST_TEST(options >= 80u);
}

BOOST_AUTO_TEST_SUITE_END()
