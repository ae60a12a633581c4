// Manual pages, in the language of man(7). Written by `millrace_manual`.
#pragma once

#include <millrace/config/schema.hpp>
#include <millrace/tools/manual/command_options.hpp>

#include <string>
#include <string_view>

namespace millrace::tools::manual {

/// A page under construction. Texts are wrapped, and characters that mean something to man(7) are
/// escaped. Words in backticks are printed bold.
class page {
public:
  /// `date`: "2026-11-26".
  page(std::string_view name, int section, std::string_view what, std::string_view date);

  void section(std::string_view title);
  void subsection(std::string_view title);
  void paragraph(std::string_view text);
  /// `tag`: the words that `text` explains.
  void item(std::string_view tag, std::string_view text);

  const std::string& text() const noexcept { return text_; }

private:
  std::string text_;
};

/// Returns the page of the program, or of one of its commands with those below it.
std::string command_page(const CLI::App& command, std::string_view date);

/// Returns millrace.yaml(5).
std::string configuration_page(const config::schema& all, std::string_view date);

} // namespace millrace::tools::manual
