// Listings of several providers, of which some may have been silent.
// Used by the commands that list.
#pragma once

#include <millrace/runtime/client/listed.hpp>
#include <millrace/tools/checkpoints/describe.hpp>
#include <millrace/tools/describe_model.hpp>
#include <millrace/tools/describe_set.hpp>
#include <millrace/tools/describe_stream.hpp>
#include <millrace/tools/output.hpp>

#include <string>
#include <vector>

namespace millrace::tools {

/// Returns {"NAME": [what `to_json` says of each entry, and its provider], "silent": [{"provider",
/// "error"}]}. `keeper` is the word for a provider.
template <class Item>
json to_json(
  const listed<Item>& all, const std::string& name, const std::string& keeper = "provider") {
  json entries = json::array();
  for (auto& entry : all.found) {
    auto one = to_json(static_cast<const Item&>(entry));
    if (!entry.provider.empty())
      one[keeper] = entry.provider;
    entries.push_back(std::move(one));
  }
  json silent = json::array();
  for (auto& provider : all.silent)
    silent.push_back({{keeper, provider.name}, {"error", to_json(provider.why)}});
  return {{name, entries}, {"silent", silent}};
}

/// Names the providers that did not answer on the error stream; with --json the document has them.
/// Returns the exit code: 1 if there are any. `keeper` is the word for a provider.
int report_silent(
  invocation& call, const std::vector<silent_provider>& silent,
  const std::string& keeper = "provider");

} // namespace millrace::tools
