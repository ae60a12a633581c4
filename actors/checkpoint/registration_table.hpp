// The registered shards, by number and owner. Owned by the checkpoint manager.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_puller.hpp>

#include <map>
#include <memory>
#include <vector>

namespace millrace::actors {

/// A shard with a job attached.
struct registration {
  asker owner;
  checkpoint_puller_actor puller;
  std::shared_ptr<void> place = nullptr; // among the registrations of the provider
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
  /// Removes and returns the entries that came through a connection.
  std::vector<registration> remove_all_of(const asker& gone);
  std::vector<registration> remove_all();

  std::size_t size() const noexcept { return entries_.size(); }

private:
  std::map<std::uint64_t, registration> entries_;
};

/// Returns true if both are the same connection of the same process.
inline bool same_connection(const asker& a, const asker& b) noexcept {
  return a.peer == b.peer && a.connection == b.connection;
}

} // namespace millrace::actors
