// Chooses the classes so that objects fill their runs. Called by the heap.
#include <millrace/core/never_destroyed.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/storage/pmem/medium/data_classes.hpp>
#include <millrace/storage/pmem/medium/heap_layout.hpp>

namespace millrace::storage::pmem {

namespace {

constexpr std::uint64_t unit_step_bytes = 64; // sizes of units are multiples of it

// The part of a run that objects of the least size fill. Small ones also lose up to two pages to
// the borders of direct I/O.
constexpr std::uint64_t filled_min_permille(std::uint64_t size_bytes) {
  return size_bytes < 90 * 1024 ? 985 : 950;
}

// Returns the largest objects of which as many fit into so many chunks as of the given size.
data_class fitting(std::uint64_t chunks, std::uint64_t size_bytes) {
  data_class fits{0, chunks, shape_of_run(chunks, size_bytes).units};
  if (fits.units == 0)
    return fits;
  auto space = chunks * chunk_bytes - shape_of_run(chunks, size_bytes).data_at;
  fits.unit_bytes = round_down(space / fits.units, unit_step_bytes);
  return fits;
}

// Few chunks are best, since a run is free only when all of it is.
data_class best_for(std::uint64_t size_bytes) {
  data_class best;
  auto filled = [&](auto& c) { return c.units * size_bytes * 1000 / (c.chunks * chunk_bytes); };
  for (std::uint64_t chunks = 1; chunks <= run_chunks_max; ++chunks) {
    auto fits = fitting(chunks, size_bytes);
    if (fits.units > 0 && (best.units == 0 || filled(fits) > filled(best)))
      best = fits;
    if (best.units > 0 && filled(best) >= filled_min_permille(size_bytes))
      break;
  }
  return best;
}

std::vector<data_class> choose_classes() {
  std::vector<data_class> chosen;
  for (auto size = data_class_min_bytes; size <= data_class_max_bytes;) {
    chosen.push_back(best_for(size));
    size = chosen.back().unit_bytes + unit_step_bytes;
  }
  return chosen;
}

std::vector<data_class> choose_table_classes() {
  // Smaller than those of data would be, since no two classes may be equal.
  constexpr std::uint64_t smaller_bytes = 1024;
  std::vector<data_class> chosen;
  for (std::uint64_t chunks = 1; chunks <= run_chunks_max; chunks *= 2) {
    auto half = fitting(chunks, chunks * chunk_bytes / 2 - smaller_bytes);
    chosen.push_back({half.unit_bytes - smaller_bytes, chunks, half.units});
  }
  return chosen;
}

} // namespace

const std::vector<data_class>& data_classes() {
  return never_destroyed([] { return choose_classes(); });
}

const std::vector<data_class>& table_classes() {
  return never_destroyed([] { return choose_table_classes(); });
}

// An object takes up to eight units.
const data_class& spare_class() {
  static const auto one = fitting(1, 2048);
  return one;
}

} // namespace millrace::storage::pmem
