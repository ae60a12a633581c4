// Every packet is an event at the switch, and the last one of an answer one at the process.
#include <millrace/tests/sim/switch_port.hpp>

#include <algorithm>
#include <utility>

namespace millrace::sim {

nanoseconds switch_port::on_wire() const {
  return std::chrono::duration_cast<nanoseconds>(
    std::chrono::duration<double>(packet_bytes / options_.bytes_per_s));
}

void switch_port::send(const peer_id& from, std::uint64_t bytes, std::function<void()> arrived) {
  auto now = world_.now();
  auto& link = free_at_[from];
  link = std::max(link, now + 2 * options_.way); // the question takes as long
  auto one = std::make_shared<answer>();
  one->left = std::max<std::uint64_t>((bytes + packet_bytes - 1) / packet_bytes, 1);
  one->arrived = std::move(arrived);
  for (auto i = one->left; i > 0; --i) {
    link += on_wire();
    world_.after(
      to_, link + options_.way - now, [self = shared_from_this(), one] { self->at_switch(one); });
  }
}

void switch_port::at_switch(const std::shared_ptr<answer>& of) {
  ++packets_;
  auto now = world_.now();
  auto waits = std::max(port_free_at_ - now, nanoseconds{});
  auto queued = std::chrono::duration<double>(waits).count() * options_.bytes_per_s;
  if (queued + packet_bytes > static_cast<double>(options_.buffer_bytes)) {
    ++lost_;
    world_.after(to_, options_.resend, [self = shared_from_this(), of] { self->at_switch(of); });
    return;
  }
  port_free_at_ = std::max(port_free_at_, now) + on_wire();
  if (--of->left == 0)
    world_.after(to_, port_free_at_ + options_.way - now, [of] { of->arrived(); });
}

} // namespace millrace::sim
