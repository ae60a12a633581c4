// The facades of loaders and batches.
#include <millrace/runtime/client/calls/batch_loader.hpp>
#include <millrace/runtime/client/loader.hpp>

namespace millrace {

std::uint64_t batch::epoch() const noexcept { return of_->step().epoch; }
std::uint64_t batch::position() const noexcept { return of_->step().position; }
std::span<const std::uint64_t> batch::ids() const noexcept { return of_->step().samples; }
std::uint64_t batch::rows() const noexcept { return of_->step().rows(); }
tensor_view batch::mask() const { return of_->mask(); }
std::size_t batch::fields() const noexcept { return of_->fields().size(); }
tensor_view batch::field(std::size_t field) const { return of_->fields().at(field); }
std::span<const std::uint64_t> batch::offsets(std::size_t field) const {
  return of_->offsets(field);
}
status batch::follow(const device_stream& stream) const { return of_->follow(stream); }

future<std::optional<batch>> loader::next() const { return of_->next(); }
loader_state loader::state() const { return of_->state(); }
status loader::seek(const loader_state& to) const { return of_->seek(to); }
status loader::set_epoch(std::uint64_t epoch) const { return of_->set_epoch(epoch); }
std::uint64_t loader::batches_per_epoch() const noexcept { return of_->plan().batches_from(); }
std::uint64_t loader::batches_left() const { return of_->batches_left(); }
loader_options loader::options() const { return of_->options(); }
const set_info& loader::set() const noexcept { return of_->reader().info(); }
loader_counts loader::counts() const { return of_->counts(); }
std::string loader::processors() const { return of_->processors(); }

} // namespace millrace
