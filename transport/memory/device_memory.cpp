// Finds device memory among the kinds of this process, and copies in batches.
#include <millrace/core/log.hpp>
#include <millrace/core/process_mark.hpp>
#include <millrace/transport/builtin.hpp>
#include <millrace/transport/copy/copy.hpp>
#include <millrace/transport/memory/device_memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <shared_mutex>

namespace millrace::transport {

namespace {

// Bounds the list for any strides.
constexpr std::size_t runs_max = 16384;

struct kind_table {
  std::shared_mutex mutex;
  std::vector<std::shared_ptr<device_kind>> kinds = builtin_device_kinds();
};

kind_table& all_kinds() { return one_per_process<kind_table>(); }

} // namespace

std::vector<std::shared_ptr<device_kind>> device_kinds() {
  std::shared_lock guard{all_kinds().mutex};
  return all_kinds().kinds;
}

result<memory_block> device_memory::allocate(std::uint64_t) {
  return fail(errc::unsupported, "Millrace makes no memory of {}", name());
}

status device_memory::when_reached(void*, std::function<void()>) {
  return {errc::unsupported, "device {} has no streams", name()};
}

result<std::shared_ptr<device_memory>> device_kind::open(std::uint32_t) {
  return fail(errc::unsupported, "devices of kind {} are not opened by number", name());
}

status device_kind::when_reached(void*, std::function<void()>) {
  return {errc::unsupported, "devices of kind {} have no streams", name()};
}

result<std::shared_ptr<stream_gate>> device_kind::hold(void*) {
  return fail(errc::unsupported, "devices of kind {} have no streams", name());
}

result<std::shared_ptr<device_kind>> find_device_kind(std::string_view name) {
  std::vector<std::string_view> known;
  for (auto& kind : device_kinds()) {
    if (kind->name() == name)
      return kind;
    known.push_back(kind->name());
  }
  return fail(
    errc::unsupported, "no devices of kind '{}'; this build has {}", name,
    known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
}

result<std::shared_ptr<device_memory>> open_device(std::string_view name) {
  auto colon = name.find(':');
  std::uint32_t number = 0;
  auto* end = name.data() + name.size();
  auto* digits = colon == name.npos ? end : name.data() + colon + 1;
  auto parsed = std::from_chars(digits, end, number);
  if (digits == end || parsed.ec != std::errc{} || parsed.ptr != end)
    return fail(errc::invalid_argument, "'{}' is no device; one is called cuda:0", name);
  auto kind = find_device_kind(name.substr(0, colon));
  return kind ? (*kind)->open(number) : fail(kind.error());
}

std::shared_ptr<void> add_device_kind(std::shared_ptr<device_kind> kind) {
  std::lock_guard guard{all_kinds().mutex};
  all_kinds().kinds.push_back(kind);
  return {kind.get(), [kind](void*) {
            std::lock_guard lock{all_kinds().mutex};
            std::erase(all_kinds().kinds, kind);
          }};
}

std::shared_ptr<device_memory> find_device_memory(const std::byte* data) {
  std::shared_lock guard{all_kinds().mutex};
  for (auto& kind : all_kinds().kinds)
    if (auto found = kind->find(data))
      return found;
  return nullptr;
}

void device_batch::add(device_memory* device, const device_run& run) {
  if (!device) {
    auto out = way_ == device_way::to_host;
    copy_bytes(
      out ? run.host : run.device, out ? run.device : run.host, run.length, store_mode::cached);
    return;
  }
  if (device != device_ || waiting_.size() == runs_max)
    flush();
  device_ = device;
  waiting_.push_back(run);
}

status device_batch::finish() {
  flush();
  return std::exchange(failure_, {});
}

void device_batch::flush() {
  if (!waiting_.empty() && failure_.ok())
    failure_ = device_->copy(waiting_, way_);
  waiting_.clear();
}

void device_pins::pin_for(device_memory& device, std::byte* data, std::uint64_t length) {
  std::lock_guard guard{mutex_};
  auto same = [&](auto& p) { return p.first == device.kind(); };
  if (std::any_of(pins_.begin(), pins_.end(), same))
    return;
  auto made = device.pin(data, length);
  if (!made)
    log().warn(
      "host memory not pinned for {}, copies are slower why=\"{}\"", device.name(),
      made.error().to_string());
  pins_.emplace_back(device.kind(), made ? std::move(*made) : nullptr);
}

void device_pins::clear() noexcept {
  std::lock_guard guard{mutex_};
  pins_.clear();
}

} // namespace millrace::transport
