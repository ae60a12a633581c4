// Who reads batches: clients that ask for them, and trainings that take those of a loader, ours in
// C++ and in Python, and PyTorch's.
// Used by the sections of bench_loader.
#pragma once

#include <millrace/bench/loader/stage.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::bench {

/// A client that reads random batches, four of them under way, into buffers of its own.
class batch_reader {
public:
  /// Compares the first batches with the samples.
  batch_reader(client of, const sample_files& files);
  /// Reads so many batches.
  void read(std::size_t batches);
  /// Reads all samples in their order.
  void load(warm_buffer& into) { reader_.load(0, into.bytes()).get(); }

private:
  void check() const;

  const sample_files& of_;
  client client_;
  set_reader reader_;
  std::vector<batch_ids> batches_;
  std::vector<std::unique_ptr<warm_buffer>> buffers_;
};

/// Measures random batches beside one read of all samples, each by a client of its own, in so many
/// rounds. The peer of the row is that read, scaled to the bytes of a batch.
row against_large_read(
  std::string name, const sample_files& files, client reads, client alone, std::size_t batches,
  std::size_t rounds);

/// How batches are taken.
struct taking {
  std::size_t batch = batch_size; // samples
  double compute_s = 0;           // after each batch
  std::uint32_t prefetch = 4;

  void compute() const;
};

/// Several ranks of a training, each with a connection and a loader, in a thread.
class training {
public:
  /// Compares the first batch of each rank with the samples. `files`: of a window.
  training(
    const data_service& at, const sample_files& of, const taking& how, std::size_t ranks,
    const open_options& files = {});
  /// Returns the seconds in which each rank takes so many batches.
  double take(std::size_t batches);

private:
  struct rank {
    client of;
    loader batches;
  };

  std::optional<batch> next(rank& r) const;
  void check(const batch& b) const;

  const sample_files& of_;
  const taking how_;
  std::vector<std::unique_ptr<rank>> ranks_;
};

/// The same by Python: PyTorch's DataLoader from files, and the package's loader, where they are.
class python_trainings {
public:
  /// `announce` prints versions.
  python_trainings(const data_service& at, bool announce);

  /// Adds DataLoaders over what the samples lie in to a contest. Call it once for each `of`.
  named_samples add_peers(
    contest& c, const sample_files& of, const taking& how, std::size_t batches);
  /// Adds the package's loader; null if there is no package.
  const samples* add_ours(
    contest& c, const sample_files& of, const taking& how, std::size_t batches);

private:
  std::optional<python_peer> torch_, ours_;
};

} // namespace millrace::bench
