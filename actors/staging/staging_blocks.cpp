// Keeps a list of free blocks and a queue of requests.
#include <millrace/actors/staging/staging_blocks.hpp>

#include <deque>
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
  }

  std::uint64_t block_bytes() const noexcept override { return block_bytes_; }

  void lease(completion<memory_block> done) override {
    std::byte* data = nullptr;
    {
      std::lock_guard guard{mutex_};
      if (free_.empty()) {
        waiting_.push_back(std::move(done));
        return;
      }
      data = free_.back();
      free_.pop_back();
    }
    done(lend(data));
  }

private:
  memory_block lend(std::byte* data) {
    auto self = std::static_pointer_cast<staging_blocks_impl>(shared_from_this());
    return {data, block_bytes_, std::shared_ptr<void>{data, [self](void* p) {
                                                        self->take_back(static_cast<std::byte*>(p));
                                                      }}};
  }

  void take_back(std::byte* data) {
    completion<memory_block> next;
    {
      std::lock_guard guard{mutex_};
      if (waiting_.empty()) {
        free_.push_back(data);
        return;
      }
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next(lend(data));
  }

  memory_block all_;
  const std::uint64_t block_bytes_;
  std::mutex mutex_;
  std::vector<std::byte*> free_;
  std::deque<completion<memory_block>> waiting_;
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
