// Two rings where there is a device, and one otherwise.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/planted_fault.hpp>
#include <millrace/runtime/client/calls/batch_memory.hpp>

#include <fmt/format.h>

#include <future>
#include <system_error>
#include <utility>

namespace millrace::runtime {

namespace {

using transport::processor_list;

struct nearness {
  std::string device;
  processor_list processors;

  std::string text() const {
    return processors.empty()
      ? ""
      : fmt::format("processors {}, near {}", transport::text_of(processors), device);
  }
};

nearness near_network(const transport::fabric& fabric) {
  auto devices = fabric.devices_in_use();
  return {fmt::format("{}", fmt::join(devices, ", ")), transport::processors_near_devices(devices)};
}

nearness near_of(const engine& runs_on, const batch_device* device, bool is_remote) {
  if (!runs_on.settings().client.bind_readers)
    return {};
  if (device)
    return {
      device->memory().name(), transport::processors_near_pci(device->memory().pci_address())};
  return is_remote ? near_network(*runs_on.fabric()) : nearness{};
}

// Null without a device.
result<std::shared_ptr<batch_device>> open_device(const engine& runs_on, const std::string& name) {
  return name.empty() ? nullptr : batch_device::open(name, runs_on.loop());
}

} // namespace

result<std::string> batch_memory::processors_for(
  const engine& runs_on, const std::string& device, bool is_remote) {
  return open_device(runs_on, device).map([&](const std::shared_ptr<batch_device>& opened) {
    return near_of(runs_on, opened.get(), is_remote).text();
  });
}

result<batch_memory> batch_memory::make(const engine& runs_on, const wanted& what) {
  batch_memory out;
  auto opened = open_device(runs_on, what.device);
  if (!opened)
    return fail(opened.error());
  out.device_ = std::move(*opened);
  auto near = near_of(runs_on, out.device_.get(), what.is_remote);
  out.kept_ = runs_on.fabric()->movers()->keep_on(near.processors);
  if (out.kept_)
    out.processors_ = near.text();
  if (out.device_)
    if (auto bad = out.make_staging(runs_on, what, near.processors); !bad.ok())
      return fail(bad.within("memory of the host for " + what.device));
  out.of_ring_ = out.device_ ? out.device_->places() : receive_ring::registered(runs_on.fabric());
  auto ring = receive_ring::make(
    out.device_ ? out.of_ring_ : receive_ring::gathered(out.of_ring_), what.places,
    what.place_bytes);
  if (!ring)
    return fail(ring.error());
  out.ring_ = std::move(*ring);
  return out;
}

// The pages lie where they are touched first. The program's own thread goes nowhere.
status batch_memory::make_staging(
  const engine& runs_on, const wanted& what, const processor_list& near) {
  of_staging_ = device_->staging(runs_on.fabric());
  auto make = [&]() -> status {
    auto made = receive_ring::make(of_staging_, what.fillings, what.place_bytes);
    if (made)
      staging_ = std::move(*made);
    return made ? status{} : made.error();
  };
  if (near.empty())
    return make();
  std::packaged_task<status()> there{[&] {
    transport::stay_on(near);
    return make();
  }};
  auto made = there.get_future();
  try {
    background_thread(std::move(there)).join();
  } catch (const std::system_error&) { // no thread is left: the memory lies where it happens to
    return make();
  }
  return made.get();
}

bool batch_memory::lend(lent& out) const {
  if (staging_ && !staging_->has_free())
    return false;
  out.place = ring_->lend();
  if (out.place && staging_)
    out.staging = staging_->lend();
  return out.place != nullptr;
}

void batch_memory::when_freed(const std::function<void()>& freed) const {
  ring_->when_freed(freed);
  if (staging_)
    staging_->when_freed(freed);
}

std::shared_ptr<loaded_batch> batch_memory::make_batch(batch_step step, const lent& places) const {
  MILLRACE_PLANTED_FAULT(typeid(loaded_batch));
  if (!device_)
    return std::make_shared<loaded_batch>(std::move(step), places.place);
  return std::make_shared<loaded_batch>(
    std::move(step), places.place, places.staging, device_->memory().kind());
}

bool batch_memory::has_room(const loaded_batch& of, std::uint64_t size_bytes) noexcept {
  auto* staging = of.staging();
  return of.place().size_bytes >= size_bytes && (!staging || staging->size_bytes >= size_bytes);
}

status batch_memory::widen(const loaded_batch& of, std::uint64_t size_bytes) const {
  auto bad = ring_->widen(of_ring_, of.place(), size_bytes);
  if (bad.ok() && of.staging())
    bad = staging_->widen(of_staging_, *of.staging(), size_bytes);
  return bad;
}

} // namespace millrace::runtime
