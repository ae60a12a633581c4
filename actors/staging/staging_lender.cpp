// Lends staging memory when it comes back.
#include <millrace/actors/staging/staging_lender.hpp>

#include <utility>
#include <vector>

namespace millrace::actors {

namespace {

constexpr std::uint64_t border_bytes = 4096;

} // namespace

void staging_lender::ask(party who, std::uint64_t size_bytes, completion<memory_block> granted) {
  // Shares count what allocations take.
  size_bytes = (size_bytes + border_bytes - 1) / border_bytes * border_bytes;
  if (size_bytes > memory_->capacity_bytes())
    return granted(fail(
      errc::no_space, "a window of {} bytes, but the staging memory has {} in all", size_bytes,
      memory_->capacity_bytes()));
  std::unique_lock lock{mutex_};
  waiting_.push(std::move(who), {size_bytes, std::move(granted), {}});
  serve(std::move(lock));
}

void staging_lender::serve(std::unique_lock<std::mutex> lock) {
  std::vector<request> served;
  auto is_short = false;
  auto may = [&](const party& who, request& r) {
    // The first request that has its share waits for memory before all others, also when what is
    // free lies in pieces.
    if (is_short || !shares_.fits(who, r.size_bytes))
      return false;
    auto block = memory_->allocate(r.size_bytes, border_bytes);
    is_short = !block;
    if (is_short)
      return false;
    shares_.take(who, r.size_bytes);
    r.block = lend(who, std::move(*block));
    return true;
  };
  while (auto one = waiting_.next(may))
    served.push_back(std::move(one->second));
  lock.unlock();
  for (auto& r : served)
    r.granted(std::move(r.block));
}

memory_block staging_lender::lend(const party& who, memory_block block) {
  auto returns = [self = shared_from_this(), who, size_bytes = block.size_bytes,
                  owner = std::move(block.owner)](void*) mutable {
    owner.reset();
    std::unique_lock lock{self->mutex_};
    self->shares_.give_back(who, size_bytes);
    self->serve(std::move(lock));
  };
  return {block.data, block.size_bytes, {block.data, std::move(returns)}};
}

} // namespace millrace::actors
