// Expands the first braces of a text, and what follows them once for all of their names.
#include <millrace/storage/samples/name_patterns.hpp>

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <new>
#include <optional>

namespace millrace::storage::samples {

namespace {

using names = std::vector<std::string>;

constexpr std::size_t expanded_bytes_max = 256u << 20;

tl::unexpected<status> too_many() {
  return fail(
    errc::invalid_argument, "braces that stand for more than {} names, or for longer ones",
    expanded_names_max);
}

// The numbers of a range, with equal digits where one end asks for it.
struct number_range {
  std::uint64_t first = 0, last = 0;
  std::size_t digits = 0;

  std::uint64_t count() const { return std::max(first, last) - std::min(first, last) + 1; }
  std::string at(std::uint64_t i) const {
    return fmt::format("{:0{}}", first <= last ? first + i : first - i, digits);
  }
};

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
  auto whole =
    !text.empty() && text.size() <= 18 && bad == std::errc{} && end == text.data() + text.size();
  return whole ? std::optional{value} : std::nullopt;
}

std::optional<number_range> parse_range(std::string_view inside) {
  auto dots = inside.find("..");
  if (dots == std::string_view::npos)
    return std::nullopt;
  auto from = inside.substr(0, dots), to = inside.substr(dots + 2);
  auto first = number(from), last = number(to);
  if (!first || !last)
    return std::nullopt;
  auto padded = (from.size() > 1 && from.front() == '0') || (to.size() > 1 && to.front() == '0');
  return number_range{*first, *last, padded ? std::max(from.size(), to.size()) : 0};
}

// The parts of braces: what lies between the commas that are in no inner braces.
struct braces {
  std::size_t begin = 0, end = 0; // of the text, with both braces
  std::vector<std::string_view> parts;
};

std::optional<braces> braces_at(std::string_view text, std::size_t begin) {
  braces out{begin, 0, {}};
  auto part = begin + 1;
  std::size_t depth = 0;
  for (auto at = begin; at < text.size(); ++at) {
    depth += text[at] == '{' ? 1 : 0;
    auto closes = text[at] == '}' && --depth == 0;
    if (closes || (text[at] == ',' && depth == 1)) {
      out.parts.push_back(text.substr(part, at - part));
      part = at + 1;
    }
    if (closes) {
      out.end = at + 1;
      return out;
    }
  }
  return std::nullopt;
}

std::optional<braces> first_braces(std::string_view text) {
  for (auto at = text.find('{'); at != std::string_view::npos; at = text.find('{', at + 1))
    if (auto found = braces_at(text, at);
        found && (found->parts.size() > 1 || parse_range(found->parts.front())))
      return found;
  return std::nullopt;
}

result<names> expand(std::string_view text);

result<names> expand_parts(const braces& of) {
  names out;
  if (of.parts.size() == 1) {
    auto range = *parse_range(of.parts.front());
    if (range.count() > expanded_names_max)
      return too_many();
    for (std::uint64_t i = 0; i < range.count(); ++i)
      out.push_back(range.at(i));
    return out;
  }
  for (auto& part : of.parts) {
    auto some = expand(part);
    if (!some)
      return some;
    if (out.size() + some->size() > expanded_names_max)
      return too_many();
    std::ranges::move(*some, std::back_inserter(out));
  }
  return out;
}

result<names> expand(std::string_view text) {
  auto found = first_braces(text);
  if (!found)
    return names{std::string{text}};
  auto heads = expand_parts(*found);
  if (!heads)
    return heads;
  auto tails = expand(text.substr(found->end));
  if (!tails)
    return tails;
  auto count = heads->size() * tails->size();
  if (count > expanded_names_max || count * text.size() > expanded_bytes_max)
    return too_many();
  names out;
  for (auto& head : *heads)
    for (auto& tail : *tails)
      out.push_back(fmt::format("{}{}{}", text.substr(0, found->begin), head, tail));
  return out;
}

bool is_there(const std::string& path) {
  std::error_code why;
  return std::filesystem::exists(std::filesystem::symlink_status(path, why));
}

// The directory that the last `glob` of this thread could not list.
struct unlisted {
  std::string path;
  int error_number = 0;
};
thread_local unlisted unlisted_last;

// What is not there, or is no directory, has no matches. Everything else ends the search.
int note_unlisted(const char* path, int error_number) noexcept {
  if (error_number == ENOENT || error_number == ENOTDIR)
    return 0;
  unlisted_last.error_number = error_number;
  try {
    unlisted_last.path = path;
  } catch (const std::bad_alloc&) { // not through `glob`
    unlisted_last.path.clear();
  }
  return 1;
}

status add_matches(const std::string& pattern, names& out) {
  if (pattern.empty())
    return {errc::invalid_argument, "the name of a file is empty"};
  if (pattern.find_first_of("*?[") == std::string::npos || is_there(pattern)) {
    out.push_back(pattern);
    return {};
  }
  glob_t found{};
  auto code = ::glob(pattern.c_str(), GLOB_NOSORT, note_unlisted, &found);
  std::unique_ptr<glob_t, void (*)(glob_t*)> owner{&found, ::globfree};
  if (code == GLOB_NOMATCH)
    return {errc::not_found, "no file matches {}", pattern};
  if (code == GLOB_ABORTED)
    return status_from_errno(unlisted_last.error_number, "listing " + unlisted_last.path)
      .within("looking for files that match " + pattern);
  if (code != 0)
    return {errc::no_space, "looking for files that match {}: code {} of glob", pattern, code};
  names matches{found.gl_pathv, found.gl_pathv + found.gl_pathc};
  std::ranges::sort(matches); // by bytes: the order must not depend on the locale
  std::ranges::move(matches, std::back_inserter(out));
  return {};
}

} // namespace

result<names> expand_braces(std::string_view text) {
  if (text.find('{') == std::string_view::npos)
    return names{std::string{text}};
  if (text.size() > braces_length_max)
    return fail(
      errc::invalid_argument, "a name with braces of {} characters; at most {} are expanded",
      text.size(), braces_length_max);
  return expand(text);
}

result<names> expand_names(const names& given) {
  names out;
  for (auto& name : given) {
    auto some = is_there(name) ? result<names>{names{name}} : expand_braces(name);
    if (!some)
      return fail(some.error().within(name.substr(0, 200)));
    for (auto& one : *some)
      if (auto bad = add_matches(one, out); !bad.ok())
        return fail(bad);
  }
  return out;
}

bool names_any(const std::string& name) {
  auto all = expand_names({name});
  return all && std::ranges::any_of(*all, is_there);
}

} // namespace millrace::storage::samples
