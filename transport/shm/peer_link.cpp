// Bookkeeping of announced arenas and pending moves.
#include <millrace/core/codec.hpp>
#include <millrace/transport/shm/peer_link.hpp>

namespace millrace::transport::shm {

namespace {

// A peer may announce this many arenas; more is a defect or an attack.
constexpr std::size_t mapped_arenas_max = 4096;

} // namespace

template <class Message>
status peer_link::send(message_kind kind, const Message& m, std::span<const int> fds) {
  byte_buffer body;
  wire_writer{body}(std::string{"shm"}, kind, m);
  return channel_->send(frame_kind::driver, 0, body, fds);
}

template status peer_link::send(message_kind, const moved&, std::span<const int>);

status peer_link::announce_arena(const std::shared_ptr<arena>& a) {
  std::lock_guard guard{mutex_};
  if (announced_.contains(a->id()))
    return {};
  int fd = a->fd();
  auto sent = send(message_kind::announce, announce{a->id(), a->size_bytes()}, {&fd, 1});
  if (sent.ok())
    announced_.emplace(a->id(), a);
  return sent;
}

void peer_link::forget_freed() {
  std::lock_guard guard{mutex_};
  for (auto i = announced_.begin(); i != announced_.end();) {
    if (i->second.expired() && send(message_kind::forget, forget{i->first}).ok())
      i = announced_.erase(i);
    else
      ++i;
  }
}

void peer_link::ask(move request, pending_move pending) {
  {
    std::lock_guard guard{mutex_};
    if (!closed_) {
      request.number = next_++;
      pending_.emplace(request.number, std::move(pending));
    }
  }
  // Moved only when it got a number.
  if (request.number == 0)
    // NOLINTNEXTLINE(bugprone-use-after-move)
    return pending.done(fail(errc::peer_lost, "the connection to " + peer().name + " is closed"));
  auto sent = send(message_kind::move, request);
  if (sent.ok())
    return;
  if (auto mine = take(request.number))
    mine->done(fail(sent));
}

// None if closing has answered it already.
std::optional<pending_move> peer_link::take(std::uint64_t number) {
  std::lock_guard guard{mutex_};
  auto found = pending_.find(number);
  if (found == pending_.end())
    return std::nullopt;
  auto pending = std::move(found->second);
  pending_.erase(found);
  return pending;
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
  pending->done(std::move(answer.digests));
}

std::vector<std::shared_ptr<void>> peer_link::close(const status& why) {
  std::unordered_map<std::uint64_t, pending_move> failed;
  {
    std::lock_guard guard{mutex_};
    closed_ = true;
    failed.swap(pending_);
    mapped_.clear();
  }
  abandoned_->store(true);
  std::vector<std::shared_ptr<void>> touched;
  for (auto& [number, pending] : failed) {
    touched.push_back(std::move(pending.hold));
    pending.done(fail(why));
  }
  return touched;
}

result<std::shared_ptr<mapped_arena>> peer_link::map(const announce& what, int fd) {
  std::lock_guard guard{mutex_};
  if (mapped_.size() >= mapped_arenas_max || mapped_.contains(what.arena))
    return fail(errc::protocol_error, "announced too many arenas, or one of them twice");
  auto made = mapped_arena::map(fd, what.size_bytes);
  if (made && !closed_)
    mapped_.emplace(what.arena, *made);
  return made;
}

void peer_link::unmap(std::uint64_t arena) {
  std::lock_guard guard{mutex_};
  mapped_.erase(arena);
}

result<std::byte*> peer_link::resolve(
  const move_op& op, std::vector<std::shared_ptr<void>>& keep) const {
  std::lock_guard guard{mutex_};
  auto found = mapped_.find(op.arena);
  if (found == mapped_.end())
    return fail(errc::permission_denied, "the move names an arena that was not announced");
  auto size = found->second->size_bytes();
  // In this order nothing can wrap around.
  bool inside = op.offset <= size && op.lead <= op.offset && op.length <= size - op.offset &&
    op.tail <= size - op.offset - op.length;
  if (!inside)
    return fail(errc::permission_denied, "the move reaches outside the announced arena");
  if (keep.empty() || keep.back() != found->second)
    keep.push_back(found->second);
  return found->second->data() + op.offset;
}

} // namespace millrace::transport::shm
