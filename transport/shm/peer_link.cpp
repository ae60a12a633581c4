// Bookkeeping of announced arenas and pending moves.
#include <millrace/core/codec.hpp>
#include <millrace/transport/shm/peer_link.hpp>

#include <unistd.h>

#include <algorithm>

namespace millrace::transport::shm {

namespace {

// Every message wakes a thread of the peer, which costs as much as copying some 100 KiB. So questions and answers wait
// for others, while the moves under way have on average no more bytes than this.
constexpr std::uint64_t bytes_while_held_max = 4u << 20;
constexpr std::size_t held_max = 16;
// Never more than a quarter of what is under way, which gives the other side enough to do meanwhile.
constexpr std::size_t held_at_most(std::size_t under_way) {
  return std::min(held_max, under_way / 4);
}
constexpr std::size_t ops_held_max =
  256; // together: what fits a frame alone shall not fail in company
constexpr std::size_t digests_held_max = 1024;
// What a move takes besides its pieces.
constexpr std::uint64_t move_memory_bytes = 1024;

} // namespace

move_weight weigh(const move& m) {
  move_weight out{0, move_memory_bytes + m.ops.size() * sizeof(copy_op)};
  for (auto& op : m.ops) {
    out.bytes += op.length; // wraps where a liar's lengths do
    out.memory_bytes += m.digests ? digests_at_most(op.length) * sizeof(std::uint64_t) : 0;
  }
  return out;
}

template <class Message>
status peer_link::send(message_kind kind, const Message& m, std::span<const int> fds) {
  byte_buffer body;
  wire_writer{body}(std::string{"shm"}, kind, m);
  return channel_->send(net::frame_kind::driver, 0, body, fds);
}

status peer_link::announce_arena(const std::shared_ptr<arena>& a) {
  if (!gets(*a))
    return {};
  std::lock_guard guard{mutex_};
  return announce_locked(a);
}

status peer_link::offer(const arena_place& place, std::uint64_t length) {
  if (!gets(*place.in))
    return {
      errc::unsupported,
      peer().name + " belongs to another user, who does not get the descriptor of " +
        (place.in->is_file() ? "a file" : "huge pages of the system's pool")};
  std::lock_guard guard{mutex_};
  auto told = announce_locked(place.in);
  return told.ok() && place.in->is_file() ? grant_locked(place, length) : told;
}

// Whoever has the descriptor can read and change all of a file, and whoever maps it takes a signal when the other one
// cuts it short; so it is with pages of the system's pool, which the other one can take away. Processes of one user
// can do worse to each other anyway.
bool peer_link::trusted_with_faults() const noexcept {
  return peer().uid == geteuid() || peer().uid == 0;
}

bool peer_link::gets(const arena& a) const noexcept {
  return trusted_with_faults() || !(a.is_file() || a.huge());
}

status peer_link::announce_locked(const std::shared_ptr<arena>& a) {
  if (announced_.contains(a->id()))
    return {};
  int fd = a->fd();
  auto sent = a->is_file()
    ? send(
        message_kind::announce_file,
        announce_file{a->id(), a->size_bytes(), a->file_offset(), granule_bytes_}, {&fd, 1})
    : send(message_kind::announce, announce{a->id(), a->size_bytes()}, {&fd, 1});
  if (sent.ok())
    announced_.emplace(a->id(), announced{a, {}});
  return sent;
}

status peer_link::grant_locked(const arena_place& place, std::uint64_t length) {
  auto& granted = announced_.at(place.in->id()).granules;
  auto end = place.offset + length;
  for (auto at = place.offset / granule_bytes_ * granule_bytes_; at < end; at += granule_bytes_) {
    if (granted.contains(at))
      continue;
    auto bytes = std::min(granule_bytes_, place.in->size_bytes() - at);
    if (auto bad = send(message_kind::grant, grant{place.in->id(), at, bytes}); !bad.ok())
      return bad;
    granted.insert(at);
  }
  return {};
}

void peer_link::forget_freed() {
  std::lock_guard guard{mutex_};
  for (auto i = announced_.begin(); i != announced_.end();) {
    if (i->second.what.expired() && send(message_kind::forget, forget{i->first}).ok())
      i = announced_.erase(i);
    else
      ++i;
  }
}

bool peer_link::ask(move request, pending_move pending) {
  status refused;
  asks before, due;
  bool later = false;
  {
    std::lock_guard guard{mutex_};
    if (closed_) {
      refused = {errc::peer_lost, "the connection to " + peer().name + " is closed"};
    } else if (pending_.size() >= options_.transfers_max) {
      refused = {
        errc::busy,
        std::to_string(pending_.size()) + " transfers wait for " + peer().name +
          " (shm.transfers_max)"};
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
    // Moved only when it was taken. NOLINTNEXTLINE(bugprone-use-after-move)
    pending.done(fail(refused));
  ask_now(std::move(before));
  ask_now(std::move(due));
  return later;
}

// Needs the lock, and the next one among what is pending.
bool peer_link::ask_later() const {
  auto held = asks_held_.moves.size();
  return held + 1 < held_at_most(pending_.size() - held - 1) &&
    pending_bytes_ / pending_.size() <= bytes_while_held_max;
}

void peer_link::ask_now(asks due) {
  auto sent = due.moves.empty() ? status{} : send(message_kind::asks, due);
  if (sent.ok())
    return;
  for (auto& m : due.moves)
    if (auto mine = take(m.number))
      mine->done(fail(sent));
}

// None if closing has answered it already, and for the answer to a question that was not asked yet.
std::optional<pending_move> peer_link::take(std::uint64_t number) {
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

void peer_link::expire(time_point now) {
  {
    std::lock_guard guard{mutex_};
    std::chrono::milliseconds patience{options_.answer_timeout_ms};
    if (pending_.empty() || now < heard_ || now - heard_ <= patience)
      return;
  }
  // What it may still touch is kept until its process has ended; a new connection starts afresh.
  channel_->close(
    {errc::deadline_exceeded,
     peer().name + " answered no transfer for longer than shm.answer_timeout"});
}

void peer_link::on_answers(answers all) {
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

void peer_link::on_moved(moved answer) {
  auto pending = take(answer.number);
  if (!pending)
    return;
  pending->hold.reset();
  if (answer.code != 0)
    return pending->done(fail(errc_from_wire(answer.code), answer.detail));
  if (answer.digests.size() != pending->digests)
    return pending->done(fail(
      errc::protocol_error,
      peer().name + " answered a move with " + std::to_string(answer.digests.size()) +
        " digests instead of " + std::to_string(pending->digests)));
  pending->done(copied{std::move(answer.digests), answer.written_back});
}

std::vector<std::shared_ptr<void>> peer_link::close(const status& why) {
  std::unordered_map<std::uint64_t, pending_move> failed;
  {
    std::lock_guard guard{mutex_};
    closed_ = true;
    failed.swap(pending_);
    asks_held_ = {};
    for (auto& [arena, m] : std::exchange(mapped_, {}))
      drop_locked(m);
  }
  abandoned_->store(true);
  std::vector<std::shared_ptr<void>> touched;
  for (auto& [number, pending] : failed) {
    touched.push_back(std::move(pending.hold));
    pending.done(fail(why));
  }
  return touched;
}

status peer_link::began(const move_weight& what) {
  std::lock_guard guard{answers_mutex_};
  ++moves_;
  under_way_.bytes += what.bytes;
  under_way_.memory_bytes += what.memory_bytes;
  if (under_way_.memory_bytes <= options_.backlog_bytes_max)
    return {};
  return {errc::busy, "more moves at once than shm.backlog_max has memory for"};
}

bool peer_link::ended(moved outcome, const move_weight& what) {
  answers due;
  {
    std::lock_guard guard{answers_mutex_};
    --moves_;
    under_way_.bytes -= what.bytes;
    under_way_.memory_bytes -= what.memory_bytes;
    auto small = outcome.digests.size() <= digests_held_max;
    answers_held_.outcomes.push_back(std::move(outcome));
    if (
      small && answers_held_.outcomes.size() < held_at_most(moves_) &&
      under_way_.bytes / bytes_while_held_max <= moves_)
      return true;
    due = std::exchange(answers_held_, {});
  }
  tell(due);
  return false;
}

void peer_link::send_held() {
  asks questions;
  {
    std::lock_guard guard{mutex_};
    questions = std::exchange(asks_held_, {});
  }
  ask_now(std::move(questions));
  answers due;
  {
    std::lock_guard guard{answers_mutex_};
    due = std::exchange(answers_held_, {});
  }
  if (!due.outcomes.empty())
    tell(due);
}

void peer_link::tell(const answers& due) {
  // A peer that reads nothing would wait for these in vain.
  if (auto sent = send(message_kind::answers, due); !sent.ok())
    channel_->close(sent.within("answering moves"));
}

status peer_link::admits(std::uint64_t arena) const {
  if (mapped_.size() >= options_.mapped_max || mapped_.contains(arena))
    return {errc::protocol_error, "announced too many arenas, or one of them twice"};
  return {};
}

status peer_link::map(const announce& what, int fd) {
  std::lock_guard guard{mutex_};
  if (auto bad = admits(what.arena); !bad.ok() || closed_)
    return bad;
  mapping made;
  if (trusted_with_faults() || !is_of_huge_page_pool(fd)) {
    auto arena = mapped_arena::map(fd, what.size_bytes);
    if (!arena)
      return arena.error();
    made.arena = std::move(*arena);
  }
  mapped_.emplace(what.arena, std::move(made));
  return {};
}

status peer_link::map_file(const announce_file& what, net::unique_fd fd) {
  std::lock_guard guard{mutex_};
  if (auto bad = admits(what.arena); !bad.ok() || closed_)
    return bad;
  mapping made;
  if (trusted_with_faults()) {
    auto file =
      mapped_file::reserve(std::move(fd), {what.size_bytes, what.file_offset, what.granule_bytes});
    if (!file && file.error().code() != errc::unsupported)
      return file.error();
    made.file = file ? std::move(*file) : nullptr;
  }
  mapped_.emplace(what.arena, std::move(made));
  return {};
}

status peer_link::take_grant(const grant& what) {
  std::lock_guard guard{mutex_};
  auto found = mapped_.find(what.arena);
  if (found == mapped_.end() || found->second.arena)
    return {errc::protocol_error, "a grant of a file that was not announced"};
  auto& file = found->second.file;
  auto bad = file ? file->grant(what.offset, what.length) : status{};
  if (bad.code() != errc::unsupported)
    return bad;
  // What runs keeps it; what comes is told.
  drop_locked(std::exchange(found->second, {}));
  return {};
}

void peer_link::unmap(std::uint64_t arena) {
  std::lock_guard guard{mutex_};
  if (auto node = mapped_.extract(arena))
    drop_locked(std::move(node.mapped()));
}

void peer_link::drop_locked(mapping m) {
  if (m.arena)
    unmapped_.push_back(std::move(m.arena));
  if (m.file)
    unmapped_.push_back(std::move(m.file));
}

std::vector<std::shared_ptr<void>> peer_link::take_unmapped() {
  std::lock_guard guard{mutex_};
  return std::exchange(unmapped_, {});
}

result<reached_memory> peer_link::resolve(const move_op& op) const {
  std::lock_guard guard{mutex_};
  auto found = mapped_.find(op.arena);
  if (found == mapped_.end())
    return fail(errc::permission_denied, "the move names an arena that was not announced");
  auto& [arena, file] = found->second;
  if (!arena && !file)
    return fail(
      errc::unsupported, "this process cannot map the memory or does not trust its owner");
  auto size = arena ? arena->size_bytes() : file->size_bytes();
  // In this order nothing can wrap around.
  bool inside = op.offset <= size && op.lead <= op.offset && op.length <= size - op.offset &&
    op.tail <= size - op.offset - op.length;
  if (!inside)
    return fail(errc::permission_denied, "the move reaches outside the announced arena");
  if (file && !file->granted(op.offset - op.lead, op.lead + op.length + op.tail))
    return fail(
      errc::permission_denied, "the move reaches a part of the file that was not granted");
  return reached_memory{(arena ? arena->data() : file->data()) + op.offset, arena, file};
}

} // namespace millrace::transport::shm
