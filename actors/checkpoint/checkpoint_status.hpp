// The section of a provider's status about its checkpoints. Part of `provider_status`.
#pragma once

#include <millrace/storage/flush/flush_counters.hpp>

#include <cstdint>

namespace millrace::actors {

struct checkpoint_status {
  bool kept = false;            // the provider keeps checkpoints
  std::uint64_t registered = 0; // shards with a job attached
  std::uint64_t saves_in_flight = 0;
  std::uint64_t saves_queued = 0;
  std::uint64_t saves = 0;
  std::uint64_t saves_failed = 0;
  std::uint64_t saved_bytes = 0;
  std::uint64_t restores = 0;
  std::uint64_t restored_bytes = 0;
  bool flushes = false; // it copies complete steps to a directory
  storage::flush::flush_counters flushed;
  std::uint64_t watches = 0; // parked now

  friend bool operator==(const checkpoint_status&, const checkpoint_status&) = default;
};

} // namespace millrace::actors
