// Renders what the parser and the schema say as manual pages.
#include <millrace/tools/manual/page.hpp>
#include <millrace/version.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <utility>

namespace millrace::tools::manual {

namespace {

std::string escaped(std::string_view text) {
  std::string out;
  bool bold = false;
  for (char c : text)
    switch (c) {
    case '`':
      out += std::exchange(bold, !bold) ? "\\fR" : "\\fB";
      break;
    case '\\':
      out += "\\e";
      break;
    case '-':
      out += "\\-";
      break;
    case '\'':
      out += "\\(aq";
      break;
    case '"':
      out += "\\(dq";
      break;
    case '^':
      out += "\\(ha";
      break;
    case '~':
      out += "\\(ti";
      break;
    default:
      out += c;
    }
  return out;
}

// Returns lines of at most 72 bytes, as far as words allow. A dot that begins a line is escaped, or
// it would be a request.
std::string wrapped(std::string_view text) {
  constexpr std::size_t line_max = 72;
  std::istringstream words{escaped(text)};
  std::string out, line;
  auto end_line = [&] {
    if (!line.empty())
      out += (line.starts_with('.') ? "\\&" : "") + line + "\n";
    line.clear();
  };
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > line_max)
      end_line();
    line += (line.empty() ? "" : " ") + word;
  }
  end_line();
  return out;
}

std::string upper(std::string_view text) {
  std::string out{text};
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

// Returns "millrace-models" for "millrace models".
std::string page_name(const CLI::App& command) {
  auto name = full_name(command);
  std::ranges::replace(name, ' ', '-');
  return name;
}

// Returns "`-c`, `--config` FILE".
std::string tag_of(const command_option& option) {
  std::string tag = option.argument;
  for (auto& name : option.names)
    tag += (tag.empty() ? "`" : ", `") + name + "`";
  return option.value.empty() ? tag : tag + " " + option.value;
}

// Returns "`millrace models rm` [OPTIONS] MODEL".
std::string usage_of(const CLI::App& command) {
  auto usage = "`" + full_name(command) + "` [OPTIONS]";
  for (auto& option : options_of(command))
    if (!option.argument.empty())
      usage += option.required ? " " + option.argument : " [" + option.argument + "]";
  return commands_below(command).empty() ? usage : usage + " COMMAND";
}

void add_options(page& to, const CLI::App& command) {
  for (auto& option : options_of(command))
    to.item(tag_of(option), option.meaning);
}

// The commands have a page each, and those below them a part of it.
void add_commands_below(page& to, const CLI::App& command) {
  auto below = commands_below(command);
  if (below.empty())
    return;
  to.section("COMMANDS");
  for (auto* one : below) {
    if (!command.get_parent()) {
      to.item(
        "`" + one->get_name() + "`", one->get_description() + ". See " + page_name(*one) + "(1)");
      continue;
    }
    to.subsection(full_name(*one));
    to.paragraph(usage_of(*one));
    to.paragraph(one->get_description() + ".");
    add_options(to, *one);
  }
}

} // namespace

page::page(std::string_view name, int section, std::string_view what, std::string_view date)
  : text_(fmt::format(
      ".TH {} {} {} \"Millrace {}\" \"Millrace\"\n.SH NAME\n{}", escaped(upper(name)), section,
      date, version, wrapped(fmt::format("{} - {}", name, what)))) {}

void page::section(std::string_view title) { text_ += fmt::format(".SH {}\n", escaped(title)); }

void page::subsection(std::string_view title) { text_ += fmt::format(".SS {}\n", escaped(title)); }

void page::paragraph(std::string_view text) {
  // One behind a heading begins without a request.
  auto last_line = std::string_view{text_}.substr(text_.rfind('\n', text_.size() - 2) + 1);
  bool follows_heading = last_line.starts_with(".SH ") || last_line.starts_with(".SS ");
  text_ += (follows_heading ? "" : ".PP\n") + wrapped(text);
}

void page::item(std::string_view tag, std::string_view text) {
  text_ += ".TP\n" + escaped(tag) + "\n" + wrapped(text);
}

std::string command_page(const CLI::App& command, std::string_view date) {
  page p{page_name(command), 1, command.get_description(), date};
  p.section("SYNOPSIS");
  p.paragraph(usage_of(command));
  p.section("OPTIONS");
  add_options(p, command);
  add_commands_below(p, command);
  p.section("EXIT STATUS");
  p.item("0", "The command is done.");
  p.item("1", "The operation failed.");
  p.item("2", "The arguments or the configuration are wrong. Nothing was tried.");
  p.section("SEE ALSO");
  p.paragraph(
    command.get_parent() ? "`millrace`(1), `millrace.yaml`(5)"
                         : "`millrace.yaml`(5). Programs use the services by `millrace.h`, which "
                           "has the interface in C.");
  return p.text();
}

std::string configuration_page(const config::schema& all, std::string_view date) {
  page p{"millrace.yaml", 5, "configuration of Millrace", date};
  p.section("DESCRIPTION");
  p.paragraph(
    "The configuration of services and clients is a file in YAML. `millrace serve -c FILE` runs a "
    "service by it, and `millrace config check -c FILE` reports its mistakes. `[]` stands for each "
    "entry of a list.");
  for (bool expert : {false, true}) {
    p.section(expert ? "EXPERT KEYS" : "KEYS");
    for (auto& row : config::key_rows(all)) {
      if (row.expert != expert)
        continue;
      auto text = fmt::format("{}. Type: {}.", row.meaning, row.type);
      if (row.initial != "see meaning")
        text += row.initial == "required" ? " Required." : " Default: " + row.initial + ".";
      if (!row.range.empty())
        text += " Range: " + row.range + ".";
      p.item("`" + row.path + "`", text);
    }
  }
  p.section("SEE ALSO");
  p.paragraph("`millrace`(1), `millrace-config`(1), `millrace-serve`(1)");
  return p.text();
}

} // namespace millrace::tools::manual
