// Places that operations of several actors share and wait for. Used for staging memory.
#pragma once

#include <millrace/core/fair_shares.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <memory>
#include <mutex>

namespace millrace::actors {

/// Lends places. Each process gets its share of them, as `fair_shares` says; who has its share
/// waits until places come back, and the processes take turns.
/// Threads: any.
class shared_places : public std::enable_shared_from_this<shared_places> {
public:
  explicit shared_places(std::uint64_t places) : shares_(places) {}

  /// Lends `count` places, at most all of them, now or later. Dropping the last copy of what
  /// `granted` gets returns them. `granted` runs with no lock held.
  void ask(party who, std::uint64_t count, completion<std::shared_ptr<void>> granted);

private:
  struct request {
    std::uint64_t count = 0;
    completion<std::shared_ptr<void>> granted;
  };

  std::shared_ptr<void> lend(const party& who, std::uint64_t count);
  void take_back(const party& who, std::uint64_t count);

  std::mutex mutex_;
  fair_shares shares_;
  fair_queue<request> waiting_;
};

} // namespace millrace::actors
