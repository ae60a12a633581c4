// A training process without the training: its model in warm memory, registered, saved, restored.
#pragma once

#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/model_table.hpp>
#include <millrace/runtime/client/checkpointer.hpp>
#include <millrace/runtime/client/client.hpp>

#include <cstdint>
#include <string>

namespace millrace::bench {

/// One of the published networks by name, "GPT-350M" (the shard of one rank of four), or "small".
/// Throws `millrace::error` for another name.
model_table table_named(const std::string& name);

/// Registers `table` over `memory`. Throws `millrace::error`.
checkpointer attach(
  const client& c, const model_table& table, std::span<std::byte> memory, std::uint32_t rank = 0,
  std::uint32_t world_size = 1);

/// A trainer as a process of its own: this program, started again with --trainer.
class trainer_process {
public:
  /// Returns when its model is built (with the bytes of seed `rank + 1`, or zeroed to be restored).
  trainer_process(
    const std::string& address, const std::string& table, std::uint32_t rank,
    std::uint32_t world_size, bool empty);

  /// Seconds from the command to its end; a restore connects and registers within them, and its bytes are compared
  /// with those saved afterwards. Throws `millrace::error`.
  double restore();
  void begin_restore() { send("restore"); }
  void begin_save(std::uint64_t step) { send("save " + std::to_string(step)); }
  double finish();

private:
  void send(const std::string& command);
  child process_;
};

/// The child's side. Returns the exit status.
int train(
  const std::string& address, const std::string& table, std::uint32_t rank,
  std::uint32_t world_size, bool empty);

} // namespace millrace::bench
