// Measures durable stores, and loads past the page cache, against files written and read the same
// way.
#include <millrace/bench/store/sections.hpp>

#include <algorithm>
#include <array>

namespace millrace::bench {

namespace {

// The threads of the second read floor, which shows how much a device gains from parallel requests.
constexpr unsigned many_readers = 4;

std::vector<model_table> disk_tables(const stage& s) {
  auto all = s.how.tables();
  // Ten layers and many layers at both sizes, and the real models.
  std::erase_if(all, [](auto& t) { return t.name.find("/100-layers") != std::string::npos; });
  return all;
}

void name_peers(
  stage& s, row& r, const std::string& what, const std::vector<const samples*>& times) {
  auto peers = s.python_peers();
  r.peer = "torch." + what;
  for (std::size_t i = 0; i < peers.size(); ++i)
    if (peers[i]->name() == "torch")
      r.peer_s = times[i]->median();
    else
      r.others.emplace_back("h5py", times[i]->median());
}

void disk_stores(stage& s, service& disk, const model_table& table) {
  contest c;
  std::array<const samples*, 2> ours;
  std::array<receipt, 2> receipts;
  for (bool sums : {false, true})
    ours[sums] =
      &c.add([&, sums] { return timed_store(disk.repository(), table, s, sums, &receipts[sums]); });
  direct_file again{s.on_disk.file("floor"), s.source.bytes()};
  direct_file anew{s.on_disk.file("floor-fresh"), s.source.bytes()};
  auto& over = c.add([&] { return again.timed_write(table.size_bytes, false); });
  auto& fresh = c.add([&] { return anew.timed_write(table.size_bytes, true); });
  std::vector<const samples*> peers;
  for (auto* peer : s.python_peers())
    peers.push_back(&c.add([&s, peer] { return peer->save(s.on_disk.file(peer->name()), true); }));
  c.run(s.how.rounds);
  auto judged = s.how.judges(table) && table.tensors.tensors.size() == 10;
  for (bool sums : {false, true}) {
    row r;
    r.name = "store/" + table.name + "/rocksdb/" + sums_name(sums);
    r.size_bytes = table.size_bytes;
    r.ours = *ours[sums];
    r.floor_s = std::min(over.median(), fresh.median());
    name_peers(s, r, "save+fsync", peers);
    r.others.emplace_back("O_DIRECT over old bytes", over.median());
    r.others.emplace_back("O_DIRECT to a new file", fresh.median());
    if (judged && sums) {
      r.ratio_min = 2.5;
      r.floor_min = 0.75;
    }
    r.stages = stages_of(receipts[sums]);
    s.out.add(std::move(r));
  }
}

struct rocksdb_load_times {
  selection what;
  const samples* ours;
  const samples* floor;
};

void disk_loads(stage& s, service& disk, const model_table& table) {
  timed_store(disk.repository(), table, s, true);
  check_stored(disk.repository(), table, s);
  constexpr std::array percents{100u, 75u, 50u, 25u};
  direct_file file{s.on_disk.file("floor"), s.target.bytes()};
  file.timed_write(table.size_bytes, true);
  contest c;
  std::array<rocksdb_load_times, percents.size()> times;
  for (std::size_t i = 0; i < percents.size(); ++i) {
    auto& t = times[i];
    t.what = select(table, percents[i], s.target.bytes());
    t.ours = &c.add([&] { return timed_load(disk.repository(), t.what); });
    t.floor = &c.add([&] { return file.timed_read(t.what.size_bytes); });
  }
  auto& side_by_side = c.add([&] { return file.timed_read(table.size_bytes, many_readers); });
  std::vector<const samples*> peers;
  for (auto* peer : s.python_peers())
    peers.push_back(&c.add([&s, peer] { return peer->load(s.on_disk.file(peer->name()), true); }));
  c.run(s.how.rounds);
  auto judged = s.how.judges(table) && table.tensors.tensors.size() == 10;
  for (std::size_t i = 0; i < percents.size(); ++i) {
    row r;
    r.name = "load/" + table.name + "/" + std::to_string(percents[i]) + "%/rocksdb/sums";
    r.size_bytes = times[i].what.size_bytes;
    r.ours = *times[i].ours;
    r.floor_s = times[i].floor->median();
    if (i == 0) {
      name_peers(s, r, "load cold", peers);
      r.others.emplace_back("O_DIRECT, 4 threads", side_by_side.median());
      if (judged)
        r.floor_min = 0.75;
    } else {
      r.peer = "own full load";
      r.peer_s = times[0].ours->median();
    }
    s.out.add(std::move(r));
  }
}

} // namespace

void rocksdb_section(stage& s) {
  if (!takes_direct_io(s.on_disk.path()))
    return skip_aloud("rocksdb", s.on_disk.path() + " does not take O_DIRECT; see --disk");
  service disk{
    s.on_disk.path(),
    {.kind = service_kind::rocksdb,
     .capacity_bytes = 4 * s.source.bytes().size(),
     .path = s.on_disk.file("kept")}};
  for (auto& table : disk_tables(s)) {
    for (auto* peer : s.python_peers())
      peer->build(table);
    disk_stores(s, disk, table);
    disk_loads(s, disk, table);
  }
}

} // namespace millrace::bench
