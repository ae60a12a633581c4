// The sending part of a connection: direct writes, the queue, credits, draining.
// Called by any thread, through `channel`.
#include <millrace/core/assert.hpp>
#include <millrace/net/channel/connection.hpp>

#include <algorithm>

namespace millrace::net {

namespace {

// How often to check whether other processes have received their descriptors.
constexpr std::uint32_t send_retry_ms = 10;

} // namespace

status connection::send(
  frame_kind kind, std::uint64_t correlation, std::span<const std::byte> body,
  std::span<const int> fds) {
  MILLRACE_ASSERT(kind >= frame_kind::request);
  std::lock_guard guard{send_mutex_};
  if (phase_ != phase::open)
    return status{errc::peer_lost, "the channel to {} is closed", describe_peer()};
  if (body.size() > peer_frame_bytes_max_)
    return status{
      errc::invalid_argument, "a message of {} bytes; {} takes at most {} (its channel.frame_max)",
      body.size(), describe_peer(), peer_frame_bytes_max_};
  if (fds.size() > peer_fds_max_)
    return status{
      errc::invalid_argument, "{} descriptors; {} takes at most {}", fds.size(), describe_peer(),
      peer_fds_max_};
  if (kind == frame_kind::request)
    return send_request(correlation, body, fds);
  if (kind == frame_kind::cancel && cancel_waiting(correlation))
    return {};
  // Counted down before the peer can see the reply and reuse its credit.
  auto frees = kind == frame_kind::reply && serving_ > 0;
  serving_ -= frees ? 1 : 0;
  auto sent = transmit(kind, correlation, body, fds);
  if (!sent.ok() && frees)
    ++serving_;
  return sent;
}

status connection::send_request(
  std::uint64_t correlation, std::span<const std::byte> body, std::span<const int> fds) {
  if (granted_ == 0)
    return status{errc::busy, describe_peer() + " takes no requests"};
  if (outstanding_ >= granted_ || !waiting_.empty())
    return queue_request(correlation, body, fds);
  ++outstanding_;
  loop_->expect(1);
  auto sent = transmit(frame_kind::request, correlation, body, fds);
  if (!sent.ok()) {
    --outstanding_;
    loop_->expect(-1);
  }
  return sent;
}

status connection::queue_request(
  std::uint64_t correlation, std::span<const std::byte> body, std::span<const int> fds) {
  if (waiting_.size() >= options_.requests_queued_max)
    return status{
      errc::busy, "{} requests run and {} wait for {}; wait for some of them first", outstanding_,
      waiting_.size(), describe_peer()};
  if (queue_.size_bytes() + waiting_bytes_ + body.size() > options_.send_queue_bytes_max)
    return status{errc::busy, "requests that wait for {} fill the send queue", describe_peer()};
  auto copies = duplicate(fds);
  if (!copies)
    return copies.error();
  waiting_.push_back({correlation, {body.begin(), body.end()}, std::move(*copies)});
  waiting_bytes_ += body.size();
  loop_->expect(1);
  return {};
}

// A cancellation must not overtake a request that still waits for a credit.
bool connection::cancel_waiting(std::uint64_t correlation) {
  auto same = [&](const waiting_request& r) { return r.correlation == correlation; };
  auto found = std::find_if(waiting_.begin(), waiting_.end(), same);
  if (found == waiting_.end())
    return false;
  found->cancelled = true;
  return true;
}

void connection::release_waiting() {
  while (!waiting_.empty() && outstanding_ < granted_ && !queue_.broken()) {
    auto request = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_bytes_ -= request.body.size();
    ++outstanding_;
    std::vector<int> fds;
    for (auto& fd : request.fds)
      fds.push_back(fd.get());
    // A failure here breaks the socket, which ends the connection and with it the request.
    auto sent = transmit(frame_kind::request, request.correlation, request.body, fds, true);
    if (sent.ok() && request.cancelled)
      static_cast<void>(transmit(frame_kind::cancel, request.correlation, {}, {}, true));
  }
}

void connection::drop_waiting() {
  loop_->expect(-static_cast<std::int64_t>(waiting_.size()));
  waiting_.clear();
  waiting_bytes_ = 0;
}

status connection::transmit(
  frame_kind kind, std::uint64_t correlation, std::span<const std::byte> body,
  std::span<const int> fds, bool beyond_bound) {
  if (queue_.broken())
    return status{errc::peer_lost, describe_peer() + " is gone"};
  frame_header header{
    kind, static_cast<std::uint8_t>(fds.size()), static_cast<std::uint32_t>(body.size()),
    correlation};
  auto pushed = queue_.push(header, body, fds, beyond_bound);
  if (queue_.broken()) {
    // The peer's goodbye may still be in our socket: reading it ends the connection.
    loop_->post([c = self()] {
      c->read_some();
      c->lost(status{errc::peer_lost, "it does not read any more"});
    });
    return status{errc::peer_lost, "{} is gone: {}", describe_peer(), pushed.detail()};
  }
  if (!queue_.empty())
    arm_writing();
  return pushed;
}

// The reader of a ring tells when there is room.
bool connection::writes_to_socket() const {
  auto* ring = stream_->ring();
  return !ring || !ring->sends();
}

void connection::arm_writing() {
  if (std::exchange(writing_armed_, true) || !writes_to_socket())
    return;
  if (loop_->on_loop()) {
    static_cast<void>(loop_->rewatch(stream_->fd(), reading_events | EPOLLOUT));
    return;
  }
  loop_->post([c = self()] {
    if (c->phase_ != phase::closed)
      static_cast<void>(c->loop_->rewatch(c->stream_->fd(), reading_events | EPOLLOUT));
  });
}

void connection::send_own(frame_kind kind, std::span<const std::byte> body) {
  std::lock_guard guard{send_mutex_};
  static_cast<void>(transmit(kind, 0, body, {}, true));
}

// Queued frames already show the peer that this side is alive.
void connection::send_if_idle(frame_kind kind) {
  std::lock_guard guard{send_mutex_};
  if (queue_.empty())
    static_cast<void>(transmit(kind, 0, {}, {}, true));
}

void connection::flush() {
  std::unique_lock lock{send_mutex_};
  if (phase_ == phase::closed || !writing_armed_)
    return;
  auto flushed = queue_.flush();
  if (!flushed.ok()) {
    lock.unlock();
    read_some();
    return lost(status{errc::peer_lost, flushed.detail()});
  }
  if (!queue_.empty())
    return wait_for_room();
  writing_armed_ = retrying_ = false;
  if (writes_to_socket())
    static_cast<void>(loop_->rewatch(stream_->fd(), reading_events));
  switch_to_ring();
  auto drained = phase_ == phase::closing;
  lock.unlock();
  if (drained)
    finish({});
}

// A socket with room stays writable. When something else than room is missing, a timer retries.
void connection::wait_for_room() {
  auto retry = queue_.needs_retry();
  if (retry)
    loop_->run_after(send_retry_ms, [weak = weak_from_this()] {
      if (auto c = std::static_pointer_cast<connection>(weak.lock()))
        c->flush();
    });
  if (std::exchange(retrying_, retry) != retry && writes_to_socket())
    static_cast<void>(
      loop_->rewatch(stream_->fd(), retry ? reading_events : reading_events | EPOLLOUT));
}

void connection::close(status why, std::uint32_t drain_ms) {
  {
    std::lock_guard guard{send_mutex_};
    if (phase_ == phase::closing || phase_ == phase::closed)
      return;
    auto reason = why.ok() ? status{errc::unavailable, "closed"} : why;
    static_cast<void>(transmit(frame_kind::goodbye, 0, encode_goodbye(reason), {}, true));
    closing_why_ = std::move(why);
    phase_ = phase::closing;
    drop_waiting();
  }
  loop_->post([c = self(), drain_ms] { c->drain(drain_ms); });
}

void connection::drain(std::uint32_t drain_ms) {
  {
    std::lock_guard guard{send_mutex_};
    if (phase_ == phase::closed)
      return;
    if (!queue_.empty() && !queue_.broken() && drain_ms > 0) {
      drain_timer_ = loop_->run_after(drain_ms, [weak = weak_from_this()] {
        if (auto c = std::static_pointer_cast<connection>(weak.lock()))
          c->finish({});
      });
      return;
    }
  }
  finish({});
}

} // namespace millrace::net
