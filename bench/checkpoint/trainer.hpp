// A training process without the training: it has a model in warm memory, registers it, saves and
// restores it.
// Used by the sections of bench_checkpoint.
#pragma once

#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/published.hpp>

#include <cstdint>
#include <string>

namespace millrace::bench {

/// A trainer in its own process: this program, started again with --trainer.
class trainer_process {
public:
  /// Returns when the trainer's model exists, with the bytes of seed `rank + 1`, or zeroed to be
  /// restored.
  trainer_process(
    const std::string& address, const std::string& table, std::uint32_t rank,
    std::uint32_t world_size, bool empty);

  /// Returns the seconds from the command to its end. Within them a restore connects and registers.
  /// Afterwards the bytes are compared with the saved ones.
  /// Errors:  throws `millrace::error`.
  double restore();
  void begin_restore() { send("restore"); }
  void begin_save(std::uint64_t step) { send("save " + std::to_string(step)); }
  double finish();

private:
  void send(const std::string& command);
  child process_;
};

/// Runs the child's side. Returns the exit status.
int train(
  const std::string& address, const std::string& table, std::uint32_t rank,
  std::uint32_t world_size, bool empty);

} // namespace millrace::bench
