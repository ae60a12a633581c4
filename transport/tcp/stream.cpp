// A stream's life and its sending side.
#include <millrace/core/log.hpp>
#include <millrace/core/never_destroyed.hpp>
#include <millrace/transport/tcp/crc32c.hpp>
#include <millrace/transport/tcp/stream.hpp>

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace millrace::transport::tcp {

namespace {

// Zeros, which are sent in place of memory that cannot be reached any more. The length has been
// announced already.
std::span<std::byte> nothing() {
  return never_destroyed([] { return std::vector<std::byte>(64u << 10); });
}

} // namespace

/// The loop's reference to a stream. If the loop stops first, the user still learns that the stream
/// has ended.
struct stream::tie {
  explicit tie(std::shared_ptr<stream> s) : of(std::move(s)) {}
  tie(const tie&) = delete;
  ~tie() { of->finish({errc::unavailable, "the I/O loop has stopped"}); }
  std::shared_ptr<stream> of;
};

stream::stream(
  std::shared_ptr<net::io_loop> loop, std::unique_ptr<bulk_socket> io, std::uint64_t serial,
  std::string peer, const stream_limits& limits, std::weak_ptr<stream_user> user)
  : loop_(std::move(loop)), io_(std::move(io)), serial_(serial), peer_(std::move(peer)),
    limits_(limits), user_(std::move(user)),
    in_(body_bytes_max + trailer_bytes + header_bytes + limits.ahead_bytes) {}

// Watches both directions from the start, edge-triggered: any thread may find the socket full, and
// only the loop could ask to watch for room.
void stream::start() {
  auto watch = [t = std::make_shared<tie>(shared_from_this())] {
    auto& s = *t->of;
    {
      std::lock_guard guard{s.mutex_};
      if (s.closed_)
        return;
    }
    auto watched = s.loop_->watch(
      s.io_->fd(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
      [t](std::uint32_t events) { t->of->on_events(events); });
    if (!watched.ok())
      return s.finish(watched);
    // This begins the handshake of an encrypted stream.
    s.on_events(EPOLLIN);
  };
  if (loop_->on_loop())
    watch();
  else
    loop_->post(std::move(watch));
}

stream_progress stream::progress() const {
  stream_progress now;
  now.moved_bytes = moved_;
  std::lock_guard guard{mutex_};
  now.busy = receiving_ || (!closed_ && (!pending_.empty() || !out_.empty()));
  for (auto& [request, pending] : pending_)
    if (now.oldest_request == 0 || request < now.oldest_request)
      now.oldest_request = request;
  return now;
}

void stream::close(const status& why) {
  if (loop_->on_loop())
    return finish(why);
  loop_->post([s = shared_from_this(), why] { s->finish(why); });
}

// Runs on the loop, so no thread receives into memory now. `leave` waits for a thread that is
// sending.
void stream::finish(const status& why) {
  auto keep = shared_from_this();
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return;
    closed_ = true;
    why_ = why;
  }
  if (loop_->on_loop())
    loop_->unwatch(io_->fd());
  io_->shut();
  sink_.reset();
  leave();
}

// Called by the loop when it closes the stream, or by the thread that was sending then.
void stream::leave() {
  std::vector<std::unique_ptr<chunk>> unfinished;
  {
    std::lock_guard guard{mutex_};
    if (!closed_ || sending_ || left_)
      return;
    left_ = true;
    out_.clear();
    for (auto& [request, pending] : pending_)
      unfinished.push_back(std::move(pending.what));
    pending_.clear();
  }
  if (limits_.awaited)
    loop_->expect(-static_cast<std::int64_t>(unfinished.size()));
  if (auto user = user_.lock())
    return user->stream_closed(*this, std::move(unfinished), why_);
  for (auto& c : unfinished) {
    auto of = c->of;
    of->end(std::move(c), why_);
  }
}

std::uint64_t stream::outgoing::memory_left() const noexcept {
  return header.has_payload() ? header.length - memory_sent : 0;
}

bool stream::outgoing::complete() const noexcept {
  return head_sent == head.size() &&
    (!header.has_payload() || (memory_left() == 0 && trailer_sent == trailer.size()));
}

void stream::outgoing::mark_sent(
  std::size_t size_bytes, std::span<const iovec> memory_parts, bool checksum) {
  auto of_head = std::min(size_bytes, head.size() - head_sent);
  head_sent += of_head;
  auto of_memory = std::min<std::uint64_t>(size_bytes - of_head, memory_left());
  if (checksum && of_memory > 0)
    crc = add_crc32c(crc, memory_parts, of_memory);
  if (memory)
    memory->passed(of_memory);
  memory_sent += of_memory;
  trailer_sent += size_bytes - of_head - of_memory;
}

bool stream::issue(std::unique_ptr<chunk>& c) {
  outgoing item;
  auto& t = c->of->what();
  auto writes = t.dir == direction::write;
  item.header.kind = writes ? unit_kind::write : unit_kind::read;
  item.header.ranges = static_cast<std::uint16_t>(c->slices.size());
  item.header.length = c->bytes;
  item.header.region_end = c->of->region_end();
  item.head.resize(header_bytes + item.header.body_bytes());
  auto* at = item.head.data() + header_bytes;
  encode_target(t.remote.region, t.remote.key, at);
  at += target_bytes;
  for (auto& s : c->slices) {
    encode_range({s.remote_offset(), s.length}, at);
    at += range_bytes;
  }
  if (writes)
    item.memory = std::make_unique<local_payload>(*c, flow::out);
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return false;
    item.header.request = next_request_++;
    encode_header(item.header, item.head.data());
    pending_[item.header.request].what = std::move(c);
    out_.push_back(std::move(item));
  }
  if (limits_.awaited)
    loop_->expect(1);
  pump();
  return true;
}

// Queues the outcome of a request. The caller must pump.
void stream::answer(std::uint64_t request, const status& outcome) {
  outgoing item;
  auto words = std::string_view{outcome.detail()}.substr(0, words_bytes_max);
  item.header.kind = unit_kind::outcome;
  item.header.code = static_cast<std::uint8_t>(outcome.code());
  item.header.words_bytes = static_cast<std::uint32_t>(words.size());
  item.header.request = request;
  item.head.resize(header_bytes + words.size());
  encode_header(item.header, item.head.data());
  std::copy_n(
    reinterpret_cast<const std::byte*>(words.data()), words.size(),
    item.head.data() + header_bytes);
  std::lock_guard guard{mutex_};
  if (!closed_)
    out_.push_back(std::move(item));
}

// One thread sends at a time. Other threads set `again_` and go on.
void stream::pump() {
  std::unique_lock lock{mutex_};
  again_ = true;
  if (sending_)
    return;
  sending_ = true;
  budget_ = limits_.turn_bytes;
  std::vector<ended_chunk> ended;
  status broken;
  while (broken.ok() && std::exchange(again_, false))
    broken = send_queued(lock, ended);
  sending_ = false;
  auto closed = closed_;
  lock.unlock();
  tell(ended);
  if (closed)
    leave();
  else if (!broken.ok())
    close(broken);
}

// Sends until the queue is empty, the socket is full, or the turn is over. Only this thread takes
// items from the front.
status stream::send_queued(std::unique_lock<std::mutex>& lock, std::vector<ended_chunk>& ended) {
  auto on_loop = loop_->on_loop();
  while (!closed_ && !out_.empty()) {
    auto& front = out_.front();
    if (budget_ == 0 || (!on_loop && front.memory_left() > limits_.guest_bytes_max)) {
      continue_on_loop();
      return {};
    }
    lock.unlock();
    auto sent = send_some(front);
    lock.lock();
    if (sent.error_number == EAGAIN)
      return {};
    if (sent.error_number != 0)
      return {errc::peer_lost, "{}: {}", peer_, std::generic_category().message(sent.error_number)};
    budget_ -= std::min<std::uint64_t>(budget_, sent.size_bytes);
    if (front.complete()) {
      auto item = std::move(front);
      out_.pop_front();
      sent_locked(item.header, ended);
    }
  }
  if (closed_)
    return {};
  lock.unlock();
  auto error_number = io_->flush();
  lock.lock();
  return error_number == 0 || error_number == EAGAIN ? status{} : broken(error_number);
}

status stream::broken(int error_number) const {
  return {errc::peer_lost, "{}: {}", peer_, std::generic_category().message(error_number)};
}

void stream::continue_on_loop() {
  if (std::exchange(continuing_, true))
    return;
  loop_->post([weak = weak_from_this()] {
    auto s = weak.lock();
    if (!s)
      return;
    {
      std::lock_guard guard{s->mutex_};
      s->continuing_ = false;
    }
    s->pump();
  });
}

moved_bytes stream::send_some(outgoing& item) {
  std::array<iovec, parts_max + 2> parts;
  std::size_t n = 0;
  if (item.head_sent < item.head.size())
    parts[n++] = {item.head.data() + item.head_sent, item.head.size() - item.head_sent};
  auto first_of_memory = n;
  std::uint64_t in_memory = 0;
  if (auto left = item.memory_left(); left > 0) {
    std::size_t count = 0;
    if (item.memory && item.memory->failure().ok())
      count = item.memory->iovecs({parts.data() + n, parts_max}, std::min(left, call_bytes_max));
    if (count == 0) {
      auto filler = nothing();
      parts[n] = {filler.data(), std::min<std::uint64_t>(left, filler.size())};
      count = 1;
    }
    for (std::size_t i = 0; i < count; ++i)
      in_memory += parts[n + i].iov_len;
    n += count;
  }
  std::span memory{parts.data() + first_of_memory, n - first_of_memory};
  auto last = item.header.has_payload() && in_memory == item.memory_left();
  // With a checksum the trailer is sent after the bytes, since the call decides how many bytes are
  // sent.
  if (last && (!limits_.checksum || in_memory == 0)) {
    auto why = item.memory ? item.memory->failure().code() : errc::ok;
    encode_trailer(
      {item.header.request, item.crc, static_cast<std::uint8_t>(why)}, item.trailer.data());
    parts[n++] = {item.trailer.data() + item.trailer_sent, item.trailer.size() - item.trailer_sent};
  }
  auto more = item.header.has_payload() && (!last || (limits_.checksum && in_memory > 0));
  auto sent = io_->send({parts.data(), n}, more);
  if (sent.error_number == EFAULT && item.memory && item.memory->failure().ok()) {
    item.memory->passed(0);
    item.memory->fail({errc::io_error, "the memory to send cannot be read: its file is shorter"});
    return {};
  }
  item.mark_sent(sent.size_bytes, memory, limits_.checksum);
  moved_ += sent.size_bytes;
  return sent;
}

void stream::sent_locked(const unit_header& h, std::vector<ended_chunk>& ended) {
  if (h.kind == unit_kind::data || h.kind == unit_kind::outcome) {
    std::erase(unanswered_, h.request);
    return;
  }
  auto found = pending_.find(h.request);
  if (found == pending_.end())
    return;
  found->second.sent = true;
  if (!found->second.outcome)
    return;
  ended.emplace_back(std::move(found->second.what), std::move(*found->second.outcome));
  pending_.erase(found);
}

void stream::tell(std::vector<ended_chunk>& ended) {
  if (ended.empty())
    return;
  if (limits_.awaited)
    loop_->expect(-static_cast<std::int64_t>(ended.size()));
  auto user = user_.lock();
  for (auto& [c, outcome] : ended) {
    if (user) {
      user->chunk_ended(*this, std::move(c), std::move(outcome));
      continue;
    }
    auto of = c->of;
    of->end(std::move(c), std::move(outcome));
  }
  ended.clear();
}

} // namespace millrace::transport::tcp
