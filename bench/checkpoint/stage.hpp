// The parts of the checkpoint benchmark and what they share.
// Called by main.cpp in order.
#pragma once

#include <millrace/bench/checkpoint/trainer.hpp>
#include <millrace/bench/common/floors.hpp>
#include <millrace/bench/common/peers.hpp>
#include <millrace/bench/common/report.hpp>
#include <millrace/bench/common/service.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::bench {

/// How much to measure.
struct extent {
  std::size_t rounds = 7;
  std::size_t fresh_rounds = 5; // of restores: each one starts new processes
  bool quick = false;
  std::string model; // only tables whose name contains this

  std::vector<std::string> tables() const;
  std::string shard_table() const { return quick ? "small" : "GPT-350M"; }
  /// Returns the space for two versions of the largest model, or of all shards.
  std::uint64_t pool_bytes() const;
};

/// What the sections use in turn.
struct stage {
  extent how;
  report& out;
  scratch_directory& in_memory;
  scratch_directory& on_disk;
  warm_buffer& source; // random bytes, as large as the largest model
  warm_buffer& target;
  std::vector<std::string> peers; // those that this machine has

  /// Starts peers that stay alive for several saves.
  std::vector<python_peer> start_peers(const model_table& table) const;
};

/// Returns a peer's file of one model.
std::string peer_path(const scratch_directory& where, const std::string& peer);

/// Measures restores of all competitors. Each repetition runs in a new process whose model exists
/// already.
void restores(
  stage& s, const service& at, const model_table& table, const scratch_directory& files, bool cold,
  row r);

/// Puts the peers' times into a row. `torch` is the peer that the goal compares with.
void name_peers(
  row& r, const std::string& what, const std::vector<std::string>& names,
  const std::vector<const samples*>& times);

/// Returns the provider's own times of a save, in microseconds, as figure 13 of the paper has them.
std::string stages_of(const save_receipt& r);
/// Returns the same times of a peer, to print after ours; empty where the peer does not report
/// them.
std::string stages_of(
  const std::string& peer, const std::vector<std::pair<std::string, double>>& seconds);

/// Measures saves and restores with a pool in memory, written back as if it were persistent memory.
void memory_section(stage& s);
/// Measures durable saves and cold restores with a pool on an ordinary disk.
void disk_section(stage& s);
/// Measures one model over four ranks, all at the same time.
void shards_section(stage& s);
/// Measures what the call of `save` takes from the trainer. What saves cost a training is in
/// bench_training.
void call_section(stage& s);

} // namespace millrace::bench
