// A YAML file as a tree of bounded size, with the place of every value. Made for the reader of
// settings.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::config {

inline constexpr std::size_t document_bytes_max = 1u << 20;
inline constexpr std::size_t document_depth_max = 16;
/// The most values in a document. The values behind an alias count each time it is used.
inline constexpr std::size_t document_values_max = 20'000;

/// A place in the file, counted from 1.
struct mark {
  std::uint32_t line = 1;
  std::uint32_t column = 1;
};

enum class node_kind : std::uint8_t { null, scalar, list, map };

struct document_node {
  node_kind kind = node_kind::null;
  mark at;
  std::string text;                    // a scalar's text
  std::vector<std::uint32_t> children; // a list's entries; a map's scalar keys and values in turn
};

/// Nodes refer to each other by index; an alias shares the node it stands for. There are no cycles.
class document {
public:
  /// Errors: `invalid_argument` with `file:line:column` for text that is not UTF-8, not YAML, too
  ///         large, too deep, more than one document, or that has a key twice in one map.
  static result<document> parse(std::string_view text, std::string file_name);

  const document_node& root() const { return nodes_[root_]; }
  const document_node& operator[](std::uint32_t index) const { return nodes_[index]; }

  /// Returns an error that begins with the place.
  status error(mark at, std::string_view what) const;

private:
  friend class document_builder;

  std::string file_name_;
  std::vector<document_node> nodes_;
  std::uint32_t root_ = 0;
};

/// Returns text of the file as an error repeats it: short, without control characters.
std::string shown(std::string_view text);

} // namespace millrace::config
