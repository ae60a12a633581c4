// The status of a provider: the part that all its services have, and one section for each of them.
// Given by the provider's actors; part of a node's status.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_status.hpp>
#include <millrace/actors/store/store_status.hpp>
#include <millrace/core/inspect.hpp>

#include <cstdint>
#include <string>

namespace millrace::actors {

/// Asks an actor of a provider for its part of the provider's status.
struct provider_status_request {
  std::uint8_t unused = 0;
};
MILLRACE_INSPECT(provider_status_request, x.unused)

/// A section with default values only belongs to a service that the provider does not have.
struct provider_status {
  std::string name;
  std::string kind;
  std::string group;
  bool durable = false;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t in_flight = 0;
  std::uint64_t queued = 0;
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

} // namespace millrace::actors
