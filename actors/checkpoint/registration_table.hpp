// Who registered what, by which number. Owned by the checkpoint manager.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_puller.hpp>

#include <map>
#include <vector>

namespace millrace::actors {

/// A shard with a job attached.
struct registration {
  asker owner;
  checkpoint_puller_actor puller;
};

/// Numbers are random: knowing one's own tells nothing of others. Lives in one actor.
class registration_table {
public:
  /// The number of the new entry.
  std::uint64_t add(registration entry);

  /// Null for a number that is not there or belongs to another process: they look alike from outside.
  const registration* find(std::uint64_t number, const asker& from) const;

  /// Takes an entry out.
  registration remove(std::uint64_t number);
  /// Takes out what came through a connection.
  std::vector<registration> remove_all_of(const asker& gone);
  std::vector<registration> remove_all();

  std::size_t size() const noexcept { return entries_.size(); }

private:
  std::map<std::uint64_t, registration> entries_;
};

/// True if both are the same connection of the same process.
inline bool same_connection(const asker& a, const asker& b) noexcept {
  return a.peer == b.peer && a.connection == b.connection;
}

} // namespace millrace::actors
