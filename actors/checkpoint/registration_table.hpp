// The registered shards, by number and owner. Owned by the checkpoint manager.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_puller.hpp>

#include <caf/actor_addr.hpp>

#include <map>
#include <memory>
#include <vector>

namespace millrace::actors {

/// A shard with a job attached.
struct registration {
  asker owner;
  checkpoint_puller_actor puller;
  std::shared_ptr<void> place = nullptr; // among the registrations of the provider
  caf::actor_addr through = nullptr;     // the actor that asked for the connection; may be null
};

/// Finds registrations. Numbers are random, so that a process which knows its own learns nothing
/// about others. Used inside one actor.
class registration_table {
public:
  /// Returns the number of the new entry.
  std::uint64_t add(registration entry);

  /// Returns null for a number that is unknown or belongs to another process. The caller cannot
  /// tell which.
  const registration* find(std::uint64_t number, const asker& from) const;

  /// Removes and returns an entry.
  registration remove(std::uint64_t number);
  /// Removes and returns the entries that an actor asked for.
  std::vector<registration> remove_all_through(const caf::actor_addr& gone);
  /// Removes the entry of a puller, if there is one.
  void remove_puller(const caf::actor_addr& gone);
  std::vector<registration> remove_all();

  std::size_t size() const noexcept { return entries_.size(); }

private:
  std::map<std::uint64_t, registration> entries_;
};

} // namespace millrace::actors
