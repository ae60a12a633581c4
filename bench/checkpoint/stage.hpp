// The parts of the checkpoint benchmark and what they share. Called by main.cpp in order.
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

/// How much is measured.
struct extent {
  std::size_t rounds = 7;
  std::size_t fresh_rounds = 5; // of restores: each starts a process for everyone
  bool quick = false;
  std::string model; // only tables whose name contains it

  std::vector<std::string> tables() const;
  std::string shard_table() const { return quick ? "small" : "GPT-350M"; }
  /// Room for two versions of the largest model, or of all shards.
  std::uint64_t pool_bytes() const;
};

/// Everything that sections use in turns.
struct stage {
  extent how;
  report& out;
  scratch_directory& in_memory;
  scratch_directory& on_disk;
  warm_buffer& source; // random bytes, as large as the largest model
  warm_buffer& target;
  std::vector<std::string> peers; // those that can be had

  /// Peers that go on living: for saves.
  std::vector<python_peer> start_peers(const model_table& table) const;
};

/// A peer's file of one model.
std::string peer_path(const scratch_directory& where, const std::string& peer);

/// Restores of everyone, each repetition in a process of its own whose model is built already.
void restores(
  stage& s, const service& at, const model_table& table, const scratch_directory& files, bool cold,
  row r);

/// Puts the peers' times into a row: `torch` is the one compared with.
void name_peers(
  row& r, const std::string& what, const std::vector<std::string>& names,
  const std::vector<const samples*>& times);

/// A provider's own account of a save, in microseconds: the paper's figure 13.
std::string stages_of(const save_receipt& r);
/// The same of a peer, behind ours; empty where it cannot tell.
std::string stages_of(
  const std::string& peer, const std::vector<std::pair<std::string, double>>& seconds);

/// Saves and restores with a pool in memory, written back as if it were persistent memory.
void memory_section(stage& s);
/// Durable saves and cold restores with a pool on an ordinary disk.
void disk_section(stage& s);
/// One model over four ranks, all of them at once.
void shards_section(stage& s);
/// What a save takes from the trainer: the call itself, and the slowdown of a loop that saves at every iteration.
void loop_section(stage& s);

} // namespace millrace::bench
