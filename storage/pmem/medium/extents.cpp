// Reserves one run if possible, else runs of as many whole windows as fit. Called by registration,
// storing and repack.
#include <millrace/core/rounding.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/pmem/medium/extents.hpp>

#include <algorithm>

namespace millrace::storage::pmem {

namespace {

// libpmemobj puts its header in front of an object; data starts on the next page border.
constexpr std::uint64_t alignment_bytes = io::direct_io_bytes;

std::uint64_t end_of(const io::packed_window& w) { return w.at + w.size_bytes; }

bool reserve_one(change& into, std::uint64_t length, reserved_extents& out) {
  auto object = into.reserve(length + alignment_bytes, object_type::data);
  if (!object)
    return false;
  out.extents.push_back({*object, round_up(*object, alignment_bytes), length});
  out.taken_bytes += into.reserved_bytes();
  return true;
}

// Returns how many windows from `first` on fit into one run.
std::size_t windows_fitting(change& into, const io::packing& packed, std::size_t first) {
  auto& windows = packed.windows;
  std::size_t fits = 0, most = windows.size() - first;
  while (fits < most) {
    auto middle = fits + (most - fits + 1) / 2;
    auto length = end_of(windows[first + middle - 1]) - windows[first].at;
    auto before = into.size();
    reserved_extents trial;
    if (reserve_one(into, length, trial)) {
      into.cancel_after(before);
      fits = middle;
    } else {
      most = middle - 1;
    }
  }
  return fits;
}

} // namespace

result<reserved_extents> reserve_extents(change& into, const io::packing& packed) {
  reserved_extents out;
  auto before = into.size();
  auto& windows = packed.windows;
  if (windows.empty() || reserve_one(into, packed.stream_bytes, out))
    return out;
  for (std::size_t first = 0; first < windows.size();) {
    auto count = out.extents.size() < extents_max ? windows_fitting(into, packed, first) : 0;
    auto length = count == 0 ? 0 : end_of(windows[first + count - 1]) - windows[first].at;
    if (count == 0 || !reserve_one(into, length, out)) {
      into.cancel_after(before);
      return fail(errc::no_space, "there is no space for {} bytes", packed.stream_bytes);
    }
    first += count;
  }
  return out;
}

std::vector<located_run> locate(
  const std::vector<data_extent>& extents, std::uint64_t at, std::uint64_t length,
  std::uint64_t run_max_bytes) {
  std::vector<located_run> runs;
  auto add = [&](auto& e, auto skip, auto part, auto from) {
    runs.push_back({e.offset + skip, part, from});
  };
  io::for_each_run(extents, at, length, run_max_bytes, add);
  return runs;
}

} // namespace millrace::storage::pmem
