// Computes what a power cut may leave of a pool: each line that was not written back may be stored
// or not.
// Used by crash tests of the pool.
#pragma once

#include <millrace/storage/pmem/medium/persist.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <vector>

namespace millrace::testing {

/// Records the pool's own stores, flushes and fences, and makes images of the pool as a power cut
/// would leave it.
///
/// A line is certain once it was flushed after its last store and the same thread then issued a
/// fence. Bulk data is certain then, too, or once its mover has written it back. Until then a cut
/// leaves either the certain content or any later content, for each line independently. If these
/// give few images, all are tried, else some. Changes by libpmemobj itself are trusted: no cut
/// happens inside one.
class power_cut_recorder : public storage::pmem::persist_observer {
public:
  /// Gets an image at every point where a cut is tried. Must not touch the pool.
  using try_image = std::function<void(std::span<const std::byte> image, const std::string& what)>;

  /// Begins to try cuts, or only to record. `live` is the mapping of the whole pool.
  void watch(std::span<const std::byte> live, try_image attempt = {});
  void stop();

  /// What a cut now leaves at an offset in the pool.
  struct lost_line {
    std::uint64_t offset = 0;
    std::array<std::byte, 64> content{};
  };
  /// Returns lines that a cut now leaves as they were before; `pick(n)` chooses one of `n` contents
  /// for each. Lines to which a peer may be writing stay as they are.
  std::vector<lost_line> lost_by_a_cut(const std::function<std::size_t(std::size_t)>& pick);

  /// Calls to leave out, as a defect would, to test the test itself.
  struct defects {
    bool no_flushes = false;         // ignores flushes of the pool's own stores
    bool no_bulk = false;            // ignores flushes and write-backs of bulk data
    bool first_line_of_bulk = false; // the same, for the first line of each range
  };
  void forget(const defects& what) { forgets_ = what; }

  std::uint64_t cuts() const { return cuts_; }
  /// Returns at how many cuts every image was tried.
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
    line_image certain; // the last content known to be durable
    bool bulk = false;
    // Its other contents since then, in order, without the present one.
    std::vector<line_image> since;
    std::optional<std::size_t> flushed; // index into `since`: written back, not yet fenced
    std::thread::id flusher;            // the thread whose fence it waits for
  };
  /// The possible contents of one line.
  struct choice {
    std::uint64_t line = 0;
    // At least two different ones: the certain content first, the present one last.
    std::vector<line_image> contents;
  };

  using line_map = std::map<std::uint64_t, uncertain_line>;

  std::uint64_t line_of(const void* p) const;
  /// Returns the uncertain lines of a range.
  struct line_range {
    line_map::iterator first, last;
    line_map::iterator begin() const { return first; }
    line_map::iterator end() const { return last; }
  };
  line_range lines_in(const void* target, std::size_t size_bytes);
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
  std::set<std::uint64_t> changed_; // lines since the last fence, and those that others flushed
  std::vector<std::byte> image_;
  std::mt19937_64 random_{7};
  defects forgets_;
  std::uint64_t cuts_ = 0;
  std::uint64_t whole_cuts_ = 0;
  std::uint64_t images_ = 0;
};

} // namespace millrace::testing
