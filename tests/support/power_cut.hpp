// What a power cut may leave of a pool: every store that was not written back may be there or not, line by line.
#pragma once

#include <millrace/storage/pmem/medium/persist.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <ranges>
#include <span>
#include <thread>
#include <vector>

namespace millrace::testing {

/// Records the pool's own stores, flushes and fences, and makes images of the pool as a power cut would leave it.
///
/// A line is certain once it was flushed after its last store and a fence of the same thread followed; bulk data
/// likewise, or once its mover has written it back. Until then a cut leaves the certain content or any that was there
/// since, each line by itself: all that may follow where that is not too much, else some of it. libpmemobj's own
/// changes are trusted: no cut happens in the middle of one.
class power_cut_recorder : public storage::pmem::persist_observer {
public:
  /// Gets an image, called at every point where a cut is tried. Must not touch the pool.
  using try_image = std::function<void(std::span<const std::byte> image, const std::string& what)>;

  /// From now on, cuts are tried. `live`: the mapping of the whole pool.
  void watch(std::span<const std::byte> live, try_image attempt);
  void stop();

  /// What a defect would leave out of the calls, for a test of the test.
  struct defects {
    bool no_flushes = false;         // of the pool's own stores
    bool no_bulk = false;            // neither flushed nor written back by the mover
    bool first_line_of_bulk = false; // likewise, of each range
  };
  void forget(const defects& what) { forgets_ = what; }

  std::uint64_t cuts() const { return cuts_; }
  /// Of these, those of which every image was tried.
  std::uint64_t whole_cuts() const { return whole_cuts_; }
  std::uint64_t images() const { return images_; }

  void stores(const void* target, const void* source, std::size_t size_bytes) override;
  void flushes(const void* target, std::size_t size_bytes) override;
  void fences() override;
  void bulk_begins(const void* target, std::size_t size_bytes) override;
  void bulk_flushes(const void* target, std::size_t size_bytes) override;
  void bulk_written_back(const void* target, std::size_t size_bytes) override;
  void bulk_persisted(const void* target, std::size_t size_bytes) override;
  void publishes() override;
  void published() override;

private:
  static constexpr std::size_t line_bytes = 64;
  using line_image = std::array<std::byte, line_bytes>;

  struct uncertain_line {
    line_image certain; // what was there last for sure
    bool bulk = false;
    std::vector<line_image>
      since; // what else it was, in that order; what it is now is not among it
    std::optional<std::size_t> flushed; // of `since`: written back, not yet fenced
    std::thread::id flusher;            // whose fence it waits for
  };
  /// What one line may be.
  struct choice {
    std::uint64_t line = 0;
    std::vector<line_image>
      contents; // different ones, at least two: the certain one first, the present one last
  };

  using line_map = std::map<std::uint64_t, uncertain_line>;

  std::uint64_t line_of(const void* p) const;
  /// The lines of a range that are not certain.
  std::ranges::subrange<line_map::iterator> lines_in(const void* target, std::size_t size_bytes);
  bool watching() const { return !live_.empty(); }
  line_image now(std::uint64_t line) const;
  void flush_lines(const void* target, std::size_t size_bytes);
  void uncertain(std::uint64_t line, bool bulk);
  void cut(const std::string& where);
  std::vector<choice> choices_now() const;
  void enumerate(const std::string& where, const std::vector<choice>& choices);
  void sample(const std::string& where, const std::vector<choice>& choices);
  void attempt(
    const std::string& what, const std::vector<choice>& choices,
    const std::function<std::size_t(std::size_t)>& pick);

  std::mutex mutex_;
  std::span<const std::byte> live_;
  try_image attempt_;
  line_map lines_;
  std::vector<std::byte> image_;
  std::mt19937_64 random_{7};
  defects forgets_;
  std::uint64_t cuts_ = 0;
  std::uint64_t whole_cuts_ = 0;
  std::uint64_t images_ = 0;
};

} // namespace millrace::testing
