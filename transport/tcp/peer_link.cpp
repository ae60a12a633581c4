// Decides which stream carries which chunk, and what happens when a stream breaks.
#include <millrace/core/codec.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/log.hpp>
#include <millrace/transport/tcp/peer_link.hpp>

#include <algorithm>

namespace millrace::transport::tcp {

void peer_link::submit(transfer t, completion<transfer_report> done) {
  status refused;
  {
    std::lock_guard guard{mutex_};
    if (closed_ || !channel_->is_open())
      refused = {errc::peer_lost, "the connection to {} is closed", peer().name};
    else if (transfers_ >= options_.transfers_max)
      refused = {
        errc::busy,
        "there are {} transfers with {} already; raise tcp.transfers_max, or ask for fewer at a "
        "time",
        transfers_, peer().name};
    else
      ++transfers_;
  }
  if (!refused.ok())
    return done(fail(std::move(refused)));
  auto ended = [self = shared_from_this(),
                done = std::move(done)](result<transfer_report> outcome) {
    {
      std::lock_guard guard{self->mutex_};
      --self->transfers_;
    }
    done(std::move(outcome));
  };
  queue(std::make_shared<job>(std::move(t), std::move(ended)), false);
  feed();
}

bool peer_link::is_small(const job& j) const noexcept {
  return j.bytes() <= options_.small_bytes_max && j.what().ops.size() <= ranges_max;
}

void peer_link::queue(std::shared_ptr<job> j, bool first) {
  status why;
  {
    std::lock_guard guard{mutex_};
    auto& q = is_small(*j) ? small_ : turns_;
    if (!closed_ && hopeful_)
      return static_cast<void>(
        first ? q.insert(q.begin(), std::move(j)) : q.insert(q.end(), std::move(j)));
    why = closed_ ? why_ : last_failure_;
  }
  j->abandon(why);
}

void peer_link::feed() {
  while (auto next = pick()) {
    if (next->on->issue(next->what))
      continue;
    // The stream was closed just now; `stream_closed` follows.
    auto of = next->what->of;
    {
      std::lock_guard guard{mutex_};
      auto& s = slots_[next->slot];
      if (s.s == next->on)
        s.s = nullptr;
    }
    of->put_back(std::move(next->what));
    queue(std::move(of), true);
  }
}

// Small transfers go first, since they wait for the first stream only. The others take turns, chunk
// by chunk.
std::optional<peer_link::next_chunk> peer_link::pick() {
  std::lock_guard guard{mutex_};
  if (closed_)
    return std::nullopt;
  if (auto slot = small_slot())
    if (auto next = take_from(small_, *slot))
      return next;
  if (auto slot = bulk_slot())
    return take_from(turns_, *slot);
  return std::nullopt;
}

std::optional<peer_link::next_chunk> peer_link::take_from(jobs& queue, std::size_t slot) {
  // The chunk size that both sides accept. The peer has announced its own before the first stream.
  auto chunk_bytes =
    std::min(theirs_.chunk_bytes, options_.chunk_bytes) / digest_block_bytes * digest_block_bytes;
  while (!queue.empty()) {
    auto j = std::move(queue.front());
    queue.pop_front();
    auto c = job::take(j, chunk_bytes);
    if (j->has_work())
      queue.push_back(std::move(j));
    if (!c)
      continue;
    auto& to = slots_[slot];
    ++to.chunks;
    to.bytes += c->bytes;
    return next_chunk{std::move(c), to.s, slot};
  }
  return std::nullopt;
}

bool peer_link::has_room(const slot& s) const noexcept {
  return s.s && s.chunks < std::min(options_.requests_max, theirs_.requests_max) &&
    (s.chunks == 0 || s.bytes + options_.chunk_bytes <= options_.inflight_bytes_max);
}

std::optional<std::size_t> peer_link::small_slot() const {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (auto& s = slots_[i]; s.s) {
      if (s.chunks < std::min(options_.requests_max, theirs_.requests_max))
        return i;
      if (i == 0)
        return std::nullopt;
    }
  return std::nullopt;
}

// Returns the stream with the least to do. The first stream is used only if there is no other.
std::optional<std::size_t> peer_link::bulk_slot() const {
  std::optional<std::size_t> best;
  bool others = false;
  for (std::size_t i = 1; i < slots_.size(); ++i) {
    others |= slots_[i].s != nullptr;
    if (has_room(slots_[i]) && (!best || slots_[i].bytes < slots_[*best].bytes))
      best = i;
  }
  if (!best && !others && !slots_.empty() && has_room(slots_[0]))
    best = 0;
  return best;
}

void peer_link::chunk_ended(stream& s, std::unique_ptr<chunk> c, status outcome) {
  {
    std::lock_guard guard{mutex_};
    if (auto* of = slot_of(s.serial())) {
      --of->chunks;
      of->bytes -= c->bytes;
    }
  }
  feed();
  auto of = c->of;
  of->end(std::move(c), std::move(outcome));
}

peer_link::slot* peer_link::slot_of(std::uint64_t serial) {
  for (auto& s : slots_)
    if (s.serial == serial)
      return &s;
  return nullptr;
}

void peer_link::stream_closed(
  stream& s, std::vector<std::unique_ptr<chunk>> unfinished, const status& why) {
  auto serial = s.serial();
  std::vector<std::unique_ptr<chunk>> given_up;
  status ended = why;
  std::optional<std::size_t> reopen;
  bool confirm = false;
  bool closed = false;
  {
    std::lock_guard guard{mutex_};
    closed = closed_;
    if (closed_)
      ended = why_;
    if (auto* of = slot_of(serial)) {
      of->s = nullptr;
      of->serial = 0;
      of->chunks = 0;
      of->bytes = 0;
      if (we_open_ && !closed_)
        reopen = static_cast<std::size_t>(of - slots_.data());
    }
    confirm = to_confirm_.erase(serial) > 0;
    auto& kept = broken_[serial];
    for (auto& c : unfinished)
      (closed_ || ++c->attempts >= options_.attempts_max ? given_up : kept.chunks)
        .push_back(std::move(c));
    if (closed_)
      broken_.erase(serial);
  }
  for (auto& c : given_up) {
    auto of = c->of;
    of->end(std::move(c), ended);
  }
  if (closed)
    return;
  log().debug("stream closed peer={} why=\"{}\"", peer().name, why.to_string());
  send(message_kind::lost, lost{serial});
  if (confirm)
    send(message_kind::gone, gone{serial});
  if (reopen)
    open_later(*reopen, false);
  if (why.code() == errc::protocol_error)
    channel_->close(why.within("a stream"));
}

// The peer's end is closed. This end must be closed before the peer gets `gone`.
void peer_link::on_lost(std::uint64_t serial) {
  std::shared_ptr<stream> open;
  {
    std::lock_guard guard{mutex_};
    if (auto* of = slot_of(serial); of && serial != 0) {
      open = of->s;
      to_confirm_.insert(serial);
      // It is closing: `stream_closed` will confirm.
      if (!open)
        return;
    }
  }
  if (!open)
    return send(message_kind::gone, gone{serial});
  open->close({errc::peer_lost, peer().name + " lost a stream"});
}

void peer_link::on_gone(std::uint64_t serial) {
  std::vector<std::unique_ptr<chunk>> chunks;
  {
    std::lock_guard guard{mutex_};
    auto found = broken_.find(serial);
    if (found == broken_.end())
      return;
    chunks = std::move(found->second.chunks);
    broken_.erase(found);
  }
  ask_again(std::move(chunks));
}

void peer_link::ask_again(std::vector<std::unique_ptr<chunk>> chunks) {
  for (auto& c : chunks) {
    auto of = c->of;
    of->put_back(std::move(c));
    if (of->has_work())
      queue(std::move(of), true);
  }
  feed();
}

// Ends the transfers that wait for a stream.
void peer_link::give_up(const status& why) {
  jobs waiting;
  {
    std::lock_guard guard{mutex_};
    hopeful_ = false;
    last_failure_ = why;
    waiting.swap(turns_);
    waiting.insert(waiting.end(), small_.begin(), small_.end());
    small_.clear();
  }
  for (auto& j : waiting)
    j->abandon(why);
}

void peer_link::close(const status& why) {
  std::vector<std::shared_ptr<stream>> open;
  std::map<std::uint64_t, broken_stream> broken;
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return;
    closed_ = true;
    why_ = why;
    for (auto& s : slots_)
      if (s.s)
        open.push_back(s.s);
    broken.swap(broken_);
  }
  give_up(why);
  for (auto& [serial, b] : broken)
    for (auto& c : b.chunks) {
      auto of = c->of;
      of->end(std::move(c), why);
    }
  for (auto& s : open)
    s->close(why);
}

} // namespace millrace::transport::tcp
