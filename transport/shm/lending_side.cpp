// Maps the peer's memory within its bounds, and sends answers, alone or in batches.
#include <millrace/transport/shm/lending_side.hpp>
#include <millrace/transport/shm/peer.hpp>

#include <utility>

namespace millrace::transport::shm {

namespace {

constexpr std::size_t digests_held_max = 1024;
// The memory of a move besides its ops.
constexpr std::uint64_t move_memory_bytes = 1024;

} // namespace

move_weight weigh(const move& m) {
  move_weight out{0, move_memory_bytes + m.ops.size() * sizeof(copy_op)};
  for (auto& op : m.ops) {
    out.bytes += op.length; // wraps only if the peer lies about lengths
    out.memory_bytes += m.digests ? digests_at_most(op.length) * sizeof(std::uint64_t) : 0;
  }
  return out;
}

status lending_side::began(const move_weight& what) {
  std::lock_guard guard{answers_mutex_};
  ++moves_;
  under_way_.bytes += what.bytes;
  under_way_.memory_bytes += what.memory_bytes;
  if (under_way_.memory_bytes <= options_.backlog_bytes_max)
    return {};
  return {errc::busy, "more moves at once than shm.backlog_max has memory for"};
}

bool lending_side::ended(moved outcome, const move_weight& what) {
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

void lending_side::tell(const answers& due) {
  // The peer would wait for these answers in vain.
  if (auto sent = send(*channel_, message_kind::answers, due); !sent.ok())
    channel_->close(sent.within("answering moves"));
}

status lending_side::admits(std::uint64_t arena) const {
  if (mapped_.size() >= options_.mapped_max || mapped_.contains(arena))
    return {errc::protocol_error, "announced too many arenas, or one of them twice"};
  return {};
}

status lending_side::map(const announce& what, int fd) {
  std::lock_guard guard{mutex_};
  if (auto bad = admits(what.arena); !bad.ok() || closed_)
    return bad;
  mapping made;
  if (trusted_with_faults(channel_->peer()) || !is_of_huge_page_pool(fd)) {
    auto arena = mapped_arena::map(fd, what.size_bytes);
    if (!arena)
      return arena.error();
    made.arena = std::move(*arena);
  }
  mapped_.emplace(what.arena, std::move(made));
  return {};
}

status lending_side::map_file(const announce_file& what, net::unique_fd fd) {
  std::lock_guard guard{mutex_};
  if (auto bad = admits(what.arena); !bad.ok() || closed_)
    return bad;
  mapping made;
  if (trusted_with_faults(channel_->peer())) {
    auto file =
      mapped_file::reserve(std::move(fd), {what.size_bytes, what.file_offset, what.granule_bytes});
    if (!file && file.error().code() != errc::unsupported)
      return file.error();
    made.file = file ? std::move(*file) : nullptr;
  }
  mapped_.emplace(what.arena, std::move(made));
  return {};
}

status lending_side::take_grant(const grant& what) {
  std::lock_guard guard{mutex_};
  auto found = mapped_.find(what.arena);
  if (found == mapped_.end() || found->second.arena)
    return {errc::protocol_error, "a grant of a file that was not announced"};
  auto& file = found->second.file;
  auto bad = file ? file->grant(what.offset, what.length) : status{};
  if (bad.code() != errc::unsupported)
    return bad;
  // Moves that run keep the mapping; later moves are answered `unsupported`.
  drop_locked(std::exchange(found->second, {}));
  return {};
}

void lending_side::unmap(std::uint64_t arena) {
  std::lock_guard guard{mutex_};
  if (auto node = mapped_.extract(arena))
    drop_locked(std::move(node.mapped()));
}

void lending_side::drop_locked(mapping m) {
  if (m.arena)
    unmapped_.push_back(std::move(m.arena));
  if (m.file)
    unmapped_.push_back(std::move(m.file));
}

std::vector<std::shared_ptr<void>> lending_side::take_unmapped() {
  std::lock_guard guard{mutex_};
  return std::exchange(unmapped_, {});
}

result<reached_memory> lending_side::resolve(const move_op& op) const {
  std::lock_guard guard{mutex_};
  auto found = mapped_.find(op.arena);
  if (found == mapped_.end())
    return fail(errc::permission_denied, "the move names an arena that was not announced");
  auto& [arena, file] = found->second;
  if (!arena && !file)
    return fail(
      errc::unsupported, "this process cannot map the memory or does not trust its owner");
  auto size = arena ? arena->size_bytes() : file->size_bytes();
  // The order of these checks keeps the sums from wrapping.
  bool inside = op.offset <= size && op.lead <= op.offset && op.length <= size - op.offset &&
    op.tail <= size - op.offset - op.length;
  if (!inside)
    return fail(errc::permission_denied, "the move reaches outside the announced arena");
  if (file && !file->granted(op.offset - op.lead, op.lead + op.length + op.tail))
    return fail(
      errc::permission_denied, "the move reaches a part of the file that was not granted");
  return reached_memory{(arena ? arena->data() : file->data()) + op.offset, arena, file};
}

void lending_side::send_held() {
  answers due;
  {
    std::lock_guard guard{answers_mutex_};
    due = std::exchange(answers_held_, {});
  }
  if (!due.outcomes.empty())
    tell(due);
}

void lending_side::close() {
  {
    std::lock_guard guard{mutex_};
    closed_ = true;
    for (auto& [arena, m] : std::exchange(mapped_, {}))
      drop_locked(m);
  }
  abandoned_->store(true);
}

} // namespace millrace::transport::shm
