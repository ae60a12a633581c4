// Walks logs, zones, chunks, runs and objects as libpmemobj 1.12 walks them, with bounds. Called
// before a pool opens, and by salvage.
#include <millrace/core/assert.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/storage/pmem/medium/format.hpp>
#include <millrace/storage/pmem/medium/heap_check.hpp>
#include <millrace/storage/pmem/medium/heap_layout.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

namespace millrace::storage::pmem {

namespace {

constexpr std::uint64_t line_bytes = 64;
constexpr std::uint64_t chunks_max = 65528; // the chunks of one zone
constexpr std::uint64_t heap_header_bytes = 1024;
constexpr std::uint64_t zone_headers_bytes = 64 + chunks_max * 8;
constexpr std::uint64_t zone_bytes_max = zone_headers_bytes + chunks_max * chunk_bytes;
constexpr std::uint32_t zone_magic = 0xC3F0A2D2;
constexpr std::uint64_t log_extensions_max = 1u << 16;
constexpr std::uint64_t word_bits = 64; // the bits in a word of a bitmap

struct log_header {
  std::uint64_t checksum = 0; // over the header and the entries, as `log_sum`
  std::uint64_t next = 0;     // offset of the object that extends the log
  std::uint64_t capacity_bytes = 0;
  std::uint64_t generation = 0;
  std::uint64_t flags = 0;
  std::uint64_t unused[3] = {};
};
static_assert(sizeof(log_header) == line_bytes);

struct log_entry {
  std::uint64_t target = 0; // the offset of a word; the operation in its upper 3 bits
  std::uint64_t value = 0;
};

constexpr std::uint64_t operation_shift = 61;
enum class log_operation : std::uint64_t { set = 0, bit_and = 1, bit_or = 2 };

log_operation operation_of(const log_entry& entry) {
  return static_cast<log_operation>(entry.target >> operation_shift);
}
std::uint64_t target_of(const log_entry& entry) {
  return entry.target & ((std::uint64_t{1} << operation_shift) - 1);
}

// The three logs of a lane. The last one is that of transactions, which a pool of ours never has.
constexpr std::uint64_t internal_capacity = 192, external_capacity = 640, undo_capacity = 2048;
constexpr std::uint64_t lane_bytes =
  3 * line_bytes + internal_capacity + external_capacity + undo_capacity;
static_assert(lanes_at + lane_count * lane_bytes == heap_at);

struct zone_header {
  std::uint32_t magic = 0;
  std::uint32_t chunks = 0;
};

enum class chunk_type : std::uint16_t { footer = 1, free = 2, used = 3, run = 4, run_data = 5 };
constexpr std::uint16_t small_header = 1; // flag: objects have an `object_header`
constexpr std::uint16_t run_flags = 9;    // and the bitmap is as long as it has to be

struct chunk_header {
  chunk_type type{};
  std::uint16_t flags = 0;
  std::uint32_t chunks = 0; // in a run's further chunks: how far its first one is away
};

status damaged(std::string what) { return {errc::corrupt_data, std::move(what)}; }

class heap_reader {
public:
  explicit heap_reader(std::span<const std::byte> file) : file_(file) {}

  /// Reads every log; `bad` hears of those that are damaged.
  template <class F>
  void read_logs(F bad) {
    for (std::uint64_t lane = 0; lane < lane_count; ++lane) {
      auto at = lanes_at + lane * lane_bytes;
      auto external = at + line_bytes + internal_capacity;
      for (auto& outcome :
           {read_redo(at, internal_capacity), read_redo(external, external_capacity),
            check_undo(external + line_bytes + external_capacity)})
        if (!outcome.ok() && !bad(outcome.within(fmt::format("lane {}", lane))))
          return;
    }
  }

  status check_zones(std::uint64_t heap_bytes) {
    auto zones = zones_in(heap_bytes);
    if (zones != zones_in(file_.size() - heap_at))
      return damaged("the file is larger than the pool was made");
    for (std::uint64_t zone = 0; zone < zones; ++zone) {
      auto at = heap_at + heap_header_bytes + zone * zone_bytes_max;
      auto left = heap_bytes - heap_header_bytes - zone * zone_bytes_max - zone_headers_bytes;
      if (auto bad = check_zone(at, std::min(left / chunk_bytes, chunks_max)); !bad.ok())
        return bad.within(fmt::format("zone {} of its heap", zone));
    }
    return {};
  }

  // The objects of the library itself: the root, and what extends the logs.
  status check_internal(std::uint64_t root_at) const {
    auto root = internal_.find(root_at);
    if (root == internal_.end() || root->second < sizeof(pool_root))
      return damaged("its root object has no space of its own");
    for (auto& [next, end] : extensions_)
      if (auto object = internal_.find(next);
          object == internal_.end() || end - next > object->second)
        return damaged(fmt::format("the log at {} has no space of its own", next));
    return {};
  }

  heap_words take_pending() { return std::move(pending_); }
  heap_words take_footers() { return std::move(footers_); }

private:
  bool holds(std::uint64_t at, std::uint64_t length) const {
    return at <= file_.size() && length <= file_.size() - at;
  }

  template <class T>
  T read(std::uint64_t at) const {
    static_assert(std::is_trivially_copyable_v<T>);
    MILLRACE_ASSERT(holds(at, sizeof(T)));
    T value;
    std::memcpy(static_cast<void*>(&value), file_.data() + at, sizeof value);
    return value;
  }

  // A word as it is once the library has finished what was begun.
  std::uint64_t word(std::uint64_t at) const {
    auto pending = pending_.find(at);
    return pending == pending_.end() ? read<std::uint64_t>(at) : pending->second;
  }

  template <class T>
  T read_word(std::uint64_t at) const {
    static_assert(sizeof(T) == sizeof(std::uint64_t));
    auto value = word(at);
    T as;
    std::memcpy(static_cast<void*>(&as), &value, sizeof as);
    return as;
  }

  // Fletcher's sum of 32-bit words, the checksum itself as 0.
  std::uint64_t log_sum(std::uint64_t at, std::uint64_t length) const {
    std::uint32_t low = 0, high = 0;
    for (std::uint64_t i = 0; i < length; i += 4) {
      low += i < sizeof(std::uint64_t) ? 0 : read<std::uint32_t>(at + i);
      high += low;
    }
    return std::uint64_t{high} << 32 | low;
  }

  bool is_target(std::uint64_t at) const {
    return at % 8 == 0 && at >= lanes_at - 4096 && holds(at, 8);
  }

  // Returns whether all entries up to the capacity are in use, so that the next log counts.
  result<bool> read_entries(
    std::uint64_t at, std::uint64_t capacity, std::vector<log_entry>& into) const {
    for (std::uint64_t i = 0; i < capacity; i += sizeof(log_entry)) {
      auto entry = read<log_entry>(at + line_bytes + i);
      if (entry.target == 0)
        return false;
      if (operation_of(entry) > log_operation::bit_or || !is_target(target_of(entry)))
        return fail(damaged(fmt::format("the log at {} has an entry that is none", at)));
      into.push_back(entry);
    }
    return true;
  }

  // The library frees the extension of a log by a change that has a log of its own.
  std::uint64_t next_of(std::uint64_t log) const { return word(log + offsetof(log_header, next)); }

  status read_redo(std::uint64_t at, std::uint64_t capacity_max) {
    auto header = read<log_header>(at);
    if (header.capacity_bytes > capacity_max || header.capacity_bytes % line_bytes != 0)
      return damaged(fmt::format("the log at {} has the wrong capacity", at));
    std::vector<log_entry> entries;
    auto goes_on = read_entries(at, header.capacity_bytes, entries);
    auto own = entries.size();
    for (std::uint64_t next = next_of(at), count = 0; goes_on && next != 0; ++count) {
      auto place = round_up(next, line_bytes);
      if (
        count == log_extensions_max || next < heap_at || next > file_.size() ||
        !holds(place, sizeof(log_header)))
        return damaged(fmt::format("the log at {} goes on nowhere", at));
      auto more = read<log_header>(place);
      if (more.capacity_bytes % line_bytes != 0 || !holds(place + line_bytes, more.capacity_bytes))
        return damaged(fmt::format("the log at {} has the wrong capacity", place));
      extensions_.emplace_back(next, place + line_bytes + more.capacity_bytes);
      if (*goes_on)
        goes_on = read_entries(place, more.capacity_bytes, entries);
      next = next_of(place);
    }
    if (!goes_on)
      return goes_on.error();
    if (own > 0 && log_sum(at, line_bytes + own * sizeof(log_entry)) == header.checksum)
      for (auto& entry : entries)
        apply(entry);
    return {};
  }

  void apply(const log_entry& entry) {
    auto at = target_of(entry);
    auto before = word(at);
    switch (operation_of(entry)) {
    case log_operation::set:
      pending_[at] = entry.value;
      break;
    case log_operation::bit_and:
      pending_[at] = before & entry.value;
      break;
    case log_operation::bit_or:
      pending_[at] = before | entry.value;
      break;
    }
  }

  status check_undo(std::uint64_t at) const {
    auto header = read<log_header>(at);
    auto first = read<std::uint64_t>(at + line_bytes);
    auto unused = header.next == 0 && header.capacity_bytes == undo_capacity && first == 0;
    return unused ? status{} : damaged(fmt::format("the log at {} is not empty", at));
  }

  static std::uint64_t zones_in(std::uint64_t heap_bytes) {
    std::uint64_t count = 0, left = heap_bytes - std::min(heap_bytes, heap_header_bytes);
    for (; left >= zone_headers_bytes + chunk_bytes; ++count)
      left -= std::min(left, zone_bytes_max);
    return count;
  }

  static std::uint64_t header_at(std::uint64_t zone, std::uint64_t chunk) {
    return zone + line_bytes + chunk * sizeof(chunk_header);
  }
  static std::uint64_t data_at(std::uint64_t zone, std::uint64_t chunk) {
    return zone + zone_headers_bytes + chunk * chunk_bytes;
  }

  // The library joins free neighbours. It finds the one before by its last header, which it writes
  // last and does not recreate: after a kill this may be an old one, that leads to another piece.
  void check_footer(std::uint64_t zone, std::uint64_t begin, const chunk_header& chunk) {
    auto at = header_at(zone, begin + chunk.chunks - 1);
    if (chunk.chunks == 1 || read_word<chunk_header>(at).chunks == chunk.chunks)
      return;
    auto footer = chunk;
    footer.type = chunk_type::footer;
    std::memcpy(&footers_[at], &footer, sizeof footer);
  }

  status check_zone(std::uint64_t zone, std::uint64_t chunks) {
    auto header = read<zone_header>(zone);
    if (header.magic == 0)
      return {}; // not used yet
    if (header.magic != zone_magic || header.chunks != chunks)
      return damaged("its header");
    for (std::uint64_t at = 0; at < chunks;) {
      auto chunk = read_word<chunk_header>(header_at(zone, at));
      if (chunk.chunks == 0 || chunk.chunks > chunks - at)
        return damaged(fmt::format("chunk {} has the wrong size", at));
      auto end = at + chunk.chunks;
      if (chunk.type == chunk_type::free)
        check_footer(zone, at, chunk);
      if (auto bad = check_chunk(zone, at, chunk); !bad.ok())
        return bad.within(fmt::format("chunk {}", at));
      at = end;
    }
    return {};
  }

  status check_chunk(std::uint64_t zone, std::uint64_t at, const chunk_header& chunk) {
    switch (chunk.type) {
    case chunk_type::free:
      return (chunk.flags & ~small_header) == 0 ? status{} : damaged("its flags");
    case chunk_type::used: {
      if (chunk.flags != small_header)
        return damaged("its flags");
      auto object = read<object_header>(data_at(zone, at));
      if (object.size_bytes() != chunk.chunks * chunk_bytes || !object.flags_known())
        return damaged("the header of its object");
      note(data_at(zone, at), object);
      return {};
    }
    case chunk_type::run:
      return check_run(zone, at, chunk);
    default:
      return damaged("its type");
    }
  }

  status check_run(std::uint64_t zone, std::uint64_t at, const chunk_header& chunk) {
    if (chunk.flags != run_flags || chunk.chunks > run_chunks_max)
      return damaged("the flags or the size of a run");
    for (std::uint32_t i = 1; i < chunk.chunks; ++i) {
      auto further = read_word<chunk_header>(header_at(zone, at + i));
      if (further.type != chunk_type::run_data || further.chunks != i)
        return damaged(fmt::format("chunk {} of a run", i));
    }
    auto begin = data_at(zone, at);
    auto run = read<run_header>(begin);
    if (
      run.alignment != 0 || run.unit_bytes == 0 || run.unit_bytes % 16 != 0 ||
      run.unit_bytes > chunk.chunks * chunk_bytes)
      return damaged("the header of a run");
    auto shape = shape_of_run(chunk.chunks, run.unit_bytes);
    if (shape.units == 0)
      return damaged("the header of a run");
    auto bitmap = begin + sizeof run;
    auto over = shape.units % word_bits;
    auto beyond = over == 0 ? 0 : ~std::uint64_t{0} << over;
    if ((word(bitmap + (shape.bitmap_words - 1) * 8) & beyond) != beyond)
      return damaged("the bitmap of a run");
    return check_objects(begin, run.unit_bytes, shape);
  }

  // An object never goes over the border of a word of the bitmap.
  status check_objects(std::uint64_t run, std::uint64_t unit_bytes, const run_shape& shape) {
    for (std::uint64_t unit = 0; unit < shape.units;) {
      auto bits = word(run + sizeof(run_header) + unit / word_bits * 8) >> unit % word_bits;
      if ((bits & 1) == 0) {
        ++unit;
        continue;
      }
      auto at = run + shape.data_at + unit * unit_bytes;
      auto object = read<object_header>(at);
      auto units = object.size_bytes() / unit_bytes;
      auto most = std::min(word_bits - unit % word_bits, shape.units - unit);
      if (
        units == 0 || units > most || object.size_bytes() % unit_bytes != 0 ||
        !object.flags_known())
        return damaged(fmt::format("the header of the object at {}", at + sizeof object));
      auto mask = ~std::uint64_t{0} >> (word_bits - units);
      if ((bits & mask) != mask)
        return damaged(fmt::format("the bitmap of the object at {}", at + sizeof object));
      note(at, object);
      unit += units;
    }
    return {};
  }

  void note(std::uint64_t at, const object_header& object) {
    if (object.internal())
      internal_[at + sizeof object] = object.size_bytes() - sizeof object;
  }

  std::span<const std::byte> file_;
  heap_words pending_;
  heap_words footers_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> extensions_; // object, and end of the log
  std::map<std::uint64_t, std::uint64_t> internal_; // usable bytes of the library's own objects
};

} // namespace

heap_words read_pending(std::span<const std::byte> file) {
  heap_reader heap{file};
  heap.read_logs([](const status&) { return true; });
  return heap.take_pending();
}

result<heap_words> check_heap(
  std::span<const std::byte> file, std::uint64_t heap_bytes, std::uint64_t root_at) {
  heap_reader heap{file};
  status first;
  heap.read_logs([&](const status& bad) {
    first = bad;
    return false;
  });
  if (first.ok())
    first = heap.check_zones(heap_bytes);
  if (first.ok())
    first = heap.check_internal(root_at);
  return first.ok() ? result<heap_words>{heap.take_footers()} : fail(std::move(first));
}

} // namespace millrace::storage::pmem
