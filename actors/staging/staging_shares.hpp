// The rule by which the lenders of one memory get their budgets. Applied by the staging manager.
#pragma once

#include <millrace/config/settings.hpp>
#include <millrace/core/clock.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace::actors {

/// What staging memory is for. A restore goes before a save. Both go before a verification, for
/// whose bytes no caller waits.
enum class staging_use : std::uint8_t { restore, save, load_ahead };

inline constexpr std::size_t staging_uses = 3;

/// The bounds of leases: how long and for how much a lender keeps what it was granted.
struct staging_rules {
  std::uint64_t block_bytes =
    config::staging_settings{}.block_bytes; // granted at a time, unless one request needs more
  std::uint32_t turn_count = 1000;          // small requests that count as much as one block
  /// A lender that has used nothing for so long gives its budget back. For a tenth of it, others
  /// that are short leave the budget alone.
  std::chrono::milliseconds lease{config::staging_settings{}.lease_ms};
};

/// What one lender holds of a memory, and what it is short of.
struct staging_account {
  std::string name; // the provider's, and the use that has a memory of its own
  std::uint64_t quota_bytes = 0;
  std::uint64_t budget_bytes = 0;      // granted, lent or not
  std::uint64_t used_bytes = 0;        // lent
  std::uint64_t called_back_bytes = 0; // the part of the budget that is not lent again
  std::uint64_t largest_bytes = 0;     // the largest of all requests so far
  std::uint64_t lent_bytes = 0;        // since the start
  std::uint64_t lent_count = 0;

  std::uint64_t short_bytes = 0; // the request that waits for budget; 0: none does
  staging_use short_use = staging_use::restore;

  // Kept by the manager, by its clock.
  time_point short_since{}, active_at{}, turn_at{};
  std::uint64_t seen_count = 0;                  // `lent_count` at the last look
  std::uint64_t turn_bytes = 0, turn_counts = 0; // the lent counts when the turn began

  std::uint64_t unused_bytes() const noexcept { return budget_bytes - used_bytes; }
};

/// Moves budget between the accounts of a memory. Returns the time after which it must be done
/// again, or zero: nothing is held.
///
/// *Rule*: a lender that is short gets free budget, up to its quota while no other one is short. If
/// there is none, lenders with more than their share give budget back as their blocks come back;
/// equal shares go to all lenders in use. Where a share is less than a request, lenders take turns:
/// a turn ends with `block_bytes` or `turn_count` requests lent, or with the lease. So each request
/// up to the quota is granted in the end. Lenders are served in the order of their uses, then by
/// how long they have waited; a wait of one lease outranks the use.
std::chrono::milliseconds share_out(
  std::uint64_t capacity_bytes, const std::vector<staging_account*>& accounts, time_point now,
  const staging_rules& rules);

} // namespace millrace::actors
