// The metadata keys of an origin, and their values.
#include <millrace/storage/archive/origin.hpp>

#include <charconv>

namespace millrace::storage::archive {

namespace {

constexpr std::string_view model_key = "millrace.model";
constexpr std::string_view step_key = "millrace.step";
constexpr std::string_view rank_key = "millrace.rank";
constexpr std::string_view world_size_key = "millrace.world_size";
constexpr std::string_view axis_key_prefix = "millrace.axis.";

template <class Number>
std::optional<Number> number_of(const std::string& text) {
  Number value = 0;
  auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
  return bad == std::errc{} && end == text.data() + text.size() ? std::optional{value}
                                                                : std::nullopt;
}

// True when the key is one of ours.
bool take(version_origin& into, const std::string& key, const std::string& value) {
  if (key == model_key)
    into.model = value;
  else if (key == step_key)
    into.step = number_of<std::uint64_t>(value);
  else if (key == rank_key)
    into.rank = number_of<std::uint32_t>(value);
  else if (key == world_size_key)
    into.world_size = number_of<std::uint32_t>(value);
  else if (key.starts_with(axis_key_prefix))
    into.axes.emplace_back(key.substr(axis_key_prefix.size()), value);
  else
    return false;
  return true;
}

} // namespace

text_pairs with_origin(text_pairs metadata, const version_origin& origin) {
  static_cast<void>(take_origin(metadata));
  if (origin.model)
    metadata.emplace_back(model_key, *origin.model);
  if (origin.step)
    metadata.emplace_back(step_key, std::to_string(*origin.step));
  if (origin.rank)
    metadata.emplace_back(rank_key, std::to_string(*origin.rank));
  if (origin.world_size)
    metadata.emplace_back(world_size_key, std::to_string(*origin.world_size));
  for (auto& [axis, place] : origin.axes)
    metadata.emplace_back(std::string{axis_key_prefix} + axis, place);
  return metadata;
}

version_origin take_origin(text_pairs& metadata) {
  version_origin found;
  std::erase_if(metadata, [&](auto& one) { return take(found, one.first, one.second); });
  return found;
}

} // namespace millrace::storage::archive
