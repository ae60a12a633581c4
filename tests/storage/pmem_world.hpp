// A pool of one test with its checkpoints, and the steps that most tests take.
// Used by tests of checkpoints in storage/pmem.
#pragma once

#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tests/support/checkpoint_driving.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pool_place.hpp>

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>

namespace millrace::testing {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;

/// An open pool that can be closed and opened again.
struct world {
  explicit world(pool_way way, std::uint64_t capacity_bytes = 64 * mib)
    : place(way), options(place.options(capacity_bytes)) {
    place.prepare();
    open();
  }
  ~world() { close(); }

  void open() {
    auto opened = open_pool(options);
    BOOST_REQUIRE_MESSAGE(opened, why(opened));
    owner = *opened;
    store = owner->checkpoints();
  }
  void close() {
    if (store)
      BOOST_TEST(store->close(30'000).ok());
    store.reset();
    owner.reset();
  }
  void reopen() {
    close();
    open();
  }

  void enroll_or_fail(const shard_spec& shard) {
    auto outcome = enroll(*store, shard);
    BOOST_REQUIRE_MESSAGE(outcome, why(outcome));
  }
  void save_or_fail(const shard_spec& shard, std::uint64_t step) {
    auto outcome = save(*store, shard, step);
    BOOST_REQUIRE_MESSAGE(outcome, why(outcome));
    BOOST_REQUIRE(*outcome == step);
  }
  /// Model `a` of one tensor of 1 MiB, registered, with these steps.
  shard_spec saved(std::initializer_list<std::uint64_t> steps) {
    auto shard = shard_of("a", {mib});
    enroll_or_fail(shard);
    for (auto step : steps)
      save_or_fail(shard, step);
    return shard;
  }
  bool holds(const shard_spec& shard, std::optional<std::uint64_t> step = {}) {
    auto outcome = check_version(*store, shard, step);
    BOOST_TEST_MESSAGE(outcome.to_string());
    return outcome.ok();
  }
  errc opening(const shard_spec& shard, std::optional<std::uint64_t> step = {}) {
    auto opened = open_version(*store, shard.model, shard.rank, step);
    return opened ? errc::ok : opened.error().code();
  }
  std::vector<version_summary> slots(const shard_spec& shard) {
    for (auto& s : summary_of(*store, shard.model).shards)
      if (s.rank == shard.rank)
        return s.slots;
    return {};
  }

  pool_place place;
  storage::pool_options options;
  std::shared_ptr<storage::pool> owner;
  std::shared_ptr<storage::checkpoint_store> store;
};

} // namespace millrace::testing
