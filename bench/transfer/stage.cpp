// Makes names, shapes and rigs.
#include <millrace/bench/transfer/stage.hpp>

#include <algorithm>

namespace millrace::bench {

using transport::direction;

namespace {

constexpr std::uint64_t kib = 1u << 10, mib = 1u << 20, gib = 1u << 30;

constexpr std::uint64_t places_bytes = 64 * mib; // unless two transfers are larger
constexpr std::uint64_t places_max = 1024;
constexpr std::uint32_t depth_max = 64;

} // namespace

std::vector<std::uint64_t> extent::latency_sizes() const {
  if (!only_sizes.empty())
    return only_sizes;
  if (quick)
    return {8, 4 * kib};
  if (emulated)
    return {8, 512, 4 * kib, 256 * kib, 4 * mib};
  return {8, 64, 512, 4 * kib, 32 * kib, 256 * kib, 2 * mib, 16 * mib, 128 * mib, gib};
}

std::vector<std::uint64_t> extent::sizes() const {
  if (!only_sizes.empty())
    return only_sizes;
  if (quick)
    return {8, mib};
  if (emulated)
    return {8, 4 * kib, 64 * kib, 256 * kib, mib, 4 * mib, 16 * mib, 64 * mib};
  return {8,   64,      512,      4 * kib,  16 * kib,  64 * kib, 256 * kib,
          mib, 4 * mib, 16 * mib, 64 * mib, 256 * mib, gib};
}

std::vector<std::uint64_t> extent::segmented_sizes() const {
  if (quick || emulated)
    return {mib};
  return {64 * kib, mib, 16 * mib};
}

std::vector<std::uint32_t> extent::segments() const {
  if (quick)
    return {1, 64};
  if (emulated)
    return {1, 8, 64};
  return {1, 4, 16, 64};
}

std::vector<std::uint32_t> extent::peers() const {
  if (quick)
    return {1, 2};
  if (emulated)
    return {1, 4, 16};
  return {1, 2, 4, 8, 16};
}

std::uint64_t extent::places_bytes_max() const {
  std::uint64_t out = 0;
  for (auto size : sizes())
    out = std::max(out, size * shape{.size_bytes = size}.places());
  for (auto size : latency_sizes())
    out = std::max(out, size);
  return out;
}

bool extent::takes_long(std::uint64_t size_bytes) const {
  return emulated && size_bytes > 16 * mib;
}

std::uint64_t extent::round_bytes() const { return quick || emulated ? 16 * mib : gib; }

double extent::close_seconds() const { return emulated ? 30 : 5; }

std::uint64_t extent::exchanges(std::uint64_t size_bytes) const {
  return std::clamp<std::uint64_t>(round_bytes() / size_bytes, 1, quick || emulated ? 200 : 4000);
}

std::uint64_t extent::transfers(const shape& how) const {
  auto most = quick ? kib : emulated ? 2 * kib : 32 * kib;
  // As many as can be in flight, where the figures should mean something.
  std::uint64_t least = quick ? 1 : how.depth();
  return std::clamp<std::uint64_t>(round_bytes() / how.size_bytes, least, most);
}

std::unique_ptr<rig> stage::rig_of(const driver_kind& kind, std::uint32_t owners) {
  auto made = rig::make(kind, files.path(), owners);
  if (made)
    return std::move(*made);
  skip_aloud(kind.column, made.error().detail());
  return nullptr;
}

std::uint32_t shape::depth() const {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(places(), depth_max));
}

std::uint64_t shape::places() const {
  return std::clamp<std::uint64_t>(places_bytes / size_bytes, 2, places_max);
}

std::string direction_name(direction dir) { return dir == direction::read ? "read" : "write"; }

std::string shape::name() const { return direction_name(dir) + "/" + bytes_name(size_bytes); }

std::string bytes_name(std::uint64_t size_bytes) {
  for (auto [shift, unit] : {std::pair{30, "GiB"}, {20, "MiB"}, {10, "KiB"}})
    if (auto whole = size_bytes >> shift; whole > 0 && whole << shift == size_bytes)
      return std::to_string(whole) + unit;
  return std::to_string(size_bytes) + "B";
}

std::vector<work> works_of(rig& r, const shape& how) {
  // A gap follows each segment and is as long as it, so that no driver can join them.
  auto gaps = how.segments > 1 ? 2u : 1u;
  auto slot = how.size_bytes * gaps;
  auto slots = how.same_memory ? std::uint64_t{1} : how.places();
  auto per_owner = (slots + how.owners - 1) / how.owners;
  auto memory = r.local(slot * slots);
  std::vector<bulk_handle> handles;
  for (std::uint32_t i = 0; i < how.owners; ++i)
    handles.push_back(r.expose(i, how.dir, slot * per_owner));
  auto piece = how.size_bytes / how.segments;
  std::vector<work> out;
  for (std::uint32_t i = 0; i < std::max<std::uint64_t>(slots, how.owners); ++i) {
    work w{how.dir, handles[i % how.owners], {}};
    auto there = i / how.owners % per_owner * slot;
    auto here = i % slots * slot;
    for (std::uint32_t k = 0; k < how.segments; ++k)
      w.ops.push_back(
        {there + k * piece * gaps, memory.data() + here + k * piece * gaps, piece, 0, 0});
    out.push_back(std::move(w));
  }
  return out;
}

} // namespace millrace::bench
