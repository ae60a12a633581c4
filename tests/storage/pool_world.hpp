// A pool of a data server's memory, and sets to take from it. For tests of the pool.
#pragma once

#include <millrace/storage/samples/sample_pool.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace millrace::testing {

inline constexpr std::uint64_t mib = region_bytes_min;
inline constexpr auto me = "user 1000";

// A pool of small regions. Its memory lives as long as the pool and all that it lent.
struct pool_world {
  explicit pool_world(
    std::size_t regions = 8, const storage::samples::pool_limits& limits = {.sets_max = 100}) {
    struct place {
      std::vector<std::byte> bytes;
      std::deque<std::atomic<std::uint64_t>> generations;
    };
    auto memory = std::make_shared<place>();
    memory->bytes.resize(regions * mib);
    memory->generations.resize(regions);
    std::vector<storage::samples::pool_region> of;
    for (std::size_t i = 0; i < regions; ++i) {
      generations.push_back(&memory->generations[i]);
      of.push_back({std::span{memory->bytes}.subspan(i * mib, mib), generations.back(), memory});
    }
    pool.emplace(std::move(of), mib, limits);
  }

  std::uint64_t generation(const storage::samples::set_region& region) const {
    return generations[region.index]->load();
  }

  std::vector<std::atomic<std::uint64_t>*> generations;
  std::optional<storage::samples::sample_pool> pool;
};

// A set that takes `regions` regions: most of each is samples, the rest their digests.
inline set_info set_of(const std::string& name, std::uint64_t regions, std::uint64_t source = 1) {
  set_info out;
  out.name = name;
  out.samples = regions * 1000;
  out.region_bytes = mib;
  out.source = source;
  out.fields = {{{"x", dtype::u8, {1000}}}};
  auto bad = place_fields(out);
  BOOST_REQUIRE_MESSAGE(bad.ok(), bad.to_string());
  BOOST_REQUIRE(region_count(out) == regions);
  return out;
}

inline std::shared_ptr<storage::samples::set_filling> reserve(
  pool_world& in, const set_info& set, const std::string& who = me) {
  auto got = in.pool->reserve(set, who);
  if (!got)
    BOOST_FAIL(got.error().to_string());
  BOOST_REQUIRE(got->filling);
  BOOST_REQUIRE(!got->existing);
  return got->filling;
}

inline std::shared_ptr<const storage::samples::stored_set> preload(
  pool_world& in, const set_info& set, const std::string& who = me) {
  auto got = in.pool->publish(reserve(in, set, who));
  if (!got)
    BOOST_FAIL(got.error().to_string());
  return *got;
}

inline status why(pool_world& in, const set_info& set, const std::string& who = me) {
  auto got = in.pool->reserve(set, who);
  BOOST_REQUIRE(!got);
  return got.error();
}

inline bool says(const status& error, const std::string& words) {
  return error.detail().find(words) != std::string::npos;
}

inline std::vector<std::string> names_of(const std::vector<set_info>& sets) {
  std::vector<std::string> out;
  for (auto& set : sets)
    out.push_back(set.name);
  return out;
}

} // namespace millrace::testing
