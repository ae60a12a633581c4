// One provider of a node: where its data rests, and the actors that answer for it. Internal: needs CAF.
#pragma once

#include <millrace/actors/vocabulary.hpp>
#include <millrace/runtime/node/engine.hpp>
#include <millrace/storage/bucket_kind.hpp>

#include <memory>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Memory from the node's fabric, made once and shared by the providers that rest elsewhere.
class node_memory {
public:
  explicit node_memory(std::shared_ptr<engine> e) : engine_(std::move(e)) {}

  result<std::shared_ptr<memory_source>> make(const std::string& name, std::uint64_t size_bytes);
  /// The staging arena, made at first use.
  result<std::shared_ptr<memory_source>> staging();
  /// Null before the first use.
  const std::shared_ptr<memory_source>& staging_in_use() const noexcept { return staging_; }

private:
  std::shared_ptr<engine> engine_;
  std::shared_ptr<memory_source> staging_;
};

/// Open until destroyed; `close` first, and end the actors.
class provider {
public:
  /// Blocks while a kind reads its disk.
  static result<std::unique_ptr<provider>> open(
    const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory);

  const std::string& name() const noexcept { return name_; }
  const actors::tensor_store_actor& store() const noexcept { return store_; }
  /// Null unless it keeps checkpoints.
  const actors::local_checkpoint_manager& checkpoints() const noexcept { return checkpoints_; }

  /// Refuses new work and returns when what was begun is done or `deadline_ms` is over.
  status close(std::uint32_t deadline_ms);

private:
  provider() = default;
  status open_bucket(
    const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory);
  status serve_checkpoints(
    const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory);

  std::string name_;
  storage::opened_bucket opened_;
  std::shared_ptr<storage::step_flusher> flusher_; // null: versions are not copied on
  std::vector<std::shared_ptr<void>> adopted_;     // mappings of checkpoints; go before `opened_`
  actors::tensor_store_actor store_;
  actors::local_checkpoint_manager checkpoints_;
};

} // namespace millrace::runtime
