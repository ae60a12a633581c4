// Keeps a list of free blocks; who gets one is decided by shared places.
#include <millrace/actors/staging/shared_places.hpp>
#include <millrace/actors/staging/staging_blocks.hpp>

#include <mutex>
#include <vector>

namespace millrace::actors {

namespace {

class staging_blocks_impl : public staging_blocks {
public:
  staging_blocks_impl(memory_block all, std::uint64_t block_bytes)
    : all_(std::move(all)), block_bytes_(block_bytes) {
    for (std::uint64_t at = 0; at + block_bytes <= all_.size_bytes; at += block_bytes)
      free_.push_back(all_.data + at);
    places_ = std::make_shared<shared_places>(free_.size());
  }

  std::uint64_t block_bytes() const noexcept override { return block_bytes_; }

  void lease(party who, completion<memory_block> done) override {
    auto self = std::static_pointer_cast<staging_blocks_impl>(shared_from_this());
    places_->ask(
      std::move(who), 1,
      [self, done = std::move(done)](const result<std::shared_ptr<void>>& place) {
        done(self->lend(*place));
      });
  }

private:
  // There are as many blocks as places.
  memory_block lend(std::shared_ptr<void> place) {
    auto self = std::static_pointer_cast<staging_blocks_impl>(shared_from_this());
    std::lock_guard guard{mutex_};
    auto* data = free_.back();
    free_.pop_back();
    auto take_back = [self, place = std::move(place)](void* p) mutable {
      {
        std::lock_guard inner{self->mutex_};
        self->free_.push_back(static_cast<std::byte*>(p));
      }
      place.reset();
    };
    return {data, block_bytes_, std::shared_ptr<void>{data, std::move(take_back)}};
  }

  memory_block all_;
  const std::uint64_t block_bytes_;
  std::shared_ptr<shared_places> places_;
  std::mutex mutex_;
  std::vector<std::byte*> free_;
};

} // namespace

result<std::shared_ptr<staging_blocks>> staging_blocks::make(
  memory_source& memory, std::uint64_t block_bytes, std::uint32_t count) {
  auto all = memory.allocate(block_bytes * count, 4096);
  if (!all)
    return fail(all.error().within("staging memory for snapshots"));
  return std::make_shared<staging_blocks_impl>(std::move(*all), block_bytes);
}

} // namespace millrace::actors
