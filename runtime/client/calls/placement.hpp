// Which provider keeps a name: every client computes the same answer, alone. Used by the repository.
#pragma once

#include <millrace/actors/node/node_messages.hpp>
#include <millrace/core/status.hpp>

#include <string_view>
#include <vector>

namespace millrace {

/// Picks the provider of a model among those of a group, by weighted rendezvous hashing.
///
/// Each provider draws a lot from the hash of its name and the model's; the best lot wins. So names spread by
/// weight, the order of the list does not matter, and adding or removing a provider moves only its own share.
/// Cost:    O(providers).
/// Errors:  `not_found` naming the groups there are.
/// Source:  DStore, section 3 ("hashing to decide the provider"); rendezvous instead of modulo.
result<std::size_t> place(
  std::string_view model, std::string_view group,
  const std::vector<actors::provider_entry>& providers);

/// The same for a model's checkpoints: all its shards rest in one provider, one of those that keep checkpoints.
/// Without a group any of them.
/// Errors:  `not_found` saying how to configure one.
result<std::size_t> place_checkpoints(
  std::string_view model, std::string_view group,
  const std::vector<actors::provider_entry>& providers);

/// The providers among which `place_checkpoints` chooses.
std::vector<std::size_t> checkpoint_providers(
  std::string_view group, const std::vector<actors::provider_entry>& providers);

} // namespace millrace
