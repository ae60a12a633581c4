// A stream's receiving side: turns bytes into units and handles each unit. Runs on the stream's
// loop.
#include <millrace/core/assert.hpp>
#include <millrace/transport/tcp/crc32c.hpp>
#include <millrace/transport/tcp/region_payload.hpp>
#include <millrace/transport/tcp/stream.hpp>

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace millrace::transport::tcp {

namespace {

// Room for bytes that are dropped.
std::span<std::byte> discarded() {
  static thread_local std::vector<std::byte> room(64u << 10);
  return room;
}

} // namespace

void stream::on_events(std::uint32_t events) {
  auto keep = shared_from_this();
  if (events & ~static_cast<std::uint32_t>(EPOLLOUT))
    // Bytes that came together with the end of the stream cause no second event for the end.
    receive_some((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
  pump();
}

void stream::receive_some(bool to_end) {
  for (std::uint64_t taken = 0;;) {
    auto got = receive_once();
    if (got.error_number == EAGAIN)
      return;
    if (got.error_number == EFAULT && sink_ && sink_->failure().ok()) {
      sink_->passed(0);
      sink_->fail({errc::no_space, "memory cannot be filled: its file is shorter, or has no room"});
      continue;
    }
    if (got.error_number != 0)
      return finish(broken(got.error_number));
    if (got.size_bytes == 0)
      return finish({errc::peer_lost, peer_ + " closed a stream"});
    taken += got.size_bytes;
    if (auto bad = advance(); !bad.ok())
      return finish(bad);
    {
      std::lock_guard guard{mutex_};
      if (closed_)
        return;
    }
    if (got.drained && !to_end)
      return;
    if (taken >= limits_.turn_bytes)
      return loop_->post([weak = weak_from_this()] {
        auto s = weak.lock();
        if (!s)
          return;
        {
          std::lock_guard guard{s->mutex_};
          if (s->closed_)
            return;
        }
        s->on_events(EPOLLIN | EPOLLRDHUP);
      });
  }
}

// Returns how many bytes the buffer must hold before `advance` can go on.
std::size_t stream::wanted() const noexcept {
  switch (phase_) {
  case phase::header:
    return header_bytes;
  case phase::body:
    return header_.body_bytes();
  case phase::memory:
    return trailer_bytes + header_bytes;
  case phase::trailer:
    return trailer_bytes + header_bytes;
  }
  return 0;
}

// The kernel fills memory. In the same call, the bytes behind the memory's end go to the buffer.
moved_bytes stream::receive_once() {
  std::array<iovec, parts_max + 1> parts;
  std::size_t n = 0;
  std::uint64_t in_memory = 0;
  if (phase_ == phase::memory) {
    MILLRACE_ASSERT(buffered().empty());
    auto most = std::min(memory_left_, call_bytes_max);
    if (sink_ && sink_->failure().ok())
      n = sink_->iovecs({parts.data(), parts_max}, most);
    if (n == 0) {
      auto room = discarded();
      parts[n++] = {room.data(), std::min<std::uint64_t>(room.size(), most)};
    }
    for (std::size_t i = 0; i < n; ++i)
      in_memory += parts[i].iov_len;
  }
  std::span<const iovec> memory{parts.data(), n};
  if (in_memory == memory_left_ || phase_ != phase::memory) {
    auto have = buffered().size();
    if (in_begin_ > 0)
      std::memmove(in_.data(), in_.data() + in_begin_, have);
    in_begin_ = 0;
    in_end_ = have;
    auto room = std::min(wanted() + limits_.ahead_bytes, in_.size());
    parts[n++] = {in_.data() + have, room - have};
  }
  auto got = io_->receive({parts.data(), n});
  if (got.error_number != EFAULT)
    took(got.size_bytes, memory, in_memory);
  return got;
}

void stream::took(
  std::size_t size_bytes, std::span<const iovec> memory_parts, std::size_t memory_bytes) {
  moved_ += size_bytes;
  auto of_memory = std::min(size_bytes, memory_bytes);
  if (limits_.checksum && of_memory > 0)
    crc_ = add_crc32c(crc_, memory_parts, of_memory);
  if (phase_ == phase::memory && sink_)
    sink_->passed(of_memory);
  memory_left_ -= of_memory;
  in_end_ += size_bytes - of_memory;
}

status stream::advance() {
  status bad;
  while (bad.ok() && advance_once(bad)) {
  }
  receiving_ = phase_ != phase::header || !buffered().empty();
  return bad;
}

// Takes one step if the bytes for it are there.
bool stream::advance_once(status& bad) {
  switch (phase_) {
  case phase::header:
    if (buffered().size() < header_bytes)
      return false;
    bad = on_header();
    return true;
  case phase::body:
    if (buffered().size() < header_.body_bytes())
      return false;
    bad = on_body();
    return true;
  case phase::memory:
    take_memory_from_buffer();
    if (memory_left_ > 0)
      return false;
    phase_ = phase::trailer;
    return true;
  case phase::trailer:
    if (buffered().size() < trailer_bytes)
      return false;
    bad = on_trailer();
    return true;
  }
  return false;
}

void stream::take_memory_from_buffer() {
  while (memory_left_ > 0 && !buffered().empty()) {
    auto have = buffered();
    auto most = std::min<std::uint64_t>(have.size(), memory_left_);
    std::array<iovec, parts_max> parts;
    std::size_t n = 0;
    if (sink_ && sink_->failure().ok())
      n = sink_->iovecs(parts, most);
    std::uint64_t used = 0;
    for (std::size_t i = 0; i < n; ++i) {
      std::memcpy(parts[i].iov_base, have.data() + used, parts[i].iov_len);
      used += parts[i].iov_len;
    }
    if (n == 0)
      used = most;
    iovec part{const_cast<std::byte*>(have.data()), used};
    if (limits_.checksum)
      crc_ = add_crc32c(crc_, {&part, 1}, used);
    if (sink_)
      sink_->passed(n == 0 ? 0 : used);
    in_begin_ += used;
    memory_left_ -= used;
  }
}

status stream::on_header() {
  auto h = decode_header(buffered().first<header_bytes>());
  if (!h)
    return h.error();
  if (h->length > limits_.chunk_bytes)
    return {
      errc::protocol_error, "a unit of {} bytes where at most {} are allowed", h->length,
      limits_.chunk_bytes};
  header_ = *h;
  in_begin_ += header_bytes;
  sink_.reset();
  refusal_ = {};
  crc_ = 0;
  memory_left_ = 0;
  phase_ = phase::body;
  return header_.kind == unit_kind::data ? on_data() : status{};
}

status stream::on_body() {
  auto body = buffered().first(header_.body_bytes());
  auto bad = header_.kind == unit_kind::outcome ? on_outcome(body)
    : header_.kind == unit_kind::data           ? status{}
                                                : on_request(body);
  in_begin_ += body.size();
  memory_left_ = header_.has_payload() ? header_.length : 0;
  phase_ = header_.has_payload() ? phase::memory : phase::header;
  return bad;
}

// The peer knows both bounds.
status stream::admit_request(std::uint64_t request) {
  std::lock_guard guard{mutex_};
  // One answer may have been sent and not yet been struck out.
  if (unanswered_.size() > limits_.requests_max)
    return {
      errc::protocol_error, "more than {} requests at a time on one stream", limits_.requests_max};
  if (std::count(unanswered_.begin(), unanswered_.end(), request) > 0)
    return {errc::protocol_error, "a request with the number of another"};
  unanswered_.push_back(request);
  return {};
}

status stream::on_request(std::span<const std::byte> body) {
  auto target = decode_target(header_, body);
  if (!target)
    return target.error();
  if (auto bad = admit_request(header_.request); !bad.ok())
    return bad;
  auto memory = open_region(header_, std::move(*target));
  if (header_.kind == unit_kind::write) {
    if (memory)
      sink_ = std::move(*memory);
    else
      refusal_ = memory.error();
    return {};
  }
  if (!memory) {
    answer(header_.request, memory.error());
    return {};
  }
  outgoing item;
  item.header.kind = unit_kind::data;
  item.header.request = header_.request;
  item.header.length = header_.length;
  item.memory = std::move(*memory);
  item.head.resize(header_bytes);
  encode_header(item.header, item.head.data());
  std::lock_guard guard{mutex_};
  if (!closed_)
    out_.push_back(std::move(item));
  return {};
}

status stream::on_outcome(std::span<const std::byte> words) {
  std::vector<ended_chunk> ended;
  {
    std::lock_guard guard{mutex_};
    auto found = pending_.find(header_.request);
    if (found == pending_.end() || found->second.outcome)
      return {errc::protocol_error, "an answer to a request that was not made"};
    auto writes = found->second.what->of->what().dir == direction::write;
    if (header_.code == 0 && !writes)
      return {errc::protocol_error, "a read answered without its bytes"};
    status outcome;
    if (header_.code != 0)
      outcome = {
        errc_from_wire(header_.code),
        std::string{reinterpret_cast<const char*>(words.data()), words.size()}};
    // The thread that still sends the chunk's memory ends the chunk.
    if (writes && !found->second.sent) {
      found->second.outcome = std::move(outcome);
      return {};
    }
    ended.emplace_back(std::move(found->second.what), std::move(outcome));
    pending_.erase(found);
  }
  tell(ended);
  return {};
}

// The chunk stays pending until its trailer arrives. Until then only this loop can take it out.
status stream::on_data() {
  std::lock_guard guard{mutex_};
  auto found = pending_.find(header_.request);
  if (
    found == pending_.end() || found->second.what->of->what().dir != direction::read ||
    found->second.what->bytes != header_.length)
    return {errc::protocol_error, "bytes that were not asked for"};
  sink_ = std::make_unique<local_payload>(*found->second.what, flow::in);
  return {};
}

status stream::on_trailer() {
  auto t = decode_trailer(buffered().first<trailer_bytes>());
  in_begin_ += trailer_bytes;
  phase_ = phase::header;
  if (t.request != header_.request)
    return {errc::protocol_error, "a trailer of another unit"};
  // The peer need not have lied. So the stream is given up, and its chunks are requested again.
  if (limits_.checksum && t.code == 0 && t.crc32c != crc_)
    return {errc::corrupt_data, "bytes from {} do not have the checksum sent with them", peer_};
  if (header_.kind == unit_kind::data)
    return data_ended(t);
  auto sink = std::move(sink_);
  if (refusal_.ok() && sink)
    refusal_ = sink->failure();
  if (refusal_.ok() && t.code != 0)
    refusal_ = {errc_from_wire(t.code), "the sender could not read all of the memory"};
  answer(header_.request, refusal_);
  return {};
}

status stream::data_ended(const unit_trailer& t) {
  auto sink = std::move(sink_);
  auto outcome = sink->failure();
  if (t.code == static_cast<std::uint8_t>(errc::permission_denied))
    outcome = {errc::permission_denied, "the memory behind the handle was withdrawn meanwhile"};
  else if (t.code != 0)
    outcome = {errc_from_wire(t.code), peer_ + " could not read all of the memory"};
  std::vector<ended_chunk> ended;
  {
    std::lock_guard guard{mutex_};
    auto found = pending_.find(header_.request);
    MILLRACE_ASSERT(found != pending_.end());
    ended.emplace_back(std::move(found->second.what), std::move(outcome));
    pending_.erase(found);
  }
  tell(ended);
  return {};
}

} // namespace millrace::transport::tcp
