// Makes the regions one after the other: each is touched by all cores. Then their pages are
// gathered while the node works.
#include <millrace/config/units.hpp>
#include <millrace/core/huge_pages.hpp>
#include <millrace/runtime/node/data_memory.hpp>

#include <fmt/format.h>

#include <atomic>
#include <new>

namespace millrace::runtime {

namespace {

constexpr std::size_t page_bytes = 4096;

result<memory_block> make_block(
  const std::string& name, std::uint64_t size_bytes, node_memory& memory) {
  return memory.make(name, size_bytes, transport::arena_sharing::read_only)
    .and_then([&](const auto& source) { return source->allocate(size_bytes, page_bytes); });
}

// Samples are read at random.
struct gathered_pool {
  storage::samples::sample_pool pool;
  page_gathering gathering;
};

} // namespace

result<actors::data_memory> make_data_memory(
  const actors::data_options& options, node_memory& memory) {
  using word = std::atomic<std::uint64_t>;
  if (auto bad = memory.check("working sets", options.capacity_bytes); !bad.ok())
    return fail(bad);
  auto count = region_count(options);
  auto words = make_block("data.generations", count * sizeof(word), memory);
  if (!words)
    return fail(words.error());
  std::vector<storage::samples::pool_region> regions;
  std::vector<memory_block> blocks;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto block = make_block(fmt::format("data.{}", i), options.region_bytes, memory);
    if (!block)
      return fail(block.error());
    auto* generation = new (words->data + i * sizeof(word)) word{1};
    auto hold = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(
      block->owner, words->owner);
    regions.push_back({{block->data, options.region_bytes}, generation, std::move(hold)});
    blocks.push_back(std::move(*block));
  }
  auto generations = transport::expose(
    {tensor_view{{"generations", dtype::u64, {count}}, words->data, {}}}, access_mode::read);
  if (!generations)
    return fail(generations.error());
  actors::data_memory out;
  std::shared_ptr<gathered_pool> made{new gathered_pool{
    {std::move(regions),
     options.region_bytes,
     {options.sets_max, options.quota_bytes, options.when_full}},
    page_gathering{std::move(blocks)}}};
  out.pool = {made, &made->pool};
  // The words stay as long as anybody may look at them.
  out.generations = {
    new transport::region{std::move(*generations)},
    [words = std::move(*words)](const transport::region* r) { delete r; }};
  out.leases =
    std::make_shared<lent_places>(options.leases_max, "leases of working sets (data.leases_max)");
  return out;
}

} // namespace millrace::runtime
