// The memory of a data server, from the heap. Used by tests of its actor.
#pragma once

#include <millrace/actors/loader/data_server.hpp>

#include <atomic>
#include <memory>
#include <vector>

namespace millrace::testing {

/// Regions of 1 MiB, and the words that count how often each was lent.
struct heap_data_memory {
  static constexpr std::uint64_t region_bytes = 1 << 20;

  struct bytes {
    explicit bytes(std::size_t count) : regions(count * region_bytes), words(count) {}

    std::vector<std::byte> regions;
    std::vector<std::atomic<std::uint64_t>> words;
  };

  explicit heap_data_memory(
    std::size_t regions, std::uint32_t leases_max = 100,
    const storage::samples::pool_limits& limits = {})
    : held(std::make_shared<bytes>(regions)) {
    std::vector<storage::samples::pool_region> parts;
    for (std::size_t i = 0; i < regions; ++i)
      parts.push_back(
        {{held->regions.data() + i * region_bytes, region_bytes}, &held->words[i], held});
    memory.pool =
      std::make_shared<storage::samples::sample_pool>(std::move(parts), region_bytes, limits);
    auto generations = transport::expose(
      {tensor_view{
        {"generations", dtype::u64, {regions}},
        reinterpret_cast<std::byte*>(held->words.data()),
        {}}},
      access_mode::read);
    memory.generations = std::make_shared<transport::region>(std::move(generations.value()));
    memory.leases = std::make_shared<lent_places>(leases_max, "leases");
  }

  std::shared_ptr<bytes> held;
  actors::data_memory memory;
};

} // namespace millrace::testing
