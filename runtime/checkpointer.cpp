// The facade: its last copy closes what it stands for.
#include <millrace/runtime/checkpointer.hpp>
#include <millrace/runtime/shard_state.hpp>

namespace millrace {

struct checkpointer::attachment {
  explicit attachment(std::shared_ptr<runtime::shard_state> s) : state(std::move(s)) {}
  ~attachment() { state->drop(); }
  attachment(const attachment&) = delete;
  attachment& operator=(const attachment&) = delete;

  std::shared_ptr<runtime::shard_state> state;
};

checkpointer::checkpointer(const std::shared_ptr<runtime::shard_state>& s)
  : attached_(std::make_shared<attachment>(s)) {}

pending_save checkpointer::save(std::uint64_t step, save_mode mode) {
  return attached_->state->save(step, mode);
}

status checkpointer::fence() { return attached_->state->fence(); }

future<actors::load_receipt> checkpointer::restore(std::optional<std::uint64_t> step) {
  return attached_->state->restore(step);
}

future<actors::load_receipt> checkpointer::restore_shard(
  std::uint32_t rank, std::vector<tensor_view> targets, std::optional<std::uint64_t> step) {
  return attached_->state->restore_shard(rank, std::move(targets), step);
}

future<checkpoint_summary> checkpointer::describe() const { return attached_->state->describe(); }

const actors::enroll_receipt& checkpointer::registration() const noexcept {
  return attached_->state->receipt();
}

status checkpointer::close(bool finished) { return attached_->state->close(finished); }

} // namespace millrace
