// The configuration that a file amounts to: every key with its value and where the value comes
// from. Used by `millrace config show`.
#pragma once

#include <millrace/config/schema.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace millrace::config {

struct effective_key {
  std::string path;   // "staging.size", "providers[0].capacity", "cluster.nodes[1].listen"
  std::string text;   // as the file would have it
  std::string origin; // "default", or "FILE:LINE"
  bool expert = false;
};

/// Returns every key of a file in the order of the documentation, node after node.
/// Errors:  those of `load_file`, and of `parse` for a text.
result<std::vector<effective_key>> effective_keys(const std::string& path, const schema& all);
result<std::vector<effective_key>> effective_keys(
  std::string_view text, const std::string& file_name, const schema& all);

} // namespace millrace::config
