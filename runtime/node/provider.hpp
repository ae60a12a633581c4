// One provider of a node: its bucket or pool, and the actors that serve it.
// Internal, used by `node`; needs CAF.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_manager.hpp>
#include <millrace/actors/node/node_actor.hpp>
#include <millrace/actors/operation.hpp>
#include <millrace/actors/staging/staging_manager.hpp>
#include <millrace/actors/wire/service_table.hpp>
#include <millrace/core/control_group.hpp>
#include <millrace/runtime/node/engine.hpp>
#include <millrace/storage/bucket_kind.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Returns the bounds of the operations of a node's actors.
actors::operation_limits limits_of(const config::settings& s);

/// Memory from the node's fabric: arenas for single providers, and one staging arena that the other
/// providers share.
class node_memory {
public:
  /// `bound`: what the control groups of this process allow.
  explicit node_memory(
    std::shared_ptr<engine> e, std::optional<group_memory> bound = lowest_group_memory())
    : engine_(std::move(e)), bound_(std::move(bound)) {}

  /// Checks, before the first of several arenas is made, that there is memory for all of them.
  /// Errors:  `no_space`, as for `make`.
  status check(const std::string& name, std::uint64_t size_bytes) const;
  /// Errors:  `no_space` when the control groups would kill this process for all its arenas, or
  ///          when the system has no memory left.
  result<std::shared_ptr<memory_source>> make(
    const std::string& name, std::uint64_t size_bytes,
    transport::arena_sharing sharing = transport::arena_sharing::transfers);
  /// Counts memory that something else makes for this node.
  /// Errors:  `no_space`, as for `make`.
  status count(const std::string& name, std::uint64_t size_bytes);
  /// Compares the control groups' bound with what is counted and what peers may make the node keep
  /// besides. Errors: `no_space` with both.
  status check_with_peers() const;
  /// Returns the staging arena, which is made at first use.
  result<std::shared_ptr<memory_source>> staging();
  /// Returns the staging arena, or null before its first use.
  const std::shared_ptr<memory_source>& staging_in_use() const noexcept { return staging_; }
  /// Returns who lends the staging arena to the operations of a provider, which may hold
  /// `quota_percent` of it. The arena was used before.
  std::shared_ptr<actors::staging_lender> lend_to(
    const std::string& provider, std::uint32_t quota_percent) const;
  /// Makes memory for the snapshots of a provider, and returns who lends it.
  result<std::shared_ptr<actors::staging_lender>> make_snapshots(
    const std::string& provider, std::uint64_t size_bytes);

  /// Starts the actor that grants the lenders their budgets, for the node's actor to watch. Called
  /// when all of them are made.
  actors::supervised_part start_manager() const;
  /// Answers who waits for staging memory. Called when the node's actors have ended.
  void refuse_waiting(const status& why) const;
  std::vector<staging_status> report() const;

private:
  status check_bound(const std::string& name, std::uint64_t size_bytes) const;

  std::shared_ptr<engine> engine_;
  std::optional<group_memory> bound_;
  std::uint64_t counted_bytes_ = 0; // in ordinary pages
  std::shared_ptr<memory_source> staging_;
  std::shared_ptr<actors::staging_memory> arena_;
  std::vector<std::shared_ptr<actors::staging_memory>> lent_; // all that the manager manages
};

/// A provider is open until it is destroyed. Call `close` and end the actors before that.
class provider {
public:
  /// Opens a provider and adds its actors to `services`, all or none. Blocks while the bucket reads
  /// its disk.
  static result<std::unique_ptr<provider>> open(
    const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory,
    const std::shared_ptr<actors::service_table>& services);

  const std::string& name() const noexcept { return name_; }
  /// Returns the id by which names are placed, which the bucket keeps.
  const std::string& id() const noexcept { return id_; }

  /// Returns the actors, with what starts each of them anew.
  const std::vector<actors::supervised_actor>& actors() const noexcept { return actors_; }

  /// Returns what is open as long as anything uses it.
  std::vector<std::weak_ptr<void>> storage() const;

  /// Refuses new work. Returns when the operations in flight are done or `deadline_ms` is over.
  status close(std::uint32_t deadline_ms);

private:
  provider() = default;
  template <class Service, class Deps, class Handle>
  void supervise(
    const std::shared_ptr<engine>& e, const std::shared_ptr<actors::service_table>& services,
    Deps deps, Handle (*spawn)(caf::actor_system&, Deps));
  status open_bucket(
    const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory);
  /// Prepares the actor of the checkpoints, and opens what it needs.
  result<actors::checkpoint_manager_deps> prepare_checkpoints(
    const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory);

  std::string name_;
  std::string id_;
  std::shared_ptr<actors::staging_lender> lender_; // null: windows need no staging memory
  storage::opened_bucket opened_;
  std::shared_ptr<storage::flush::step_flusher> flusher_; // null: steps are not flushed
  // Mappings of checkpoints; destroyed before `opened_`.
  std::vector<std::shared_ptr<void>> adopted_;
  std::vector<actors::supervised_actor> actors_;
};

} // namespace millrace::runtime
