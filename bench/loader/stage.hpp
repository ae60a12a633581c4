// What the sections of bench_loader share: samples in memory and in files, a node with a data
// server, and trainings that take batches.
#pragma once

#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/common/model_table.hpp>
#include <millrace/bench/common/options.hpp>
#include <millrace/bench/common/peers.hpp>
#include <millrace/runtime/client/client.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace::bench {

inline constexpr std::uint64_t kib = 1024, mib = 1024 * kib;
inline constexpr std::size_t batch_size = 64;
inline constexpr std::size_t few_plans = 61; // different batches of a program that asks for them
inline constexpr std::uint64_t region_bytes = 32 * mib;
inline constexpr std::uint64_t round_bytes = 64 * mib; // that each reads in a round, at least
inline constexpr std::size_t batches_min = 8;
inline constexpr double loader_goal = 3;       // times the best DataLoader
inline constexpr double large_read_goal = 0.7; // of the rate of a large read over tcp, at 50 KiB

struct sample_kind {
  const char* name;
  std::uint64_t bytes;
  double floor_goal;
};
inline constexpr std::array<sample_kind, 3> kinds{
  {{"4KiB", 4 * kib, 0.75}, {"50KiB", 50 * kib, 0.9}, {"600KiB", 600 * kib, 0.9}}};

using batch_ids = std::vector<std::uint64_t>;

/// Returns so many numbers of samples, at random.
batch_ids random_ids(std::size_t count, std::uint64_t samples, std::uint64_t seed);

/// How large samples are whose sizes vary: normally distributed, and at least 1 KiB.
struct size_spread {
  std::uint64_t mean_bytes;
  std::uint64_t deviation_bytes;
};

/// Samples in memory for the floors, and in files for everybody else.
class sample_files {
public:
  /// Samples of one size, in one `.npy` file.
  sample_files(const scratch_directory& files, const sample_kind& of, std::uint64_t all_bytes);
  /// Samples that vary, each a file of a directory. There are as many as fit.
  sample_files(
    const scratch_directory& files, std::string name, const size_spread& of,
    std::uint64_t all_bytes);
  ~sample_files();
  sample_files(const sample_files&) = delete;
  sample_files& operator=(const sample_files&) = delete;

  const std::string& name() const noexcept { return name_; }
  const std::string& path() const noexcept { return path_; }
  /// Returns the bytes of a sample.
  std::span<const std::byte> operator[](std::uint64_t id) const {
    return memory_->bytes().subspan(begins_[id], begins_[id + 1] - begins_[id]);
  }
  std::uint64_t samples() const noexcept { return begins_.size() - 1; }
  /// Returns the bytes of each sample; 0 if they vary.
  std::uint64_t sample_bytes() const noexcept { return sample_bytes_; }
  std::uint64_t size_bytes() const noexcept { return begins_.back(); }
  std::span<const std::byte> bytes() const { return memory_->first(size_bytes()); }
  /// Returns the bytes of a batch of so many samples; of samples that vary, the mean.
  std::uint64_t batch_bytes(std::size_t batch) const;
  std::size_t batches_of_round() const;
  /// Returns what Python is told of them.
  model_table table(std::size_t batch) const;

private:
  std::string name_, path_;
  std::uint64_t sample_bytes_ = 0;
  std::vector<std::uint64_t> begins_; // and the end
  std::unique_ptr<warm_buffer> memory_;
};

/// A node with a data server, in its own process.
class data_service {
public:
  data_service(const scratch_directory& files, std::uint64_t capacity_bytes);

  const std::string& address() const noexcept { return address_; }
  /// Returns a client, which has one driver alone if that is named. With "shm" it maps no regions,
  /// so that it reads by transfers.
  client connect(const char* driver = nullptr) const;

private:
  std::string address_;
  child process_;
};

/// Starts a node by a file of its configuration, in its own process.
child start_node(const std::string& config_path);

/// Runs `work(i)` on as many threads. The calling one is the first.
void on_threads(std::size_t threads, const std::function<void(std::size_t)>& work);

/// Gathers random batches from memory with streaming stores, each thread its own ones. `plans`
/// different batches take turns: as many as those beside it, since few of them stay in the caches.
class gather_floor {
public:
  gather_floor(const sample_files& of, std::size_t threads, std::size_t plans);
  /// Returns the seconds of so many batches.
  double gather(std::size_t batches);

private:
  void gather_one(const batch_ids& ids, std::byte* to) const;

  const sample_files& of_;
  std::vector<batch_ids> batches_;
  std::vector<std::unique_ptr<warm_buffer>> targets_;
};

using named_samples = std::vector<std::pair<std::string, const samples*>>;

/// Returns the name and the median of the fastest; an empty name and infinity if there is none.
std::pair<std::string, double> fastest(const named_samples& of);

/// What a section gets.
struct stage {
  const model_options& options;
  const scratch_directory& files;
  report& out;

  bool wants(const std::string& name) const {
    return options.model.empty() || name.find(options.model) != std::string::npos;
  }
  std::size_t rounds(std::size_t usual) const {
    return options.rounds > 0 ? options.rounds : options.quick ? 1 : usual;
  }
  std::uint64_t set_bytes() const { return (options.quick ? 64 : 256) * mib; }
};

void read_section(const stage& s);    // set_reader::read_batch
void next_section(const stage& s);    // loader::next
void train_section(const stage& s);   // loops that take batches and compute
void window_section(const stage& s);  // a set that is larger than the memory
void samples_section(const stage& s); // ten million samples
void images_section(const stage& s);  // JPEG as pixels
void network_section(const stage& s); // several data servers on hosts behind a switch
void verbs_section(const stage& s);   // RDMA devices, in a guest where there are none

} // namespace millrace::bench
