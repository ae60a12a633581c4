// Tests the order in which a pool's bytes become persistent: when a publish makes something
// visible, all of it is persistent.
#include <millrace/storage/pmem/medium/persist.hpp>
#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/checkpoint_driving.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pool_place.hpp>

#include <boost/test/unit_test.hpp>

#include <map>
#include <mutex>
#include <set>
#include <thread>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;

namespace {

/// Knows which cache lines a power cut could take away, at every publish.
class line_recorder final : public pmem::persist_observer {
public:
  void stores(const void* target, const void*, std::size_t size_bytes) override {
    std::lock_guard guard{mutex_};
    for_lines(target, size_bytes, [&](auto line) { stored_.insert(line), flushed_.erase(line); });
    ++stores_;
  }
  void flushes(const void* target, std::size_t size_bytes) override {
    std::lock_guard guard{mutex_};
    for_lines(target, size_bytes, [&](auto line) {
      if (stored_.erase(line) > 0)
        flushed_[line] = std::this_thread::get_id();
    });
  }
  void fences() override {
    std::lock_guard guard{mutex_};
    std::erase_if(flushed_, [](auto& entry) { return entry.second == std::this_thread::get_id(); });
  }
  void bulk_begins(const void* target, std::size_t size_bytes) override {
    std::lock_guard guard{mutex_};
    for_lines(target, size_bytes, [&](auto line) { bulk_.insert(line); });
  }
  void bulk_flushes(const void* target, std::size_t size_bytes) override {
    std::lock_guard guard{mutex_};
    for_lines(target, size_bytes, [&](auto line) {
      if (bulk_.erase(line) > 0)
        flushed_[line] = std::this_thread::get_id();
    });
  }
  void bulk_written_back(const void* target, std::size_t size_bytes) override {
    std::lock_guard guard{mutex_};
    for_lines(target, size_bytes, [&](auto line) { bulk_.erase(line); });
  }
  void bulk_persisted(const void* target, std::size_t size_bytes) override {
    std::lock_guard guard{mutex_};
    for_lines(target, size_bytes, [&](auto line) {
      early_ += bulk_.contains(line) || flushed_.contains(line);
    });
  }
  void publishes() override {
    std::lock_guard guard{mutex_};
    ++publishes_;
    loose_ += !stored_.empty() || !flushed_.empty();
    with_bulk_ += !bulk_.empty();
  }
  void published() override {}

  int loose() const { return loose_; }         // publishes while own stores were not persistent
  int with_bulk() const { return with_bulk_; } // publishes while a slot was being filled
  int early() const { return early_; }         // lines that were taken for persistent, and were not
  int publishes_seen() const { return publishes_; }
  int stores_seen() const { return stores_; }
  std::size_t bulk_lines() const { return bulk_.size(); }

private:
  template <class F>
  static void for_lines(const void* target, std::size_t size_bytes, F f) {
    auto at = reinterpret_cast<std::uintptr_t>(target);
    for (auto line = at / 64; line <= (at + size_bytes - 1) / 64 && size_bytes > 0; ++line)
      f(line);
  }

  std::mutex mutex_;
  std::set<std::uintptr_t> stored_, bulk_;
  std::map<std::uintptr_t, std::thread::id> flushed_; // by whom
  int loose_ = 0, with_bulk_ = 0, early_ = 0, publishes_ = 0, stores_ = 0;
};

} // namespace

BOOST_AUTO_TEST_SUITE(pmem_persistence)

BOOST_AUTO_TEST_CASE(every_publish_finds_its_bytes_persistent) {
  auto recorder = std::make_shared<line_recorder>();
  pool_place place{in_place_way()};
  auto options = place.options();
  options.observer = recorder;
  auto opened = open_pool(options);
  BOOST_REQUIRE_MESSAGE(opened, why(opened));
  auto store = (*opened)->checkpoints();
  auto shard = shard_of("a", {3u << 20, 100});
  BOOST_REQUIRE(enroll(*store, shard));
  for (auto step : {1, 2, 3}) {
    auto pending = begin(*store, "a", 0, step);
    BOOST_REQUIRE(pending);
    BOOST_TEST(recorder->bulk_lines() > 3u * 16384);
    BOOST_TEST(recorder->with_bulk() == 0);
    BOOST_REQUIRE(finish(**pending, shard, step));
    BOOST_TEST(recorder->bulk_lines() == 0u);
  }
  store->leave("a", 0, true);
  BOOST_REQUIRE(repack(*store));
  shard.keep = 3;
  BOOST_REQUIRE(enroll(*store, shard));
  store->leave("a", 0, true);
  BOOST_TEST(erase(*store, "a").ok());
  auto models = (*opened)->models();
  for (std::uint64_t seed : {1, 2})
    BOOST_REQUIRE(testing::store(*models, spec_of("a", {3u << 20, 100}), seed));
  BOOST_TEST(recorder->bulk_lines() == 0u);
  BOOST_REQUIRE(await<void>([&](auto done) { models->pin("a", true, std::move(done)); }));
  BOOST_TEST(erase(*models, "a").ok());
  BOOST_TEST(recorder->publishes_seen() >= 15);
  BOOST_TEST(recorder->stores_seen() >= 16);
  BOOST_TEST(recorder->loose() == 0);
  BOOST_TEST(recorder->early() == 0);
  BOOST_TEST(recorder->with_bulk() == 0);
}

BOOST_AUTO_TEST_SUITE_END()
