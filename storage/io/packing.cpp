// The arithmetic of windows and reads. Called by kinds that store on a disk or a device.
#include <millrace/core/digest.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/io/packing.hpp>

#include <algorithm>
#include <cstring>

namespace millrace::storage::io {

namespace {

constexpr std::uint64_t tensor_alignment = 64;
// Reading a gap of this size costs less than another request to the device.
constexpr std::uint64_t gap_max_bytes = 64 * 1024;

class packer {
public:
  packer(std::uint64_t window_bytes, bool contiguous)
    : window_bytes_(window_bytes), contiguous_(contiguous) {}

  void add(std::uint32_t tensor, std::uint64_t size_bytes) {
    std::uint64_t offset = 0;
    auto large = contiguous_ && size_bytes > digest_block_bytes;
    while (offset < size_bytes) {
      fill_ = round_up(fill_, large ? direct_io_bytes : tensor_alignment);
      auto space = window_bytes_ - std::min(fill_, window_bytes_);
      auto rest = size_bytes - offset;
      auto part = rest <= space ? rest : round_down(space, digest_block_bytes);
      if (part == 0) {
        close_window();
        continue;
      }
      out_.pieces.push_back({tensor, offset, part, out_.stream_bytes + fill_});
      fill_ += part;
      offset += part;
    }
  }

  packing finish() {
    close_window();
    return std::move(out_);
  }

private:
  void close_window() {
    auto first = out_.windows.empty() ? 0 : out_.windows.back().first + out_.windows.back().count;
    auto count = static_cast<std::uint32_t>(out_.pieces.size()) - first;
    if (count == 0)
      return;
    auto size = round_up(fill_, direct_io_bytes);
    out_.windows.push_back({out_.stream_bytes, size, first, count});
    out_.stream_bytes += size;
    fill_ = 0;
  }

  std::uint64_t window_bytes_;
  bool contiguous_;
  std::uint64_t fill_ = 0;
  packing out_;
};

// Collects the reads of one window. `cost` and `add` agree, so the ranges that were cut for a
// window fit into it.
class run_collector {
public:
  std::uint64_t cost(std::uint64_t at, std::uint64_t length) const {
    auto [low, high] = aligned(at, length);
    if (!joins(low))
      return high - low;
    auto end = plan_.runs.back().at + plan_.runs.back().length;
    return high > end ? high - end : 0;
  }

  void add(const placed_piece& part) {
    auto [low, high] = aligned(part.at, part.length);
    auto extra = cost(part.at, part.length);
    if (joins(low))
      plan_.runs.back().length += extra;
    else
      plan_.runs.push_back({low, high - low, plan_.memory_bytes});
    plan_.memory_bytes += extra;
    auto& run = plan_.runs.back();
    plan_.pieces.push_back(
      {part.tensor, part.tensor_offset, part.length, run.memory + (part.at - run.at)});
  }

  std::uint64_t memory_bytes() const noexcept { return plan_.memory_bytes; }
  read_plan finish() { return std::move(plan_); }

private:
  static std::pair<std::uint64_t, std::uint64_t> aligned(std::uint64_t at, std::uint64_t length) {
    return {round_down(at, direct_io_bytes), round_up(at + length, direct_io_bytes)};
  }

  bool joins(std::uint64_t low) const {
    if (plan_.runs.empty())
      return false;
    auto& last = plan_.runs.back();
    return low >= last.at && low <= last.at + last.length + gap_max_bytes;
  }

  read_plan plan_;
};

// Calls `f` with every part of the range that lies in one packed piece; `at` is in the stream.
template <class F>
void for_each_part(const packing& packed, const wanted& range, F f) {
  auto before = [](const placed_piece& p, const wanted& w) {
    return p.tensor != w.tensor ? p.tensor < w.tensor
                                : p.tensor_offset + p.length <= w.tensor_offset;
  };
  auto piece = std::lower_bound(packed.pieces.begin(), packed.pieces.end(), range, before);
  auto offset = range.tensor_offset;
  auto end = range.tensor_offset + range.length;
  for (; offset < end; ++piece) {
    auto skip = offset - piece->tensor_offset;
    auto length = std::min(end - offset, piece->length - skip);
    f(placed_piece{range.tensor, offset, length, piece->at + skip});
    offset += length;
  }
}

class range_cutter {
public:
  explicit range_cutter(std::uint64_t window_bytes) : window_bytes_(window_bytes) {}

  void add(const packing& packed, const wanted& range) {
    joins_ = false;
    for_each_part(packed, range, [&](const placed_piece& part) { add(part); });
  }

  std::vector<std::vector<wanted>> finish() {
    if (!list_.empty())
      out_.push_back(std::move(list_));
    return std::move(out_);
  }

private:
  void add(placed_piece part) {
    while (part.length > 0) {
      auto now = fitting(part);
      if (now == 0) {
        out_.push_back(std::move(list_));
        list_.clear();
        runs_ = {};
        joins_ = false;
        continue;
      }
      runs_.add({part.tensor, part.tensor_offset, now, part.at});
      append(part, now);
      part.tensor_offset += now, part.at += now, part.length -= now;
    }
  }

  bool fits(const placed_piece& part, std::uint64_t length) const {
    return runs_.memory_bytes() + runs_.cost(part.at, length) <= window_bytes_;
  }

  // Returns how many bytes of the part fit into the window: all, or whole digest blocks.
  std::uint64_t fitting(const placed_piece& part) const {
    if (fits(part, part.length))
      return part.length;
    auto space = window_bytes_ - runs_.memory_bytes();
    auto length = round_down(std::min(space, part.length - 1), digest_block_bytes);
    while (length > 0 && !fits(part, length))
      length -= digest_block_bytes;
    return length;
  }

  // Parts of one range are joined. Parts of two ranges are not, since they have two destinations.
  void append(const placed_piece& part, std::uint64_t length) {
    if (joins_)
      list_.back().length += length;
    else
      list_.push_back({part.tensor, part.tensor_offset, length});
    joins_ = true;
  }

  std::uint64_t window_bytes_;
  run_collector runs_;
  std::vector<wanted> list_;
  bool joins_ = false; // the last of `list_` is of the range that is being cut
  std::vector<std::vector<wanted>> out_;
};

} // namespace

namespace {

packing pack_all(
  const std::vector<std::uint64_t>& tensor_bytes, std::uint64_t window_bytes, bool contiguous) {
  packer packs{window_bytes, contiguous};
  for (std::uint32_t i = 0; i < tensor_bytes.size(); ++i)
    packs.add(i, tensor_bytes[i]);
  return packs.finish();
}

} // namespace

packing pack(const std::vector<std::uint64_t>& tensor_bytes, std::uint64_t window_bytes) {
  return pack_all(tensor_bytes, window_bytes, false);
}

packing pack_contiguous(
  const std::vector<std::uint64_t>& tensor_bytes, std::uint64_t window_bytes) {
  return pack_all(tensor_bytes, window_bytes, true);
}

status check_staging(const memory_block& lent, std::uint64_t size_bytes) {
  if (lent.size_bytes < size_bytes)
    return {
      errc::invalid_argument, "a window needs {} bytes of staging memory, the caller lends {}",
      size_bytes, lent.size_bytes};
  if (reinterpret_cast<std::uintptr_t>(lent.data) % direct_io_bytes != 0)
    return {
      errc::invalid_argument, "staging memory for a window must begin on a border of {} bytes",
      direct_io_bytes};
  return {};
}

window lend(const packing& packed, std::uint32_t index, const memory_block& memory) {
  auto& w = packed.windows[index];
  window lent{index, {}, memory.owner};
  lent.pieces.reserve(w.count);
  for (auto i = w.first; i < w.first + w.count; ++i) {
    auto& p = packed.pieces[i];
    lent.pieces.push_back({p.tensor, p.tensor_offset, memory.data + (p.at - w.at), p.length});
  }
  return lent;
}

void clear_gaps(const packing& packed, std::uint32_t index, std::byte* data) {
  auto& w = packed.windows[index];
  std::uint64_t filled = 0;
  for (auto i = w.first; i < w.first + w.count; ++i) {
    auto begin = packed.pieces[i].at - w.at;
    std::memset(data + filled, 0, begin - filled);
    filled = begin + packed.pieces[i].length;
  }
  std::memset(data + filled, 0, w.size_bytes - filled);
}

std::uint64_t stream_end(const packing& packed) noexcept {
  return packed.pieces.empty() ? 0 : packed.pieces.back().at + packed.pieces.back().length;
}

std::vector<placed_piece> parts_of(const packing& packed, const wanted& range) {
  std::vector<placed_piece> parts;
  for_each_part(packed, range, [&](const placed_piece& part) { parts.push_back(part); });
  return parts;
}

std::vector<std::vector<wanted>> cut_ranges(
  const packing& packed, const std::vector<wanted>& ranges, std::uint64_t window_bytes) {
  range_cutter cutter{window_bytes};
  for (auto& range : ranges)
    cutter.add(packed, range);
  return cutter.finish();
}

read_plan plan_read(const packing& packed, const std::vector<wanted>& ranges) {
  run_collector runs;
  for (auto& range : ranges)
    for_each_part(packed, range, [&](const placed_piece& part) { runs.add(part); });
  return runs.finish();
}

} // namespace millrace::storage::io
