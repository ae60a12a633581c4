// Which steps of a pool's checkpoints are copied on to slower storage. Told by the checkpoint manager what is done.
#pragma once

#include <millrace/actors/checkpoint_messages.hpp>
#include <millrace/config/settings.hpp>
#include <millrace/storage/checkpoint_store.hpp>
#include <millrace/storage/flush/version_flusher.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace millrace::runtime {

/// Copies complete steps, all shards of a step together.
///
/// *Problem*: a version that is being copied keeps its slot, and a slow directory falls behind a fast trainer. So at
/// most one step of a model is copied at a time; of those that become complete meanwhile only the newest is
/// copied next. Shards are given one slot more (`keep_min`), so that saves never wait for a copy.
/// Threads: any.
class step_flusher : public std::enable_shared_from_this<step_flusher> {
public:
  /// Null when the provider copies nothing on. Errors: what the directory says.
  static result<std::shared_ptr<step_flusher>> open(
    const config::provider_settings& p, std::shared_ptr<storage::checkpoint_store> store);

  /// One fills, one is copied, one stays.
  static constexpr std::uint32_t keep_min = 3;

  /// A version is done. Does not block.
  void saved(const actors::save_receipt& receipt);

  /// Lets what was begun finish until the deadline.
  [[nodiscard]] status close(std::uint32_t deadline_ms);

private:
  struct model_state {
    std::uint32_t shards_left = 0;     // of the step that is being copied
    std::optional<std::uint64_t> next; // complete since then
  };

  step_flusher() = default;
  /// Copies what became complete but was not copied before the service ended.
  void catch_up();
  void wish(const std::string& model, std::uint64_t step);
  void begin(const std::string& model, std::uint64_t step);
  void copy(const std::string& model, std::uint32_t rank, std::uint64_t step);
  void copied(const std::string& model, std::uint64_t step, const status& outcome);

  std::string provider_;
  std::uint64_t every_ = 1;
  std::shared_ptr<storage::checkpoint_store> store_;
  std::unique_ptr<storage::version_flusher> flusher_;
  std::mutex mutex_;
  std::map<std::string, model_state> models_; // those being copied
};

} // namespace millrace::runtime
