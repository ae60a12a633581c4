// What a power cut may leave of a pool: every store that was not written back may be there or not, line by line.
#pragma once

#include <millrace/storage/pmem/persist.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace millrace::testing {

/// Records the pool's own stores, flushes and fences, and makes images of the pool as a power cut would leave it.
///
/// A line is certain once it was flushed after its last store and a fence followed; bulk data once the pool says that
/// it is persistent. Until then a cut leaves the certain content or any that was there since, each line by itself: all
/// that may follow where that is not too much, else some of it. libpmemobj's own changes are trusted: no cut happens
/// in the middle of one.
class power_cut_recorder : public storage::pmem::persist_observer {
public:
  /// Gets an image, called at every point where a cut is tried. Must not touch the pool.
  using try_image = std::function<void(std::span<const std::byte> image, const std::string& what)>;

  /// From now on, cuts are tried. `live`: the mapping of the whole pool.
  void watch(std::span<const std::byte> live, try_image attempt);
  void stop();

  /// Drops every call of that kind, as a defect would: for a test of the test.
  void forget_flushes() { forgets_flushes_ = true; }
  void forget_bulk() { forgets_bulk_ = true; }

  std::uint64_t cuts() const { return cuts_; }
  /// Of these, those of which every image was tried.
  std::uint64_t whole_cuts() const { return whole_cuts_; }
  std::uint64_t images() const { return images_; }

  void stores(const void* target, const void* source, std::size_t size_bytes) override;
  void flushes(const void* target, std::size_t size_bytes) override;
  void fences() override;
  void bulk_begins(const void* target, std::size_t size_bytes) override;
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
  };
  /// What one line may be.
  struct choice {
    std::uint64_t line = 0;
    std::vector<line_image>
      contents; // different ones, at least two: the certain one first, the present one last
  };

  std::uint64_t line_of(const void* p) const;
  bool watching() const { return !live_.empty(); }
  line_image now(std::uint64_t line) const;
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
  std::map<std::uint64_t, uncertain_line> lines_;
  std::vector<std::byte> image_;
  std::mt19937_64 random_{7};
  bool forgets_flushes_ = false;
  bool forgets_bulk_ = false;
  std::uint64_t cuts_ = 0;
  std::uint64_t whole_cuts_ = 0;
  std::uint64_t images_ = 0;
};

} // namespace millrace::testing
