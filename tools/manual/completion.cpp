// Renders the tables of commands and options as branches of a shell's `case`.
#include <millrace/tools/manual/completion.hpp>

#include <fmt/format.h>

namespace millrace::tools::manual {

namespace {

// The branches of three `case`s. A place is a command as typed behind the program: " models rm".
struct branches {
  std::string commands; // of the place and the next word: the word names a command
  std::string values;   // of the place and the word before the cursor: an option with a value
  std::string words;    // of the place: what may stand there
};

struct shell {
  std::string_view files;      // completes names of files
  std::string_view words;      // completes the words that `{}` stands for
  std::string_view also_files; // adds names of files
};

void add(branches& to, const shell& s, const CLI::App& command, const std::string& place) {
  std::string words;
  bool takes_files = false;
  for (auto* below : commands_below(command)) {
    auto next = place + " " + below->get_name();
    to.commands += fmt::format("      '{}') at=\"$at ${{word}}\" ;;\n", next);
    words += (words.empty() ? "" : " ") + below->get_name();
    add(to, s, *below, next);
  }
  for (auto& option : options_of(command)) {
    for (auto& name : option.names) {
      words += (words.empty() ? "" : " ") + name;
      if (option.takes_value)
        to.values +=
          fmt::format("    '{} {}') {}return ;;\n", place, name, option.is_path() ? s.files : "");
    }
    takes_files |= !option.argument.empty() && option.is_path();
  }
  to.words += fmt::format(
    "    '{}') {}{} ;;\n", place, fmt::format(fmt::runtime(s.words), words),
    takes_files ? s.also_files : "");
}

} // namespace

std::string bash_completion(const CLI::App& program) {
  branches all;
  add(
    all,
    {"COMPREPLY=($(compgen -f -- \"$cur\")); ", "COMPREPLY=($(compgen -W '{}' -- \"$cur\"))",
     "; COMPREPLY+=($(compgen -f -- \"$cur\"))"},
    program, "");
  return fmt::format(
    R"(# Completion of millrace for bash.
_millrace() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} at= word
  COMPREPLY=()
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$at $word" in
{}    esac
  done
  case "$at ${{COMP_WORDS[COMP_CWORD-1]}}" in
{}  esac
  case "$at" in
{}  esac
}}
complete -o filenames -F _millrace millrace
)",
    all.commands, all.values, all.words);
}

std::string zsh_completion(const CLI::App& program) {
  branches all;
  add(all, {"_files; ", "compadd -- {}", "; _files"}, program, "");
  return fmt::format(
    R"(#compdef millrace
# Completion of millrace for zsh.
_millrace() {{
  local at= word
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "$at $word" in
{}    esac
  done
  case "$at ${{words[CURRENT-1]}}" in
{}  esac
  case "$at" in
{}  esac
}}
_millrace "$@"
)",
    all.commands, all.values, all.words);
}

} // namespace millrace::tools::manual
