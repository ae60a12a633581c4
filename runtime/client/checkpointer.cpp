// The facade of `shard_state`. Its last copy closes the registration.
#include <millrace/runtime/client/calls/selected.hpp>
#include <millrace/runtime/client/calls/shard_state.hpp>
#include <millrace/runtime/client/checkpointer.hpp>

#include <mutex>

namespace millrace {

struct checkpointer::attachment {
  explicit attachment(std::shared_ptr<runtime::shard_state> s) : state(std::move(s)) {}
  ~attachment() { state->drop(); }
  attachment(const attachment&) = delete;
  attachment& operator=(const attachment&) = delete;

  std::shared_ptr<runtime::shard_state> state;
};

/// The value in the future of a registration. Every copy that a program takes attaches itself
/// through it.
///
/// *Problem*: the thread that completes a future releases its value a little after the program has
/// taken its copy. If that value held an attachment, the last attachment might end on that thread,
/// which must not wait for a save to drain.
struct checkpointer::offer {
  explicit offer(std::shared_ptr<runtime::shard_state> s) : state(std::move(s)) {}
  ~offer() {
    if (!taken)
      state->drop();
  }
  offer(const offer&) = delete;
  offer& operator=(const offer&) = delete;

  std::shared_ptr<attachment> take() {
    // In a forked child there is nothing to close.
    if (!made_in.is_here())
      return nullptr;
    std::lock_guard guard{mutex};
    auto alive = attached.lock();
    if (!alive)
      attached = alive = std::make_shared<attachment>(state);
    taken = true;
    return alive;
  }

  const process_mark made_in;
  const std::shared_ptr<runtime::shard_state> state;
  std::mutex mutex;
  std::weak_ptr<attachment> attached;
  bool taken = false;
};

checkpointer::checkpointer(const std::shared_ptr<runtime::shard_state>& s)
  : offered_(std::make_shared<offer>(s)) {}

checkpointer::checkpointer(const checkpointer& other)
  : offered_(other.offered_), attached_(other.attached_ ? other.attached_ : offered_->take()) {}

checkpointer& checkpointer::operator=(checkpointer other) noexcept {
  std::swap(offered_, other.offered_);
  std::swap(attached_, other.attached_);
  return *this;
}

runtime::shard_state& checkpointer::state() const noexcept { return *offered_->state; }

pending_save checkpointer::save(
  std::uint64_t step, save_mode mode, std::span<const std::byte> extra,
  std::optional<device_stream> after) {
  return state().save(step, mode, extra, after);
}

status checkpointer::fence() { return state().fence(); }

status checkpointer::fence(const device_stream& stream) { return state().fence(stream); }

future<void> checkpointer::fence_async() { return state().fence_async(); }

status checkpointer::rebind(const std::vector<tensor_view>& tensors) {
  return state().rebind(tensors);
}

future<load_receipt> checkpointer::restore(std::optional<std::uint64_t> step) {
  return state().restore(step);
}

future<load_receipt> checkpointer::restore_shard(
  std::uint32_t rank, std::vector<tensor_view> targets, std::optional<std::uint64_t> step) {
  return state().restore_shard(rank, runtime::whole(std::move(targets)), step);
}

future<load_receipt> checkpointer::restore_boxes(
  std::uint32_t rank, std::vector<load_target> targets, std::optional<std::uint64_t> step) {
  return state().restore_shard(rank, std::move(targets), step);
}

future<checkpoint_summary> checkpointer::describe() const { return state().describe(); }

const enroll_receipt& checkpointer::registration() const noexcept { return state().receipt(); }

status checkpointer::close(bool finished) { return state().close(finished); }

future<void> checkpointer::close_async(bool finished) { return state().close_async(finished); }

} // namespace millrace
