// "did you mean": the known word closest to a mistyped one. Used wherever a name is looked up.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace millrace::config {

/// Returns the word of `known` that takes the fewest edits (insert, delete, replace, swap of
/// neighbours, change of case), or nothing when even that one is a different word.
std::string_view nearest(std::string_view word, std::span<const std::string_view> known);

/// Returns "; did you mean 'nearest'?", or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known);

} // namespace millrace::config
