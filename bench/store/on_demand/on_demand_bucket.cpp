// An arena for each allocation.
#include <millrace/bench/store/on_demand/on_demand_bucket.hpp>
#include <millrace/storage/bucket_keys.hpp>
#include <millrace/storage/memory/memory_bucket.hpp>
#include <millrace/transport/memory/arena.hpp>

#include <array>
#include <atomic>

namespace millrace::bench {

namespace {

class on_demand_source : public memory_source,
                         public std::enable_shared_from_this<on_demand_source> {
public:
  explicit on_demand_source(const transport::arena_options& options) : options_(options) {}

  result<memory_block> allocate(std::uint64_t size_bytes, std::size_t) override {
    auto before = used_.fetch_add(size_bytes);
    if (before > options_.size_bytes || size_bytes > options_.size_bytes - before) {
      used_ -= size_bytes;
      return fail(
        errc::no_space,
        "asked for " + std::to_string(size_bytes) + " bytes on demand; " + std::to_string(before) +
          " of " + std::to_string(options_.size_bytes) + " are lent");
    }
    auto options = options_;
    options.size_bytes = std::max<std::uint64_t>(size_bytes, 1);
    auto made = transport::arena::create(options);
    if (!made) {
      used_ -= size_bytes;
      return fail(made.error());
    }
    auto* data = (*made)->data();
    std::shared_ptr<void> owner{
      data, [self = shared_from_this(), a = std::move(*made), size_bytes](void*) {
        self->used_ -= size_bytes;
      }};
    return memory_block{data, size_bytes, std::move(owner)};
  }

  bool contiguous() const noexcept override { return false; }
  std::uint64_t capacity_bytes() const noexcept override { return options_.size_bytes; }
  std::uint64_t used_bytes() const noexcept override { return used_; }

private:
  transport::arena_options options_;
  std::atomic<std::uint64_t> used_ = 0;
};

} // namespace

result<std::shared_ptr<storage::bucket>> open_on_demand_bucket(
  on_demand_options options, std::shared_ptr<memory_source>) {
  auto memory = std::make_shared<on_demand_source>(transport::arena_options{
    .name = "millrace.on_demand",
    .size_bytes = options.capacity_bytes,
    .huge_pages = true,
    .lock = true});
  return storage::open_memory_bucket({options.capacity_bytes}, std::move(memory));
}

} // namespace millrace::bench

namespace millrace::config {

template <>
key_table<bench::on_demand_options> keys_of() {
  static constexpr auto rows = std::to_array<bound_key<bench::on_demand_options>>({
    key<&bench::on_demand_options::capacity_bytes>(storage::capacity_key),
  });
  return {rows};
}

} // namespace millrace::config
