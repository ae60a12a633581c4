// The section of a provider's status about its models. Part of `provider_status`.
#pragma once

#include <cstdint>

namespace millrace::actors {

struct store_status {
  std::uint64_t models = 0;
  std::uint64_t evictions = 0;
  std::uint64_t stores = 0;
  std::uint64_t loads = 0;
  std::uint64_t failures = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t loaded_bytes = 0;
  std::uint64_t views_bytes = 0;        // what it keeps of its groups
  std::uint64_t descriptions_bytes = 0; // this and what follows: as in `storage::bucket_stats`
  std::uint64_t marks = 0;
  std::uint64_t watches = 0; // parked now

  friend bool operator==(const store_status&, const store_status&) = default;
};

} // namespace millrace::actors
