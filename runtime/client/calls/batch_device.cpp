// What may block, or may run code of the program, runs on none of the vendor's threads.
#include <millrace/core/clock.hpp>
#include <millrace/core/log.hpp>
#include <millrace/runtime/client/calls/batch_device.hpp>
#include <millrace/runtime/node/side_thread.hpp>
#include <millrace/transport/memory/arena.hpp>

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace millrace::runtime {

namespace {

// For which a batch tries again to follow a stream that takes no work, and how often.
constexpr std::chrono::seconds late_max{30};
constexpr std::chrono::milliseconds late_step{20};

// To free memory of a device, and to unpin, can wait for all of its work, and a ring may end on the
// I/O loop.
memory_block freed_aside(memory_block made) {
  auto last = std::make_shared<std::shared_ptr<void>>(std::move(made.owner));
  auto free = [last](void*) {
    try {
      run_aside([last] { last->reset(); });
    } catch (const std::exception&) { // there are no threads left
      last->reset();
    }
  };
  return {made.data, made.size_bytes, std::shared_ptr<void>{made.data, std::move(free)}};
}

} // namespace

result<std::shared_ptr<batch_device>> batch_device::open(
  std::string_view name, std::shared_ptr<net::io_loop> loop) {
  auto memory = transport::open_device(name);
  if (!memory)
    return fail(memory.error());
  return std::shared_ptr<batch_device>{new batch_device{std::move(*memory), std::move(loop)}};
}

receive_ring::source batch_device::places() const {
  return [memory = memory_](std::uint64_t size_bytes) -> result<memory_block> {
    auto made = memory->allocate(size_bytes);
    return made ? freed_aside(std::move(*made)) : made;
  };
}

receive_ring::source batch_device::staging(const std::shared_ptr<transport::fabric>& fabric) const {
  return [memory = memory_, host = receive_ring::registered(fabric)](
           std::uint64_t size_bytes) -> result<memory_block> {
    auto made = host(size_bytes);
    if (!made)
      return made;
    if (auto place = transport::find_arena(made->data, made->size_bytes))
      place->in->pin_for(*memory);
    return freed_aside(std::move(*made));
  };
}

void batch_device::move(
  transport::mover_pool& movers, std::shared_ptr<loaded_batch> data, completion<void> done) const {
  auto why = std::make_shared<status>();
  movers.devices().submit(
    1, [memory = memory_, data, why](std::uint32_t) { *why = data->move_to(*memory); },
    [data, why, done = std::move(done)] { done(why->ok() ? result<void>{} : fail(*why)); },
    transport::job_class::urgent);
}

void batch_device::give_back(std::shared_ptr<const loaded_batch> data) const noexcept {
  try {
    auto why = give_back_behind(data);
    if (why.ok())
      return;
    if (!told_.exchange(true))
      log().warn(
        "a batch cannot follow a stream of {} now why=\"{}\"", memory_->name(), why.to_string());
    auto last = std::make_shared<std::shared_ptr<const loaded_batch>>(std::move(data));
    run_aside([self = shared_from_this(), last] { self->give_back_late(std::move(*last)); });
  } catch (const std::exception& e) {
    log().error("a batch waits for all work of {} why=\"{}\"", memory_->name(), e.what());
    static_cast<void>(memory_->drain());
  }
}

// A stream that is being captured into a graph takes other work when that is over, and what would
// wait for the device ends the capture.
void batch_device::give_back_late(std::shared_ptr<const loaded_batch> data) const {
  for (auto until = steady_clock::now() + late_max; steady_clock::now() < until;) {
    std::this_thread::sleep_for(late_step);
    if (give_back_behind(data).ok() || !refused_at_exit().ok())
      return;
  }
  static_cast<void>(memory_->drain());
}

// The vendor's thread hands the batch over: to drop it may begin reads, and run code that waits for
// the device.
status batch_device::give_back_behind(std::shared_ptr<const loaded_batch>& data) const {
  auto kept = std::make_shared<std::shared_ptr<const loaded_batch>>(data);
  return memory_->when_reached(
    data->stream(), [loop = loop_, kept] { loop->post([last = std::move(*kept)] {}); });
}

} // namespace millrace::runtime
