// What the ranks of a job have read of a working set, and what they must read: the oracle of the
// scenario of working sets.
#pragma once

#include <millrace/core/batch_plan.hpp>
#include <millrace/core/working_set.hpp>
#include <millrace/runtime/client/loader.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace::sim {

/// The files of a working set, and the bytes of its samples.
struct sample_files {
  std::vector<std::string> paths; // to preload
  std::vector<std::string> more;  // to append then; none: nothing
  std::uint64_t samples = 0;
  std::uint64_t appended = 0; // of these, the last ones
  std::uint64_t salt = 0;
  std::uint64_t bytes_max = 0; // of a sample
  bool varies = false;

  std::uint64_t size_of(std::uint64_t id) const { return varies ? id * 37 % bytes_max : bytes_max; }
  bool is_sample(std::span<const std::byte> bytes, std::uint64_t id) const;
  /// Writes them to a directory: an array, or a file for each sample; and what is appended to
  /// another one.
  void write(const std::string& directory);

private:
  // Returns the path of samples that follow each other.
  std::string write_some(
    const std::string& directory, std::uint64_t first, std::uint64_t count) const;
};

/// How the ranks of a job share the samples.
struct job_shape {
  std::uint64_t batch_size = 1;
  std::uint64_t world_size = 1;
};

/// Batches are put together when all ranks have got them. A job that goes on at a state has read
/// nothing of what comes behind it.
///
/// Breaks the promise if a sample comes twice or is left out, an order differs from that of an
/// earlier epoch of the same number or of another number of ranks, ranks have different numbers of
/// batches, or different states after the same batch.
class sample_ledger {
public:
  /// `seed` and `shuffle` are those of the loaders.
  sample_ledger(
    std::uint64_t samples, remainder_kind remainder, std::uint64_t seed, shuffle_kind shuffle);

  /// All ranks begin at a state; none: at the beginning.
  void begin(const job_shape& shape, const std::optional<loader_state>& at);

  /// A rank got a batch, and is at a state then.
  void got(
    std::uint64_t rank, std::uint64_t set_identity, const batch& b, const loader_state& after);
  void ended(std::uint64_t rank, std::uint64_t epoch);

  /// Returns the number of batches that all ranks have got.
  std::uint64_t batches() const noexcept { return batches_; }
  /// Whether a rank has got many batches that another one has not.
  bool is_far_ahead(std::uint64_t rank) const;
  /// Returns the latest states that all ranks have reached.
  const std::vector<loader_state>& reached() const noexcept { return reached_; }

private:
  using ids_type = std::vector<std::uint64_t>;
  using place = std::pair<std::uint64_t, std::uint64_t>; // epoch, position
  struct step {
    std::map<std::uint64_t, ids_type> parts; // by rank
    loader_state after;
  };

  void put_together(const place& at, const step& whole, std::uint64_t set_identity);
  void demand_none_left_out(std::uint64_t rank, const place& before) const;
  void check_epoch(std::uint64_t epoch) const;

  const std::uint64_t samples_;
  const remainder_kind remainder_;
  const std::uint64_t seed_;
  const shuffle_kind shuffle_;
  job_shape shape_;
  std::map<place, step> partly_;                           // not all ranks have got them
  std::map<std::uint64_t, std::set<std::uint64_t>> ended_; // ranks, by epoch
  std::map<std::uint64_t, ids_type> read_;                 // by epoch, in their order
  std::vector<loader_state> reached_;
  std::uint64_t batches_ = 0;
};

} // namespace millrace::sim
