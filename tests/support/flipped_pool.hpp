// Flips bits of a pool, and watches a process that opens it then.
// Used by tests of storage/pmem.
#pragma once

#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/checkpoint_driving.hpp>
#include <millrace/tests/support/dice.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/pool_place.hpp>

#include <boost/test/unit_test.hpp>
#include <sys/wait.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace millrace::testing {

class flipped_pool {
public:
  /// How a process ended that opened the pool: used it, was refused with an error, read bytes that
  /// were never stored, or died by a signal (a deadline is one, too).
  enum class outcome : int { used, refused, wrong, died };

  static constexpr std::uint64_t pool_bytes = 24u << 20;

  flipped_pool() {
    fill_pool();
    bytes_ = contents_of(place_.path());
    for (std::uint64_t at = 0; at < chunks_at; ++at)
      if (bytes_[at] != 0)
        used_.push_back(at);
  }

  /// Draws bits: some anywhere in front of the tensors, some in the logs and headers that are not
  /// 0, and some where a chunk begins, with the bitmap of a run or the header of an object.
  std::vector<std::uint64_t> draw(dice& by, std::size_t count) const {
    std::vector<std::uint64_t> bits;
    for (std::size_t i = 0; i < count; ++i) {
      auto kind = by.below(3);
      auto at = kind == 0 ? by.below(front_bytes)
        : kind == 1       ? used_[by.below(used_.size())]
                          : chunks_at + by.below(10) * chunk_bytes + by.below(256);
      bits.push_back(at * 8 + by.below(8));
    }
    return bits;
  }

  /// Flips the bits in a copy and returns what comes of opening it.
  outcome open_with(const std::vector<std::uint64_t>& bits) const {
    restore(bits);
    auto child = ::fork();
    if (child == 0) {
      ::alarm(60);
      ::_exit(static_cast<int>(use()));
    }
    int how = 0;
    BOOST_REQUIRE(child > 0);
    BOOST_REQUIRE(::waitpid(child, &how, 0) == child);
    return WIFEXITED(how) && WEXITSTATUS(how) <= 2 ? static_cast<outcome>(WEXITSTATUS(how))
                                                   : outcome::died;
  }

  std::string path() const { return place_.path(); }

private:
  // libpmemobj lays a heap out from its beginning: logs, headers of chunks, then the chunks.
  static constexpr std::uint64_t front_bytes = 6u << 20;
  static constexpr std::uint64_t chunk_bytes = 256u << 10;
  static constexpr std::uint64_t chunks_at = 8192 + (3u << 20) + 1024 + (512u << 10);

  void fill_pool() {
    auto opened = storage::open_pool(options());
    BOOST_REQUIRE(opened);
    auto store = (*opened)->checkpoints();
    auto models = (*opened)->models();
    BOOST_REQUIRE(enroll(*store, shard_));
    for (auto step : {1u, 2u})
      BOOST_REQUIRE(save(*store, shard_, step));
    for (auto& [name, sizes] : models_)
      BOOST_REQUIRE(testing::store(*models, spec_of(name, sizes), sizes.size()));
    BOOST_REQUIRE(testing::erase(*models, models_.front().first).ok());
    models_.erase(models_.begin());
    BOOST_REQUIRE(store->close(10'000).ok());
  }

  storage::pool_options options() const {
    auto chosen = place_.options(pool_bytes);
    chosen.populate = false;
    return chosen;
  }

  void restore(const std::vector<std::uint64_t>& bits) const {
    auto flipped = bytes_;
    for (auto bit : bits)
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    std::ofstream file{place_.path(), std::ios::binary | std::ios::trunc};
    file.write(flipped.data(), static_cast<std::streamsize>(flipped.size()));
  }

  // All that a service and the command do with a pool.
  outcome use() const {
    static_cast<void>(storage::inspect_pool(place_.path()));
    static_cast<void>(storage::check_pool(place_.path(), true));
    read_all salvaged;
    static_cast<void>(storage::salvage_pool(place_.path(), salvaged));
    auto opened = storage::open_pool(options());
    if (!opened)
      return outcome::refused;
    auto store = (*opened)->checkpoints();
    auto models = (*opened)->models();
    auto step_2 = check_version(*store, shard_, 2);
    if (is_wrong(check_version(*store, shard_, 1)) || is_wrong(step_2))
      return outcome::wrong;
    for (auto& [name, sizes] : models_)
      if (is_wrong(check_model(*models, name, sizes.size())))
        return outcome::wrong;
    static_cast<void>(enroll(*store, shard_));
    static_cast<void>(save(*store, shard_, 3));
    auto stored = testing::store(*models, spec_of("new", {300'000, 2'000}), 9);
    static_cast<void>(testing::erase(*models, models_.front().first));
    static_cast<void>((*opened)->info());
    // Space that is lent twice shows here.
    if (step_2.ok() && !check_version(*store, shard_, 2).ok())
      return outcome::wrong;
    if (stored && !check_model(*models, "new", 9).ok())
      return outcome::wrong;
    static_cast<void>(store->close(10'000));
    return outcome::used;
  }

  // What salvage calls whole is read to its end.
  struct read_all final : storage::salvager {
    status take(
      const storage::archive::version_origin&,
      std::unique_ptr<storage::archive::tensor_source> source) override {
      auto& tensors = source->tensors().tensors;
      for (std::uint32_t i = 0; i < tensors.size(); ++i) {
        std::vector<std::byte> bytes(size_bytes(tensors[i]).value());
        if (auto bad = source->read(i, 0, bytes); !bad.ok())
          return bad;
      }
      return {};
    }
    void lose(const std::string&) override {}
  };

  // A flip in a tensor is what its digests find. They themselves must be what was stored.
  static bool is_wrong(const status& outcome) {
    return !outcome.ok() && outcome.detail().find("digests") != std::string::npos;
  }

  pool_place place_{in_place_way()};
  shard_spec shard_ = shard_of("a model", {1u << 20, 300});
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> models_ = {
    {"gone", {200'000}}, {"small", {100, 70'000}}, {"large", {900'000, 3, 900'000}}};
  std::string bytes_;
  std::vector<std::uint64_t> used_; // bytes of logs and headers that are not 0
};

/// Opens a pool once for each seed, with so many bits flipped, and returns how often it was
/// refused.
inline std::size_t flip_and_open(std::uint64_t first_seed, std::uint64_t seeds, std::size_t bits) {
  flipped_pool subject;
  std::map<flipped_pool::outcome, std::size_t> outcomes;
  for (auto seed = first_seed; seed < first_seed + seeds; ++seed) {
    dice by{seed};
    auto outcome = subject.open_with(subject.draw(by, bits));
    ++outcomes[outcome];
    BOOST_TEST(
      (outcome != flipped_pool::outcome::died),
      "a signal with seed " << seed << " and " << bits << " bits");
    BOOST_TEST(
      (outcome != flipped_pool::outcome::wrong),
      "wrong bytes with seed " << seed << " and " << bits << " bits");
  }
  auto refused = outcomes[flipped_pool::outcome::refused];
  BOOST_TEST_MESSAGE(
    bits << " bits: " << outcomes[flipped_pool::outcome::used] << " used, " << refused
         << " refused");
  return refused;
}

} // namespace millrace::testing
