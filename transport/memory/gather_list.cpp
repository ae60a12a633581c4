// Resolves strides run by run.
#include <millrace/core/assert.hpp>
#include <millrace/transport/memory/gather_list.hpp>

#include <algorithm>

namespace millrace {

namespace {

// No address is as far from another one.
constexpr std::uint64_t reach_max = std::uint64_t{1} << 62;

std::uint64_t length_of(std::int64_t stride_bytes) {
  auto length = static_cast<std::uint64_t>(stride_bytes);
  return stride_bytes < 0 ? 0 - length : length;
}

status check_reach(const tensor_view& view) {
  std::uint64_t reach = 0;
  for (std::size_t i = 0; i < view.strides_bytes.size(); ++i) {
    auto stride = view.strides_bytes[i];
    auto steps = std::max<std::uint64_t>(view.desc.shape[i], 1) - 1;
    auto distance = length_of(stride);
    if (distance > reach_max || (distance > 0 && steps > (reach_max - reach) / distance))
      return {
        errc::invalid_argument, "tensor {}: a stride of {} bytes reaches beyond any memory",
        view.desc.name, stride};
    reach += steps * distance;
  }
  return {};
}

} // namespace

status validate(const tensor_view& view) {
  if (auto bad = validate(view.desc); !bad.ok())
    return bad;
  if (*size_bytes(view.desc) > 0 && !view.data)
    return {errc::invalid_argument, "tensor {}: no memory behind it", view.desc.name};
  if (view.strides_bytes.empty())
    return {};
  if (view.strides_bytes.size() != view.desc.shape.size())
    return {
      errc::invalid_argument, "tensor {}: {} strides for rank {}", view.desc.name,
      view.strides_bytes.size(), view.desc.shape.size()};
  if (bits_per_element(view.desc.type) % 8 != 0)
    return {
      errc::invalid_argument, "tensor {}: elements below one byte cannot be strided",
      view.desc.name};
  return check_reach(view);
}

} // namespace millrace

namespace millrace::transport {

namespace {

// Returns true if walking the dimensions never visits a byte twice: when sorted by stride, each
// step is larger than the span of the smaller dimensions.
template <class Dimensions>
bool disjoint(std::uint64_t run_bytes, Dimensions outer) {
  std::sort(outer.begin(), outer.end(), [](auto& a, auto& b) {
    return length_of(a.stride_bytes) < length_of(b.stride_bytes);
  });
  auto span = run_bytes;
  for (auto& d : outer) {
    auto stride = length_of(d.stride_bytes);
    if (stride < span)
      return false;
    span += (d.count - 1) * stride;
  }
  return true;
}

} // namespace

result<gather_list::item> gather_list::item_of(const tensor_view& view, access_mode how) {
  if (auto bad = validate(view); !bad.ok())
    return fail(bad);
  item out;
  out.data = view.data;
  out.size_bytes = *millrace::size_bytes(view.desc);
  if (view.strides_bytes.empty() || out.size_bytes == 0) {
    out.run_bytes = out.size_bytes;
    return out;
  }
  // Inner dimensions that are dense within each other make up the run.
  out.run_bytes = bits_per_element(view.desc.type) / 8;
  auto rank = view.desc.shape.size();
  while (rank > 0 &&
         (view.desc.shape[rank - 1] == 1 ||
          view.strides_bytes[rank - 1] == static_cast<std::int64_t>(out.run_bytes))) {
    out.run_bytes *= view.desc.shape[rank - 1];
    --rank;
  }
  for (std::size_t i = 0; i < rank; ++i)
    if (view.desc.shape[i] > 1)
      out.outer.push_back({view.desc.shape[i], view.strides_bytes[i]});
  if (how == access_mode::write && !disjoint(out.run_bytes, out.outer))
    return fail(
      errc::invalid_argument,
      "tensor {}: its strides let elements overlap in memory, so nothing can be written to it",
      view.desc.name);
  return out;
}

result<gather_list> gather_list::of(const std::vector<tensor_view>& views, access_mode how) {
  gather_list out;
  out.items_.reserve(views.size());
  for (auto& view : views) {
    auto made = item_of(view, how);
    if (!made)
      return fail(made.error());
    if (made->size_bytes == 0)
      continue;
    made->first = out.size_bytes_;
    out.size_bytes_ += made->size_bytes;
    out.place(*made);
    out.items_.push_back(std::move(*made));
  }
  return out;
}

// Finds the device to which the memory belongs.
void gather_list::place(item& x) {
  auto device = find_device_memory(x.data);
  if (!device)
    return;
  x.device = device.get();
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end())
    devices_.push_back(std::move(device));
}

std::size_t gather_list::find(std::uint64_t offset) const noexcept {
  auto after =
    std::upper_bound(items_.begin(), items_.end(), offset, [](std::uint64_t value, const item& x) {
      return value < x.first;
    });
  return static_cast<std::size_t>(after - items_.begin()) - 1;
}

std::byte* gather_list::dense_at(std::uint64_t offset, std::uint64_t length) const noexcept {
  if (items_.empty())
    return nullptr;
  auto& x = items_[find(offset)];
  auto inside = offset - x.first;
  return !x.device && x.outer.empty() && length <= x.size_bytes - inside ? x.data + inside
                                                                         : nullptr;
}

std::optional<std::vector<gather_list::dense_range>> gather_list::dense_ranges() const {
  std::vector<dense_range> out;
  for (auto& x : items_) {
    if (!x.outer.empty())
      return std::nullopt;
    auto touches = !out.empty() && out.back().data + out.back().length == x.data;
    if (touches && out.back().device == x.device)
      out.back().length += x.size_bytes;
    else
      out.push_back({x.first, x.data, x.size_bytes, x.device});
  }
  return out;
}

// Returns the address of byte `inside` of a tensor.
std::byte* gather_list::run_at(const item& x, std::uint64_t inside) noexcept {
  auto run = inside / x.run_bytes;
  auto* at = x.data + inside % x.run_bytes;
  for (auto d = x.outer.rbegin(); d != x.outer.rend(); ++d) {
    at += static_cast<std::int64_t>(run % d->count) * d->stride_bytes;
    run /= d->count;
  }
  return at;
}

// Calls `use(data, size_bytes, item)` for every run until it returns false.
template <class F>
void gather_list::for_runs(std::uint64_t offset, std::uint64_t length, F use) const {
  MILLRACE_ASSERT(offset <= size_bytes_ && length <= size_bytes_ - offset);
  for (auto i = length > 0 ? find(offset) : 0; length > 0; ++i) {
    auto& x = items_[i];
    auto inside = offset - x.first;
    auto left = std::min(length, x.size_bytes - inside);
    offset += left;
    length -= left;
    while (left > 0) {
      auto bytes = std::min(left, x.run_bytes - inside % x.run_bytes);
      if (!use(run_at(x, inside), bytes, x))
        return;
      inside += bytes;
      left -= bytes;
    }
  }
}

gather_list::listed_runs gather_list::runs(
  std::uint64_t offset, std::uint64_t length, std::span<iovec> out) const {
  MILLRACE_ASSERT(on_host());
  listed_runs listed;
  for_runs(offset, length, [&](std::byte* at, std::uint64_t bytes, auto&) {
    if (listed.count == out.size())
      return false;
    out[listed.count++] = {at, bytes};
    listed.size_bytes += bytes;
    return true;
  });
  return listed;
}

void gather_list::read(
  std::uint64_t offset, std::byte* target, std::uint64_t length, store_mode mode) const {
  MILLRACE_ASSERT(on_host());
  // Short runs share cache lines. They are written back together, not once for every run.
  const auto* unwritten = target;
  auto flush = [&] {
    if (mode == store_mode::written_back)
      write_back(unwritten, static_cast<std::size_t>(target - unwritten));
  };
  for_runs(offset, length, [&](const std::byte* at, std::uint64_t bytes, auto&) {
    auto shared = bytes < streaming_run_bytes_min;
    if (!shared)
      flush();
    copy_bytes(target, at, bytes, shared ? store_mode::cached : mode);
    target += bytes;
    if (!shared)
      unwritten = target;
    return true;
  });
  flush();
}

void gather_list::write(
  std::uint64_t offset, const std::byte* source, std::uint64_t length, store_mode mode) const {
  MILLRACE_ASSERT(on_host());
  for_runs(offset, length, [&](std::byte* at, std::uint64_t bytes, auto&) {
    copy_bytes(at, source, bytes, mode);
    source += bytes;
    return true;
  });
}

void gather_list::copy_in_batch(
  device_batch& batch, std::uint64_t offset, std::byte* host, std::uint64_t length) const {
  for_runs(offset, length, [&](std::byte* at, std::uint64_t bytes, const item& x) {
    batch.add(x.device, {at, host, bytes});
    host += bytes;
    return true;
  });
}

} // namespace millrace::transport
