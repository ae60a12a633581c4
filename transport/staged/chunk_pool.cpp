// An arena in equal parts, made at the first request of a peer.
#include <millrace/transport/staged/chunk_pool.hpp>

#include <cstring>
#include <utility>

namespace millrace::transport::staged {

std::uint64_t chunk_pool::new_borrower() {
  std::lock_guard guard{mutex_};
  live_.insert(++borrowers_);
  return borrowers_;
}

void chunk_pool::acquire(
  const party& who, std::uint64_t borrower, std::uint64_t request,
  std::function<void(result<chunk*>)> use) {
  std::unique_lock lock{mutex_};
  waiting_.push(who, {who, borrower, request, std::move(use)});
  post_serving(lock);
}

// Called for every request and for every returned chunk, so that no request waits beside a free
// chunk. At most one serving per chunk is posted, however many requests come and are cancelled.
void chunk_pool::post_serving(std::unique_lock<std::mutex>& lock) {
  if (servings_ == count_)
    return;
  ++servings_;
  lock.unlock();
  movers_->devices().submit(
    1, [self = shared_from_this()](std::uint32_t) { self->serve_one(); }, [] {});
}

void chunk_pool::serve_one() {
  auto made = make_arena();
  chunk* c = nullptr;
  request next;
  {
    std::lock_guard guard{mutex_};
    --servings_;
    if (made.ok() && free_.empty())
      return;
    auto may = [&](auto& who, auto&) { return !made.ok() || shares_.fits(who); };
    auto found = waiting_.next(may);
    if (!found)
      return;
    next = std::move(*found);
    if (made.ok()) {
      // Prefers the borrower's own chunk, whose regions are exposed already.
      auto own = std::find_if(
        free_.begin(), free_.end(), [&](auto* f) { return f->borrower == next.borrower; });
      auto taken = own == free_.end() ? free_.begin() : own;
      c = *taken;
      free_.erase(taken);
      shares_.take(next.who);
      c->holder = std::move(next.who);
    }
  }
  if (!made.ok()) {
    // No chunk was taken, so none will come back and start the next serving.
    std::unique_lock lock{mutex_};
    if (!waiting_.empty())
      post_serving(lock);
  }
  next.use(made.ok() ? result<chunk*>{c} : fail(made));
}

status chunk_pool::make_arena() {
  std::lock_guard guard{making_};
  if (arena_)
    return {};
  // Peers of other users map it, too, and must not take pages from the system's pool.
  auto made = arena::create(
    {.name = "millrace-staged", .size_bytes = count_ * options_.chunk_bytes, .huge_pages = false});
  if (!made)
    return made.error().within("staging for devices (staged.size)");
  std::lock_guard lock{mutex_};
  arena_ = std::move(*made);
  for (std::uint64_t i = 0; i < count_; ++i) {
    auto& c = *chunks_.emplace_back(std::make_unique<chunk>());
    c.data = arena_->data() + i * options_.chunk_bytes;
    c.size_bytes = options_.chunk_bytes;
    free_.push_back(&c);
  }
  return {};
}

void chunk_pool::cancel(std::uint64_t borrower, std::uint64_t number) {
  std::optional<request> dropped; // destroyed without the lock
  std::lock_guard guard{mutex_};
  dropped = waiting_.remove([&](auto& r) { return r.borrower == borrower && r.number == number; });
}

void chunk_pool::give_back(chunk* c, bool withdraw) {
  if (!withdraw)
    return put(c);
  // Withdrawing waits for movers, so it must not run on the caller's thread.
  movers_->devices().submit(
    1,
    [self = shared_from_this(), c](std::uint32_t) {
      c->readable.withdraw();
      c->writable.withdraw();
      self->put(c);
    },
    [] {});
}

void chunk_pool::put(chunk* c) {
  std::unique_lock lock{mutex_};
  // The borrower went away while its chunk was copied.
  if ((c->readable || c->writable) && !live_.contains(c->borrower)) {
    lock.unlock();
    return give_back(c, true);
  }
  // A chunk that only had its regions withdrawn was free all along.
  if (c->holder)
    shares_.give_back(*std::exchange(c->holder, std::nullopt));
  free_.push_back(c);
  if (!waiting_.empty())
    post_serving(lock);
}

bulk_handle chunk_pool::lend(chunk& c, std::uint64_t borrower, access_mode how) {
  if (c.borrower != borrower) {
    c.readable.withdraw();
    c.writable.withdraw();
    c.borrower = borrower;
    // The region covers the whole chunk, and a peer must not see another peer's bytes.
    std::memset(c.data, 0, c.size_bytes);
  }
  auto& r = how == access_mode::read ? c.readable : c.writable;
  if (!r) {
    // The view is host memory and dense, so it cannot be refused.
    tensor_view all{{"chunk", dtype::u8, {c.size_bytes}}, c.data, {}};
    r = expose(gather_list::of({all}, how).value(), how);
  }
  return r.handle();
}

void chunk_pool::forget(std::uint64_t borrower) {
  std::vector<chunk*> theirs;
  {
    std::lock_guard guard{mutex_};
    live_.erase(borrower);
    for (auto* c : free_)
      if (c->borrower == borrower)
        theirs.push_back(c);
    std::erase_if(free_, [&](auto* c) { return c->borrower == borrower; });
  }
  for (auto* c : theirs)
    give_back(c, true);
}

chunk_pool::counts chunk_pool::now() const {
  std::lock_guard guard{mutex_};
  return {chunks_.size(), free_.size(), waiting_.size()};
}

} // namespace millrace::transport::staged
