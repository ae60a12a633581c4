// Maps the peer's memory within its bounds, and sends answers, alone or in batches.
#include <millrace/transport/shm/lending_side.hpp>
#include <millrace/transport/shm/peer.hpp>

#include <algorithm>
#include <utility>

namespace millrace::transport::shm {

namespace {

constexpr std::size_t digests_held_max = 1024;
// The memory of a move besides its ops.
constexpr std::uint64_t move_memory_bytes = 1024;

status refused() {
  return {errc::unsupported, "this process cannot map the memory or does not trust its owner"};
}

// Returns the memory together with its place, which returns when the memory is unmapped.
template <class Memory>
std::shared_ptr<Memory> in_place(std::shared_ptr<Memory> m, std::shared_ptr<void> place) {
  auto* at = m.get();
  return {at, [m = std::move(m), place = std::move(place)](Memory*) mutable {
            m.reset();
            place.reset();
          }};
}

} // namespace

lending_side::lending_side(
  std::shared_ptr<net::channel> c, const shm_options& options,
  std::shared_ptr<lent_places> mappings)
  : channel_(std::move(c)), options_(options), mappings_(std::move(mappings)),
    who_(net::party_of(channel_->peer())) {}

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

result<lending_side::mapping> lending_side::admit(
  std::uint64_t arena, arena_sharing sharing) const {
  if (mapped_.contains(arena))
    return fail(errc::protocol_error, "announced an arena twice");
  return mappings_->lend(who_).map([&](auto place) { return mapping{std::move(place), sharing}; });
}

status lending_side::map(const announce& what, int fd) {
  auto sharing = sharing_of(what);
  std::lock_guard guard{mutex_};
  auto made = admit(what.arena, sharing);
  // This process has asked for it, so the peer keeps its connection.
  if (!made && sharing != arena_sharing::transfers && made.error().code() == errc::busy)
    made = mapping{.place = nullptr, .sharing = sharing};
  if (!made || closed_)
    return made ? status{} : made.error();
  auto trusted = trusted_with_faults(channel_->peer()) || !is_of_huge_page_pool(fd);
  if (made->place && trusted) {
    auto arena = mapped_arena::map(fd, what.size_bytes, sharing);
    if (!arena)
      return arena.error();
    made->arena = in_place(std::move(*arena), made->place);
  }
  mapped_.emplace(what.arena, std::move(*made));
  return {};
}

status lending_side::map_file(const announce_file& what, net::unique_fd fd) {
  std::lock_guard guard{mutex_};
  auto made = admit(what.arena);
  if (!made || closed_)
    return made ? status{} : made.error();
  if (trusted_with_faults(channel_->peer())) {
    auto file =
      mapped_file::reserve(std::move(fd), {what.size_bytes, what.file_offset, what.granule_bytes});
    if (!file && file.error().code() != errc::unsupported)
      return file.error();
    if (file) {
      made->parts = std::make_shared<places>(places{made->place});
      made->file = in_place(std::move(*file), made->parts);
    }
  }
  mapped_.emplace(what.arena, std::move(*made));
  return {};
}

// Every run costs the kernel a mapping of its own. A grant adds one at most, and may join others.
status lending_side::count_parts(mapping& m) const {
  auto counted = 1 + m.file->runs();
  if (counted > m.parts->size()) {
    auto place = mappings_->lend(who_);
    if (!place)
      return place.error();
    m.parts->push_back(std::move(*place));
  }
  m.parts->resize(std::min(counted, m.parts->size()));
  return {};
}

status lending_side::take_grant(const grant& what) {
  std::lock_guard guard{mutex_};
  auto found = mapped_.find(what.arena);
  if (found == mapped_.end() || found->second.arena)
    return {errc::protocol_error, "a grant of a file that was not announced"};
  auto& m = found->second;
  if (!m.file)
    return {};
  auto bad = m.file->grant(what.offset, what.length);
  if (bad.ok())
    bad = count_parts(m);
  if (bad.code() != errc::unsupported)
    return bad;
  // Moves that run keep the mapping; later moves are answered `unsupported`.
  drop_locked(std::exchange(m, {m.place}));
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
  if (found->second.sharing != arena_sharing::transfers)
    return fail(errc::permission_denied, "the move names an arena that is not for transfers");
  auto& arena = found->second.arena;
  auto& file = found->second.file;
  if (!arena && !file)
    return fail(refused());
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

result<std::shared_ptr<mapped_arena>> lending_side::find_mapped(
  std::uint64_t arena, access_mode how) const {
  std::lock_guard guard{mutex_};
  auto found = mapped_.find(arena);
  if (found == mapped_.end() || found->second.sharing != sharing_for(how))
    return fail(errc::protocol_error, "a region in an arena that was not announced for it");
  if (!found->second.place)
    return fail(errc::unsupported, "this process maps no more memory of peers (shm.mapped_max)");
  if (!found->second.arena)
    return fail(refused());
  return found->second.arena;
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
