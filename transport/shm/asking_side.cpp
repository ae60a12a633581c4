// Announces arenas, and sends questions, alone or in batches.
#include <millrace/transport/shm/asking_side.hpp>
#include <millrace/transport/shm/peer.hpp>

#include <algorithm>
#include <utility>

namespace millrace::transport::shm {

namespace {

// The bound of questions that share a message. Moves that each fit a frame must not fail together.
constexpr std::size_t ops_held_max = 256;

} // namespace

status asking_side::announce_arena(const std::shared_ptr<arena>& a) {
  return may_get(*a).ok() ? lend(a) : status{};
}

status asking_side::lend(const std::shared_ptr<arena>& a) {
  if (auto bad = may_get(*a); !bad.ok())
    return bad;
  std::lock_guard guard{mutex_};
  return announce_locked(a);
}

status asking_side::offer(const arena_place& place, std::uint64_t length) {
  if (auto bad = may_get(*place.in); !bad.ok())
    return bad;
  if (place.in->sharing() != arena_sharing::transfers)
    return {errc::unsupported, "{} copies to no memory that peers map themselves", peer().name};
  std::lock_guard guard{mutex_};
  auto told = announce_locked(place.in);
  return told.ok() && place.in->is_file() ? grant_locked(place, length) : told;
}

status asking_side::may_get(const arena& a) const {
  if (trusted_with_faults(peer()) || !(a.is_file() || a.huge()))
    return {};
  return {
    errc::unsupported, "{} belongs to another user, who does not get the descriptor of {}",
    peer().name, a.is_file() ? "a file" : "huge pages of the system's pool"};
}

status asking_side::announce_locked(const std::shared_ptr<arena>& a) {
  if (announced_.contains(a->id()))
    return {};
  int fd = a->fd();
  auto sent = a->is_file()
    ? send(
        *channel_, message_kind::announce_file,
        announce_file{a->id(), a->size_bytes(), a->file_offset(), granule_bytes_}, {&fd, 1})
    : send(
        *channel_, message_kind::announce,
        announce{
          a->id(), a->size_bytes(), a->sharing() == arena_sharing::read_only,
          a->sharing() == arena_sharing::read_write},
        {&fd, 1});
  if (sent.ok())
    announced_.emplace(a->id(), announced{a, {}});
  return sent;
}

status asking_side::grant_locked(const arena_place& place, std::uint64_t length) {
  auto& granted = announced_.at(place.in->id()).granules;
  auto end = place.offset + length;
  for (auto at = place.offset / granule_bytes_ * granule_bytes_; at < end; at += granule_bytes_) {
    if (granted.contains(at))
      continue;
    auto bytes = std::min(granule_bytes_, place.in->size_bytes() - at);
    if (auto bad = send(*channel_, message_kind::grant, grant{place.in->id(), at, bytes});
        !bad.ok())
      return bad;
    granted.insert(at);
  }
  return {};
}

void asking_side::forget_freed() {
  std::lock_guard guard{mutex_};
  for (auto i = announced_.begin(); i != announced_.end();) {
    if (i->second.what.expired() && send(*channel_, message_kind::forget, forget{i->first}).ok())
      i = announced_.erase(i);
    else
      ++i;
  }
}

bool asking_side::ask(move request, pending_move pending) {
  status refused;
  asks before, due;
  bool later = false;
  {
    std::lock_guard guard{mutex_};
    if (closed_) {
      refused = {errc::peer_lost, "the connection to {} is closed", peer().name};
    } else if (pending_.size() >= options_.transfers_max) {
      refused = {
        errc::busy, "{} transfers wait for {} (shm.transfers_max)", pending_.size(), peer().name};
    } else {
      if (pending_.empty())
        heard_ = steady_clock::now();
      request.number = next_++;
      pending_bytes_ += pending.bytes;
      pending_.emplace(request.number, std::move(pending));
      auto ops = request.ops.size();
      for (auto& m : asks_held_.moves)
        ops += m.ops.size();
      if (ops > ops_held_max)
        before = std::exchange(asks_held_, {});
      later = request.ops.size() <= ops_held_max && ask_later();
      asks_held_.moves.push_back(std::move(request));
      if (!later)
        due = std::exchange(asks_held_, {});
    }
  }
  if (!refused.ok())
    // `pending` was moved only if it was accepted. NOLINTNEXTLINE(bugprone-use-after-move)
    pending.done(fail(refused));
  ask_now(std::move(before));
  ask_now(std::move(due));
  return later;
}

// The caller holds the lock and adds the question to the pending ones first.
bool asking_side::ask_later() const {
  auto held = asks_held_.moves.size();
  return held + 1 < held_at_most(pending_.size() - held - 1) &&
    pending_bytes_ / pending_.size() <= bytes_while_held_max;
}

void asking_side::ask_now(asks due) {
  auto sent = due.moves.empty() ? status{} : send(*channel_, message_kind::asks, due);
  if (sent.ok())
    return;
  for (auto& m : due.moves)
    if (auto mine = take(m.number))
      mine->done(fail(sent));
}

// Returns nothing if closing has already ended the move, or if the question was not sent yet.
std::optional<pending_move> asking_side::take(std::uint64_t number) {
  std::lock_guard guard{mutex_};
  auto found = pending_.find(number);
  auto& held = asks_held_.moves;
  if (found == pending_.end() || (!held.empty() && number >= held.front().number))
    return std::nullopt;
  auto pending = std::move(found->second);
  pending_bytes_ -= pending.bytes;
  pending_.erase(found);
  return pending;
}

void asking_side::expire(time_point now) {
  {
    std::lock_guard guard{mutex_};
    std::chrono::milliseconds patience{options_.answer_timeout_ms};
    if (pending_.empty() || now < heard_ || now - heard_ <= patience)
      return;
  }
  // Memory that the peer may still touch is kept until its process has ended. A new connection
  // starts afresh.
  channel_->close(
    {errc::deadline_exceeded,
     peer().name + " answered no transfer for longer than shm.answer_timeout"});
}

void asking_side::on_answers(answers all) {
  {
    std::lock_guard guard{mutex_};
    heard_ = steady_clock::now();
  }
  for (auto& answer : all.outcomes)
    on_moved(std::move(answer));
  asks due;
  {
    std::lock_guard guard{mutex_};
    auto held = asks_held_.moves.size();
    if (held < held_at_most(pending_.size() - held))
      return;
    due = std::exchange(asks_held_, {});
  }
  ask_now(std::move(due));
}

void asking_side::on_moved(moved answer) {
  auto pending = take(answer.number);
  if (!pending)
    return;
  pending->hold.reset();
  if (answer.code != 0)
    return pending->done(fail(errc_from_wire(answer.code), answer.detail));
  if (answer.digests.size() != pending->digests)
    return pending->done(fail(
      errc::protocol_error, "{} answered a move with {} digests instead of {}", peer().name,
      answer.digests.size(), pending->digests));
  pending->done(copied{std::move(answer.digests), answer.written_back});
}

void asking_side::send_held() {
  asks due;
  {
    std::lock_guard guard{mutex_};
    due = std::exchange(asks_held_, {});
  }
  ask_now(std::move(due));
}

std::vector<std::shared_ptr<void>> asking_side::close(const status& why) {
  std::unordered_map<std::uint64_t, pending_move> failed;
  {
    std::lock_guard guard{mutex_};
    closed_ = true;
    failed.swap(pending_);
    asks_held_ = {};
  }
  std::vector<std::shared_ptr<void>> touched;
  for (auto& [number, pending] : failed) {
    touched.push_back(std::move(pending.hold));
    pending.done(fail(why));
  }
  return touched;
}

} // namespace millrace::transport::shm
