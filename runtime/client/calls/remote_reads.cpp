// Takes stages off the reads that wait, in their order, submits them, and copies what has come
// through staging memory.
#include <millrace/core/clock.hpp>
#include <millrace/runtime/client/calls/remote_reads.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/submit_all.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace millrace::runtime {

using transport::local_copy;
using transport::transfer;

namespace {

// A request; longer parts are cut, so that stages are even.
constexpr std::uint64_t request_bytes_max = 256u << 10;

status stopped() { return {errc::cancelled, "the read was cancelled"}; }

} // namespace

struct remote_reads::reading {
  remote_read what; // its parts are requests
  std::vector<std::uint64_t> sizes;
  std::shared_ptr<void> registered; // the arena of the memory; null: it goes through staging memory
  completion<void> done;
  std::size_t asked = 0;   // requests
  std::size_t running = 0; // stages
  status why;

  reading(remote_read r, completion<void> then) : what(std::move(r)), done(std::move(then)) {
    std::vector<remote_part> requests;
    for (auto& part : what.parts)
      for (std::uint64_t at = 0; at < part.length; at += request_bytes_max) {
        auto length = std::min(part.length - at, request_bytes_max);
        requests.push_back({part.from, part.offset + at, length, part.to + at});
        sizes.push_back(length);
      }
    what.parts = std::move(requests);
    if (sizes.empty())
      return;
    auto place = transport::find_arena(what.into.data(), what.into.size());
    if (place && place->in->sharing() == transport::arena_sharing::transfers)
      registered = std::move(place->in);
  }

  bool is_stopped() const { return what.stop && *what.stop; }
  bool is_asked() const { return asked == what.parts.size() || !why.ok(); }
  bool is_over() const { return is_asked() && running == 0; }
};

struct remote_reads::stage {
  actors::read_stage paced;
  std::shared_ptr<reading> of;
  std::size_t first = 0; // of the requests
  memory_block block;    // none: the memory is registered

  std::span<const remote_part> requests() const {
    return std::span{of->what.parts}.subspan(first, paced.requests);
  }

  // The ops of one region are one transfer.
  std::vector<transfer> transfers() const {
    std::map<const bulk_handle*, std::vector<transport::copy_op>> ops;
    auto* staged = block.data;
    for (auto& part : requests()) {
      ops[part.from].push_back({part.offset, staged ? staged : part.to, part.length});
      staged = staged ? staged + part.length : nullptr;
    }
    std::vector<transfer> out;
    out.reserve(ops.size());
    for (auto& [from, list] : ops)
      out.push_back(
        {.remote = *from,
         .ops = std::move(list),
         .hold = block.data ? block.owner : of->registered});
    return out;
  }

  std::vector<local_copy> copies() const {
    std::vector<local_copy> out;
    auto* staged = block.data;
    for (auto& part : requests()) {
      out.push_back({part.to, staged, part.length});
      staged += part.length;
    }
    return out;
  }
};

remote_reads::remote_reads(
  std::shared_ptr<transport::fabric> fabric, const actors::read_options& options)
  : fabric_(std::move(fabric)), options_(options), pacer_(options) {}

void remote_reads::read(remote_read what, completion<void> done) {
  auto one = std::make_shared<reading>(std::move(what), std::move(done));
  if (one->is_over())
    return one->done({});
  bool makes = false;
  {
    std::lock_guard guard{mutex_};
    makes = !one->registered && !staging_ && !std::exchange(makes_staging_, true);
    if (makes)
      no_staging_ = {};
    pacer_.wants_from(one->what.parts.front().from->owner, steady_clock::now());
    waiting_.push_back(std::move(one));
  }
  makes ? make_staging() : pump();
}

remote_counts remote_reads::counts() {
  std::lock_guard guard{mutex_};
  return {pacer_.limit_bytes(), pacer_.inflight_bytes(), pacer_.inflight_stages(), pacer_.stages()};
}

// Touching the pages takes milliseconds, which neither the caller nor the I/O loop has.
void remote_reads::make_staging() {
  fabric_->movers()->submit(
    1,
    [self = shared_from_this()](std::uint32_t) {
      auto made = self->fabric_->make_memory(
        {.name = "millrace.reading", .size_bytes = self->options_.staging_bytes});
      std::lock_guard guard{self->mutex_};
      self->makes_staging_ = false; // after a failure the next read tries again
      if (made)
        self->staging_ = std::move(*made);
      else
        self->no_staging_ = made.error().within("memory for reads (reading.staging)");
    },
    [self = shared_from_this()] { self->pump(); });
}

// One thread at a time; the one that pumps sees what others have changed meanwhile.
void remote_reads::pump() {
  std::unique_lock lock{mutex_};
  if (std::exchange(pumping_, true))
    return;
  while (true) {
    std::vector<std::shared_ptr<reading>> over;
    auto next = take(over);
    if (!next && over.empty())
      break;
    lock.unlock();
    for (auto& one : over)
      one->done(fail(one->why));
    if (next)
      begin(next);
    lock.lock();
  }
  pumping_ = false;
}

// Returns the next stage of the first read that can go on. `over` gets reads that ended instead.
remote_reads::stage_ptr remote_reads::take(std::vector<std::shared_ptr<reading>>& over) {
  leave_out_stopped(over);
  while (!waiting_.empty()) {
    auto one = waiting_.front();
    if (one->is_asked()) {
      waiting_.pop_front();
      if (one->is_over())
        over.push_back(std::move(one));
      continue;
    }
    auto next = std::make_shared<stage>();
    next->of = one;
    next->first = one->asked;
    if (!one->registered && !staging_ && no_staging_.ok())
      return nullptr; // it is being made
    auto paced = pacer_.next(std::span{one->sizes}.subspan(one->asked), steady_clock::now());
    if (!paced)
      return nullptr;
    next->paced = *paced;
    if (!find_memory(*next)) {
      pacer_.ended(paced->number, steady_clock::now(), false);
      if (staged_ > 0)
        return nullptr; // a block comes back
      continue;
    }
    one->asked += paced->requests;
    ++one->running;
    return next;
  }
  return nullptr;
}

// Who cancels waits for the end of a read, also of one that has not begun.
void remote_reads::leave_out_stopped(std::vector<std::shared_ptr<reading>>& over) {
  std::erase_if(waiting_, [&](auto& one) {
    if (!one->is_stopped())
      return false;
    if (one->why.ok())
      one->why = stopped();
    if (one->is_over())
      over.push_back(one);
    return true;
  });
}

// Returns false if there is no block now. If none will come back, the read has failed.
bool remote_reads::find_memory(stage& s) {
  if (s.of->registered)
    return true;
  auto block = staging_ ? staging_->allocate(s.paced.bytes, 64) : fail(no_staging_);
  if (block) {
    s.block = std::move(*block);
    ++staged_;
  } else if (staged_ == 0) {
    s.of->why = block.error();
  }
  return block.has_value();
}

void remote_reads::begin(const stage_ptr& s) {
  transport::submit_all(
    *fabric_, s->transfers(),
    [self = shared_from_this(), s](const result<void>& outcome) { self->moved(s, outcome); });
}

void remote_reads::moved(const stage_ptr& s, const result<void>& outcome) {
  {
    std::lock_guard guard{mutex_};
    pacer_.ended(s->paced.number, steady_clock::now(), outcome.has_value());
  }
  if (!outcome || !s->block.data || s->of->is_stopped())
    return end(s, outcome ? status{} : outcome.error());
  // The network works on while the bytes are copied.
  pump();
  fabric_->copy(s->copies(), false, [self = shared_from_this(), s](const result<void>& copied) {
    self->end(s, copied ? status{} : copied.error());
  });
}

void remote_reads::end(const stage_ptr& s, const status& why) {
  auto& one = s->of;
  bool is_last = false;
  {
    std::lock_guard guard{mutex_};
    if (s->block.data)
      --staged_;
    s->block = {};
    if (one->why.ok() && !why.ok())
      one->why = why;
    if (one->why.ok() && one->is_stopped())
      one->why = stopped();
    --one->running;
    is_last = one->is_over();
    if (is_last)
      std::erase(waiting_, one);
  }
  if (is_last)
    one->done(one->why.ok() ? result<void>{} : fail(one->why));
  pump();
}

} // namespace millrace::runtime
