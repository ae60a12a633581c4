// The status of a provider: the part that all its services have, and one section for each of them.
// The provider's actors make it; part of a node's status.
#pragma once

#include <millrace/core/flush_counters.hpp>
#include <millrace/core/inspect.hpp>

#include <cstdint>
#include <string>

namespace millrace {

/// The section about models. Counts are those since the start, unless they say what is now.
struct store_status {
  std::uint64_t models = 0; // now
  std::uint64_t evictions = 0;
  std::uint64_t stores = 0;
  std::uint64_t loads = 0;
  std::uint64_t failures = 0; // of stores and loads
  std::uint64_t stored_bytes = 0;
  std::uint64_t loaded_bytes = 0;
  std::uint64_t views_bytes = 0;        // of memory, for what it keeps of its groups, now
  std::uint64_t descriptions_bytes = 0; // of memory, for graphs, layouts and layers, now
  std::uint64_t marks = 0;              // of erased models, now
  std::uint64_t watches = 0;            // parked now

  friend bool operator==(const store_status&, const store_status&) = default;
};

/// The section about checkpoints. Counts are those since the start, unless they say what is now.
struct checkpoint_status {
  bool kept = false;            // the provider keeps checkpoints
  std::uint64_t registered = 0; // shards with a job attached, now
  std::uint64_t saves_in_flight = 0;
  std::uint64_t saves_queued = 0;
  std::uint64_t saves = 0;
  std::uint64_t saves_failed = 0;
  std::uint64_t saved_bytes = 0;
  std::uint64_t restores = 0;
  std::uint64_t restored_bytes = 0;
  bool flushes = false; // it copies complete steps to a directory
  flush_counters flushed;
  std::uint64_t watches = 0; // parked now

  friend bool operator==(const checkpoint_status&, const checkpoint_status&) = default;
};

/// What a provider has and does, and what it has done since the start. A section with default
/// values only belongs to a service that the provider does not have.
struct provider_status {
  std::string name;
  std::string kind; // of its bucket or pool: "memory"
  std::string group;
  bool durable = false;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t in_flight = 0; // operations under way
  std::uint64_t queued = 0;    // operations that wait
  store_status store;
  checkpoint_status checkpoints;
  std::string down;                 // why it does not serve; empty: it serves
  std::uint64_t actor_failures = 0; // actors that ended by a defect
  std::string last_failure;         // an actor's last failure

  friend bool operator==(const provider_status&, const provider_status&) = default;

  /// Adds the status of another actor of the same provider.
  void add(const provider_status& part) {
    used_bytes += part.used_bytes;
    in_flight += part.in_flight;
    queued += part.queued;
    actor_failures += part.actor_failures;
    if (last_failure.empty())
      last_failure = part.last_failure;
    add_section(store, part.store);
    add_section(checkpoints, part.checkpoints);
  }

private:
  template <class Section>
  static void add_section(Section& all, const Section& part) {
    if (part != Section{})
      all = part;
  }
};

constexpr void is_message(const provider_status&) {}

// The fields of the first two sections travel among those of all services. Later sections are
// records of their own after them.
template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, provider_status& x) {
  auto& s = x.store;
  auto& c = x.checkpoints;
  return f(
    x.name, x.kind, x.group, x.durable, s.models, x.capacity_bytes, x.used_bytes, s.evictions,
    x.in_flight, x.queued, s.stores, s.loads, s.failures, s.stored_bytes, s.loaded_bytes, c.kept,
    c.registered, c.saves_in_flight, c.saves_queued, c.saves, c.saves_failed, c.saved_bytes,
    c.restores, c.restored_bytes, c.flushes, c.flushed, x.down, s.views_bytes, x.actor_failures,
    x.last_failure, s.descriptions_bytes, s.marks, s.watches, c.watches);
}

} // namespace millrace
