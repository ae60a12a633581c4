// Ten million samples: what their index takes, how long it takes to open them, and what an order of
// them costs.
#include <millrace/bench/loader/stage.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace millrace::bench {

namespace {

constexpr sample_kind tiny{"16B", 16, 0};
constexpr std::uint64_t index_bytes_max = 24; // of a sample and field
constexpr double open_max_s = 1;
constexpr std::uint64_t visited = 1'000'000;
constexpr int visits = 5;

// Returns the memory of its own that this process has in use. Regions of the set are not its own.
std::uint64_t own_bytes() {
  std::ifstream file{"/proc/self/status"};
  for (std::string word; file >> word;)
    if (std::uint64_t size_kib = 0; word == "RssAnon:" && file >> size_kib)
      return size_kib * kib;
  give_up("/proc/self/status does not say RssAnon");
}

row row_of(std::string name, const samples& times) {
  row r;
  r.name = std::move(name);
  r.ours = times;
  return r;
}

samples one_time(double seconds) {
  samples out;
  out.add(seconds);
  return out;
}

// Visits samples in a random order, and returns the memory that this took. Other threads of the
// client may take some meanwhile.
std::uint64_t visit(const set_reader& reader, std::uint64_t& sum) {
  auto before = own_bytes();
  auto order = reader.order(1, 0);
  for (std::uint64_t i = 0; i < std::min(visited, order.size()); ++i)
    sum += order.at(i);
  auto after = own_bytes();
  return after - std::min(before, after);
}

} // namespace

void samples_section(const stage& s) {
  auto count = s.options.quick ? 1'000'000u : 10'000'000u;
  auto name = fmt::format("{}M", count / 1'000'000);
  sample_files of{s.files, tiny, count * tiny.bytes};
  data_service at{s.files, 2 * of.size_bytes() + 4 * region_bytes};
  auto c = at.connect();
  auto set = c.working_set(of.name());
  auto preload_s = seconds_of([&] { need(set.preload({of.path()}).result(), "preloading"); });
  auto info = need(set.describe().result(), "describing");

  auto index = row_of("samples/" + name + "/index", one_time(preload_s));
  auto values = info.samples * info.fields.size();
  index.size_bytes = (info.size_bytes - info.fields.front().space_bytes + values - 1) / values;
  index.bytes_max = index_bytes_max;
  s.out.add(std::move(index));

  samples opening;
  for (std::size_t i = 0; i < s.rounds(9); ++i)
    opening.add(seconds_of([&] { need(set.open().result(), "opening"); }));
  auto open = row_of("samples/" + name + "/open", opening);
  open.seconds_max = open_max_s;
  s.out.add(std::move(open));

  auto reader = need(set.open().result(), "opening");
  std::uint64_t sum = 0, bytes = visit(reader, sum); // with code and pages of the first time
  samples visiting;
  for (int i = 0; i < visits; ++i)
    visiting.add(seconds_of([&] { bytes = std::min(bytes, visit(reader, sum)); }));
  auto order = row_of("samples/" + name + "/order", visiting);
  order.size_bytes = bytes;
  order.bytes_max = 0;
  s.out.add(std::move(order));
  if (sum == 0)
    give_up("an order visits one sample alone");
}

} // namespace millrace::bench
