// Best-fit allocation on an arena.
#include <millrace/core/assert.hpp>
#include <millrace/transport/memory/staging_pool.hpp>

#include <iterator>
#include <map>
#include <mutex>
#include <set>

namespace millrace::transport {

namespace {

constexpr std::uint64_t unit_bytes = 64;

// The free runs by offset and by size. Both maps always describe the same runs.
class free_space {
public:
  explicit free_space(std::uint64_t size_bytes) : free_bytes_(size_bytes) { add(0, size_bytes); }

  std::uint64_t free_bytes() const { return free_bytes_; }
  std::uint64_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

  // Returns the offset of a run of `size_bytes`, or -1.
  std::int64_t take(std::uint64_t size_bytes, std::uint64_t alignment) {
    for (auto i = by_size_.lower_bound({size_bytes, 0}); i != by_size_.end(); ++i) {
      auto [run_bytes, first] = *i;
      auto start = (first + alignment - 1) / alignment * alignment;
      if (start - first > run_bytes || size_bytes > run_bytes - (start - first))
        continue;
      remove(first, run_bytes);
      add(first, start - first);
      add(start + size_bytes, run_bytes - (start - first) - size_bytes);
      free_bytes_ -= size_bytes;
      return static_cast<std::int64_t>(start);
    }
    return -1;
  }

  void give(std::uint64_t offset, std::uint64_t size_bytes) {
    free_bytes_ += size_bytes;
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.begin()) {
      auto [first, run_bytes] = *std::prev(next);
      MILLRACE_ASSERT(first + run_bytes <= offset);
      if (first + run_bytes == offset) {
        remove(first, run_bytes);
        offset = first;
        size_bytes += run_bytes;
      }
    }
    if (next != by_offset_.end() && next->first == offset + size_bytes) {
      auto run_bytes = next->second;
      remove(next->first, run_bytes);
      size_bytes += run_bytes;
    }
    add(offset, size_bytes);
  }

private:
  void add(std::uint64_t offset, std::uint64_t size_bytes) {
    if (size_bytes == 0)
      return;
    by_offset_.emplace(offset, size_bytes);
    by_size_.emplace(size_bytes, offset);
  }
  void remove(std::uint64_t offset, std::uint64_t size_bytes) {
    by_offset_.erase(offset);
    by_size_.erase({size_bytes, offset});
  }

  std::map<std::uint64_t, std::uint64_t> by_offset_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
  std::uint64_t free_bytes_;
};

class staging_pool : public memory_source, public std::enable_shared_from_this<staging_pool> {
public:
  explicit staging_pool(std::shared_ptr<arena> a)
    : arena_(std::move(a)), space_(arena_->size_bytes()) {}

  result<memory_block> allocate(std::uint64_t size_bytes, std::size_t alignment) override {
    auto rounded = size_bytes <= capacity_bytes()
      ? std::max<std::uint64_t>((size_bytes + unit_bytes - 1) / unit_bytes * unit_bytes, unit_bytes)
      : size_bytes;
    std::lock_guard guard{mutex_};
    auto offset = space_.take(rounded, std::max<std::size_t>(alignment, unit_bytes));
    if (offset < 0)
      return fail(
        errc::no_space, "asked for {} bytes of staging memory; free {} of {}, largest run {}",
        size_bytes, space_.free_bytes(), capacity_bytes(), space_.largest());
    auto* data = arena_->data() + offset;
    std::shared_ptr<void> owner{data, [self = shared_from_this(), offset, rounded](void*) {
                                  std::lock_guard lock{self->mutex_};
                                  self->space_.give(static_cast<std::uint64_t>(offset), rounded);
                                }};
    return memory_block{data, size_bytes, std::move(owner)};
  }

  bool contiguous() const noexcept override { return arena_->huge(); }
  std::uint64_t capacity_bytes() const noexcept override { return arena_->size_bytes(); }

  std::uint64_t used_bytes() const noexcept override {
    std::lock_guard guard{mutex_};
    return capacity_bytes() - space_.free_bytes();
  }

private:
  std::shared_ptr<arena> arena_;
  mutable std::mutex mutex_;
  free_space space_;
};

} // namespace

std::shared_ptr<memory_source> make_staging_pool(std::shared_ptr<arena> a) {
  return std::make_shared<staging_pool>(std::move(a));
}

} // namespace millrace::transport
