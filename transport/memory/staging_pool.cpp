// Best-fit allocation on an arena.
#include <millrace/core/free_runs.hpp>
#include <millrace/transport/memory/staging_pool.hpp>

#include <algorithm>
#include <mutex>

namespace millrace::transport {

namespace {

constexpr std::uint64_t unit_bytes = 64;

class staging_pool : public memory_source, public std::enable_shared_from_this<staging_pool> {
public:
  explicit staging_pool(std::shared_ptr<arena> a) : arena_(std::move(a)) {
    space_.give(0, arena_->size_bytes());
  }

  result<memory_block> allocate(std::uint64_t size_bytes, std::size_t alignment) override {
    auto rounded = size_bytes <= capacity_bytes()
      ? std::max<std::uint64_t>((size_bytes + unit_bytes - 1) / unit_bytes * unit_bytes, unit_bytes)
      : size_bytes;
    std::unique_lock guard{mutex_};
    auto offset = space_.take(rounded, std::max<std::size_t>(alignment, unit_bytes));
    if (!offset)
      return fail(
        errc::no_space, "asked for {} bytes of staging memory; free {} of {}, largest run {}",
        size_bytes, space_.size(), capacity_bytes(), space_.largest().first);
    guard.unlock(); // the owner gives the block back if making it throws
    auto* data = arena_->data() + *offset;
    std::shared_ptr<void> owner{
      data, [self = shared_from_this(), offset = *offset, rounded](void*) {
        std::lock_guard lock{self->mutex_};
        self->space_.give(offset, rounded);
      }};
    return memory_block{data, size_bytes, std::move(owner)};
  }

  bool contiguous() const noexcept override { return arena_->huge(); }
  std::uint64_t capacity_bytes() const noexcept override { return arena_->size_bytes(); }

  std::uint64_t used_bytes() const noexcept override {
    std::lock_guard guard{mutex_};
    return capacity_bytes() - space_.size();
  }

private:
  std::shared_ptr<arena> arena_;
  mutable std::mutex mutex_;
  free_runs space_;
};

} // namespace

std::shared_ptr<memory_source> make_staging_pool(std::shared_ptr<arena> a) {
  return std::make_shared<staging_pool>(std::move(a));
}

} // namespace millrace::transport
