// Tests that manual pages and completions say what `--help` says.
#include "run.hpp"

#include <millrace/runtime/configuration.hpp>
#include <millrace/tools/command.hpp>
#include <millrace/tools/manual/completion.hpp>
#include <millrace/tools/manual/page.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>

using namespace millrace::tools;
using millrace::testing::run;

namespace {

struct program {
  CLI::App app;
  invocation call{std::cout, std::cerr, {}};
  program() { add_commands(app, call); }
};

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (auto at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

// Returns the words alone, one space between them.
std::string words_of(const std::string& text) {
  std::istringstream in{text};
  std::string out;
  for (std::string word; in >> word;)
    out += (out.empty() ? "" : " ") + word;
  return out;
}

std::string read_page(std::string text) {
  constexpr std::pair<const char*, const char*> escapes[] = {
    {"\\fB", ""},    {"\\fR", ""},   {"\\&", ""},    {"\\-", "-"}, {"\\(aq", "'"},
    {"\\(dq", "\""}, {"\\(ha", "^"}, {"\\(ti", "~"}, {"\\e", "\\"}};
  for (auto& [escape, by] : escapes)
    replace_all(text, escape, by);
  return words_of(text);
}

void expect_options(const CLI::App& command, const std::string& page) {
  for (auto& option : manual::options_of(command)) {
    for (auto& name : option.names)
      BOOST_TEST(page.find(name) != page.npos, name << " is missing in " << page);
    auto meaning = option.meaning;
    std::erase(meaning, '`');
    BOOST_TEST(page.find(words_of(meaning)) != page.npos, meaning << " is missing in " << page);
  }
}

} // namespace

BOOST_AUTO_TEST_SUITE(manuals)

BOOST_AUTO_TEST_CASE(a_page_has_every_command_and_option_of_the_help) {
  program p;
  for (auto* command : manual::commands_below(p.app)) {
    auto help = run({command->get_name(), "--help"}).out;
    auto page = read_page(manual::command_page(*command, "2026-01-31"));
    BOOST_TEST(page.find("millrace-" + command->get_name() + " - ") != page.npos, page);
    expect_options(*command, page);
    for (auto& option : manual::options_of(*command))
      for (auto& name : option.names)
        BOOST_TEST(help.find(name) != help.npos, name << " is missing in " << help);
    for (auto* below : manual::commands_below(*command)) {
      BOOST_TEST(page.find(manual::full_name(*below) + " [OPTIONS]") != page.npos, page);
      BOOST_TEST(page.find(words_of(below->get_description())) != page.npos, page);
      expect_options(*below, page);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_programs_page_leads_to_those_of_its_commands) {
  program p;
  auto page = read_page(manual::command_page(p.app, "2026-01-31"));
  BOOST_TEST(page.starts_with(".TH MILLRACE 1 2026-01-31 \"Millrace "), page);
  for (auto* command : manual::commands_below(p.app))
    BOOST_TEST(page.find("See millrace-" + command->get_name() + "(1)") != page.npos, page);
}

BOOST_AUTO_TEST_CASE(the_configurations_page_has_every_key_and_its_meaning) {
  auto& schema = millrace::configuration_schema();
  auto page = read_page(manual::configuration_page(schema, "2026-01-31"));
  auto rows = millrace::config::key_rows(schema);
  BOOST_TEST(rows.size() > 100u);
  for (auto& row : rows) {
    auto meaning = row.meaning;
    std::erase(meaning, '`');
    BOOST_TEST(page.find(".TP " + row.path + " ") != page.npos, row.path << " is missing");
    BOOST_TEST(page.find(words_of(meaning)) != page.npos, meaning << " is missing");
  }
}

BOOST_AUTO_TEST_CASE(no_text_of_a_page_becomes_a_request) {
  manual::page p{"x", 1, "what", "2026-01-31"};
  p.section("S");
  p.paragraph(".so /etc/passwd");
  p.item("'tag", "'br and \\n and `bold-face`");
  auto& text = p.text();
  BOOST_TEST(
    text.ends_with(".SH S\n\\&.so /etc/passwd\n.TP\n\\(aqtag\n\\(aqbr and \\en and "
                   "\\fBbold\\-face\\fR\n"),
    text);
}

BOOST_AUTO_TEST_CASE(lines_of_a_page_are_short) {
  std::istringstream page{
    manual::configuration_page(millrace::configuration_schema(), "2026-01-31")};
  for (std::string line; std::getline(page, line);)
    BOOST_TEST(line.size() <= 80u, line);
}

BOOST_AUTO_TEST_CASE(completions_know_every_command_and_option) {
  program p;
  for (auto& script : {manual::bash_completion(p.app), manual::zsh_completion(p.app)})
    for (auto* command : manual::commands_below(p.app)) {
      auto place = "'" + (" " + command->get_name()) + "')";
      BOOST_TEST(script.find(place) != script.npos, place << " is missing in " << script);
      for (auto& option : manual::options_of(*command))
        for (auto& name : option.names)
          BOOST_TEST(script.find(name) != script.npos, name << " is missing in " << script);
    }
}

BOOST_AUTO_TEST_SUITE_END()
