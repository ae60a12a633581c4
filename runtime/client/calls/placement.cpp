// Picks the provider with the best score for a name among those of a directory.
#include <millrace/core/placement.hpp>
#include <millrace/runtime/client/calls/placement.hpp>
#include <millrace/storage/builtin.hpp>

#include <fmt/format.h>

#include <set>
#include <string>

namespace millrace::runtime {

namespace {

double lot(std::string_view model, const provider_entry& provider) {
  auto& id = provider.id.empty() ? provider.name : provider.id;
  return placement_score(model, id, provider.weight);
}

// Returns the winner among the providers that `takes_part` accepts; the size of the list when there
// is none.
template <class Condition>
std::size_t draw(
  std::string_view model, const std::vector<provider_entry>& providers, Condition takes_part) {
  auto best = best_scored(providers, takes_part, [&](auto& p) { return lot(model, p); });
  return static_cast<std::size_t>(best - providers.begin());
}

bool keeps_checkpoints(const provider_entry& provider, std::string_view group) {
  return provider.checkpoints && (group.empty() || provider.group == group);
}

} // namespace

result<std::size_t> place(
  std::string_view model, std::string_view group, const std::vector<provider_entry>& providers) {
  auto best = draw(model, providers, [&](auto& p) { return p.group == group; });
  if (best < providers.size())
    return best;
  std::set<std::string> groups;
  for (auto& p : providers)
    groups.insert(p.group);
  std::string known;
  for (auto& g : groups)
    known += (known.empty() ? "" : ", ") + g;
  return fail(
    errc::not_found, "no provider is in group '{}'; there are: {}", group,
    known.empty() ? "none" : known);
}

result<std::size_t> place_checkpoints(
  std::string_view model, std::string_view group, const std::vector<provider_entry>& providers) {
  auto best = draw(model, providers, [&](auto& p) { return keeps_checkpoints(p, group); });
  if (best < providers.size())
    return best;
  std::string kinds;
  for (auto& kind : storage::builtin_buckets())
    if (kind.keeps_checkpoints)
      kinds += (kinds.empty() ? "bucket: " : ", or bucket: ") + std::string{kind.section.keys.name};
  return fail(
    errc::not_found,
    "no provider{} keeps checkpoints; configure a provider of a kind that does: {}",
    group.empty() ? "" : fmt::format(" of group {}", group), kinds);
}

std::vector<std::size_t> checkpoint_providers(
  std::string_view group, const std::vector<provider_entry>& providers) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < providers.size(); ++i)
    if (keeps_checkpoints(providers[i], group))
      out.push_back(i);
  return out;
}

} // namespace millrace::runtime
