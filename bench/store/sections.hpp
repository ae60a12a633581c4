// The parts of the store benchmark and what they share.
// Called by main.cpp in order.
#pragma once

#include <millrace/bench/common/floors.hpp>
#include <millrace/bench/common/model_table.hpp>
#include <millrace/bench/common/peers.hpp>
#include <millrace/bench/common/report.hpp>
#include <millrace/bench/common/service.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace millrace::bench {

/// How much to measure.
struct extent {
  std::size_t rounds = 7;
  std::uint64_t small_bytes = 256u << 20;
  std::uint64_t large_bytes = 1u << 30;
  std::uint64_t client_bytes = 128u << 20;
  std::vector<std::size_t> layers = {10, 100, 1000};
  std::vector<std::size_t> clients = {1, 2, 4, 8};
  std::size_t latency_requests = 2000;
  bool real_models = true;
  std::string model; // only tables whose name contains this

  /// A smoke run: it takes seconds, and its figures mean little.
  static extent quick();

  std::vector<model_table> tables() const;
  /// Returns true for the size to which the goals apply.
  bool judges(const model_table& table) const { return table.size_bytes == large_bytes; }
};

/// What the sections use in turn.
struct stage {
  extent how;
  report& out;
  scratch_directory& in_memory;
  scratch_directory& on_disk;
  warm_buffer& source; // random bytes, as large as the largest model
  warm_buffer& target;
  std::optional<python_peer> torch, h5py;
  std::optional<redis_peer> redis;

  /// Adds copies of as many bytes between warm buffers to a contest.
  copy_floor add_floor(contest& to, std::uint64_t size_bytes) const {
    return {to, source.first(size_bytes), target.first(size_bytes)};
  }
  std::vector<python_peer*> python_peers();
};

/// Measures hashing and encoding of a graph of 1000 leaf layers.
void graph_section(stage& s);

/// Measures stores and loads with a memory bucket in another process.
void memory_section(stage& s, service& memory);

/// Measures our own variants against each other: many layers and few, pinned and on-demand memory.
void own_section(stage& s, service& memory);

/// Measures several clients at the same time, each with its own model.
void clients_section(stage& s, service& memory);

/// Measures small models, one after the other: stores with a memory bucket, by the cores on which
/// both ends run, and loads of what a RocksDB bucket has in memory.
void latency_section(stage& s, service& memory);

/// Measures small models, many of them under way at a time.
void small_section(stage& s, service& memory);

/// Measures how soon a waiting client hears of a publication, and what idle watches cost.
void watch_section(stage& s, service& memory);

/// Measures durable stores, and loads from disk.
void rocksdb_section(stage& s);

/// Stores once through the public API. Returns the seconds and leaves the receipt in `outcome`.
double timed_store(
  class repository repo, const model_table& table, stage& s, bool sums, receipt* outcome = nullptr);

/// What to load in order to bring some percent of a model's bytes to the target: whole tensors, or
/// some rows of each tensor where there are few.
struct selection {
  std::vector<load_target> targets;
  std::vector<std::string> names; // the tensors that it touches
  std::uint64_t size_bytes = 0;
};
selection select(const model_table& table, unsigned percent, std::span<std::byte> target);

double timed_load(class repository repo, const selection& what);

/// Loads everything and compares it with what was stored. Throws when a byte differs.
void check_stored(class repository repo, const model_table& table, stage& s);

/// Returns "sums" or "plain".
std::string sums_name(bool sums);
/// Returns the provider's own times of a store.
std::string stages_of(const receipt& r);

} // namespace millrace::bench
