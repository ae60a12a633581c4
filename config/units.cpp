// Reads and writes numbers with units.
#include <millrace/config/units.hpp>

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <optional>
#include <span>

namespace millrace::config {

namespace {

struct unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::array<unit, 6> size_units = {
  {{"", 1},
   {"B", 1},
   {"KiB", 1ull << 10},
   {"MiB", 1ull << 20},
   {"GiB", 1ull << 30},
   {"TiB", 1ull << 40}}};
constexpr std::array<unit, 5> time_units = {
  {{"us", 1}, {"ms", 1'000}, {"s", 1'000'000}, {"m", 60'000'000}, {"h", 3'600'000'000}}};

// Splits "64 KiB" into its number and its unit.
std::optional<unit> split(std::string_view text) {
  unit parts{{}, 0};
  auto end = text.data() + text.size();
  auto [rest, bad] = std::from_chars(text.data(), end, parts.factor);
  if (bad != std::errc{})
    return std::nullopt;
  parts.name = {rest, static_cast<std::size_t>(end - rest)};
  if (parts.name.size() > 1 && parts.name.front() == ' ')
    parts.name.remove_prefix(1);
  return parts;
}

result<std::uint64_t> scaled(
  std::string_view text, std::span<const unit> units, std::string_view expected) {
  auto parts = split(text);
  if (parts)
    for (auto& known : units) {
      std::uint64_t value = 0;
      if (known.name == parts->name && !__builtin_mul_overflow(parts->factor, known.factor, &value))
        return value;
    }
  return fail(errc::invalid_argument, "'{}' is not {}", text, expected);
}

std::string formatted(std::uint64_t value, std::span<const unit> units) {
  auto best = units.front();
  for (auto& candidate : units)
    if (value != 0 && value % candidate.factor == 0)
      best = candidate;
  return fmt::format("{}{}", value / best.factor, best.name);
}

} // namespace

result<std::uint64_t> parse_count(std::string_view text) {
  std::uint64_t value = 0;
  auto end = text.data() + text.size();
  auto [rest, bad] = std::from_chars(text.data(), end, value);
  if (bad != std::errc{} || rest != end)
    return fail(errc::invalid_argument, "'{}' is not a whole number", text);
  return value;
}

result<std::uint64_t> parse_size(std::string_view text) {
  auto value = scaled(text, size_units, "a size such as 4096, 64KiB, 512MiB or 1GiB");
  auto parts = split(text);
  if (value || !parts || parts->name.empty())
    return value;
  // "1GB", "1G" and "1gib" are close enough to name the unit that was meant.
  auto letter = static_cast<char>(parts->name.front() & ~0x20);
  for (auto& known : std::span{size_units}.subspan(2))
    if (parts->name.size() <= 3 && known.name.front() == letter)
      return fail(
        errc::invalid_argument, "{}; did you mean '{}{}'?", value.error().detail(), parts->factor,
        known.name);
  return value;
}

result<std::uint64_t> parse_duration_us(std::string_view text) {
  if (text == "0")
    return 0;
  auto value = scaled(text, time_units, "a duration such as 50us, 500ms, 5s or 2m");
  auto parts = split(text);
  if (!value && parts && parts->name.empty())
    return fail(errc::invalid_argument, "{}; did you mean '{}s'?", value.error().detail(), text);
  return value;
}

std::string format_size(std::uint64_t size_bytes) {
  auto text = formatted(size_bytes, size_units);
  return text.ends_with('B') && !text.ends_with("iB") ? text.substr(0, text.size() - 1) : text;
}

std::string format_duration_us(std::uint64_t duration_us) {
  return duration_us == 0 ? "0" : formatted(duration_us, time_units);
}

} // namespace millrace::config
