// Computes which provider keeps a name. Every client computes the same answer alone.
// Used by the repository and by checkpoints.
#pragma once

#include <millrace/core/cluster_entries.hpp>
#include <millrace/core/status.hpp>

#include <string_view>
#include <vector>

namespace millrace::runtime {

/// Picks the provider of a model among those of a group, by weighted rendezvous hashing.
///
/// Each provider gets a score from the hash of its name and the model's name; the best score wins.
/// So names spread by weight, the order of the list does not matter, and adding or removing a
/// provider moves only its own share of the names.
/// Cost:    O(providers).
/// Errors:  `not_found` naming the existing groups.
/// Source:  DStore, section 3 ("hashing to decide the provider"); we use rendezvous hashing instead
///          of modulo.
result<std::size_t> place(
  std::string_view model, std::string_view group, const std::vector<provider_entry>& providers);

/// Picks the provider of all shards of a model, among those that keep checkpoints. An empty group
/// means any of them.
/// Errors:  `not_found` saying how to configure one.
result<std::size_t> place_checkpoints(
  std::string_view model, std::string_view group, const std::vector<provider_entry>& providers);

/// Returns the providers among which `place_checkpoints` chooses.
std::vector<std::size_t> checkpoint_providers(
  std::string_view group, const std::vector<provider_entry>& providers);

} // namespace millrace::runtime
