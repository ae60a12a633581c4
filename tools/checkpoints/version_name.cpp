// Parses the names of versions, and makes the names of files.
#include <millrace/tools/checkpoints/version_name.hpp>

#include <charconv>

namespace millrace::tools {

namespace {

constexpr std::string_view mark = "{rank}";

} // namespace

version_name parse_version_name(const std::string& text) {
  auto at = text.rfind('@');
  if (at == std::string::npos || at == 0)
    return {text, std::nullopt};
  std::uint64_t step = 0;
  auto* end = text.data() + text.size();
  auto [stopped, bad] = std::from_chars(text.data() + at + 1, end, step);
  if (bad != std::errc{} || stopped != end)
    return {text, std::nullopt};
  return {text.substr(0, at), step};
}

status explain_name(const status& why, const std::string& text) {
  auto at = text.rfind('@');
  if (why.code() != errc::not_found || at == std::string::npos || at == 0)
    return why;
  auto step = text.substr(at + 1);
  if (parse_version_name(text).step)
    return {why.code(), "{}; name a model without its step", why.detail()};
  return {why.code(), "{}, and '{}' is no step: a step is a number", why.detail(), step};
}

std::string file_of_rank(const std::string& pattern, std::uint32_t rank) {
  auto number = std::to_string(rank);
  auto file = pattern;
  for (auto at = file.find(mark); at != std::string::npos; at = file.find(mark, at + number.size()))
    file.replace(at, mark.size(), number);
  return file;
}

result<std::vector<std::pair<std::uint32_t, std::string>>> files_of_ranks(
  const std::string& pattern, std::optional<std::uint32_t> rank, std::uint32_t world_size) {
  std::vector<std::pair<std::uint32_t, std::string>> files;
  if (rank || world_size == 1) {
    if (rank.value_or(0) >= world_size)
      return fail(
        errc::invalid_argument, "there is no rank {} in a world of {}", *rank, world_size);
    files.emplace_back(rank.value_or(0), file_of_rank(pattern, rank.value_or(0)));
    return files;
  }
  if (pattern.find(mark) == std::string::npos)
    return fail(
      errc::invalid_argument,
      "there are {} ranks: name one with --rank, or write {{rank}} into the file's name",
      world_size);
  for (std::uint32_t i = 0; i < world_size; ++i)
    files.emplace_back(i, file_of_rank(pattern, i));
  return files;
}

} // namespace millrace::tools
