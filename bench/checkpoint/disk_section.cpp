// Measures a pool on an ordinary disk: durable saves, and restores of bytes that are in no cache.
#include <millrace/bench/checkpoint/stage.hpp>

#include <algorithm>
#include <thread>

namespace millrace::bench {

namespace {

void saves(stage& s, const service& at, const model_table& table) {
  auto client = at.connect();
  auto source = s.source.first(table.size_bytes);
  auto checkpoints = attach(client, table, source);
  std::uint64_t step = 0;
  save_receipt last;
  contest c;
  auto& ours =
    c.add([&] { return seconds_of([&] { last = checkpoints.save(++step).durable.get(); }); });
  direct_file direct{s.on_disk.file("floor-direct"), s.source.bytes()};
  mapped_file mapped{s.on_disk.file("floor-mapped"), table.size_bytes};
  auto& by_direct = c.add([&] { return direct.timed_write(table.size_bytes, false); });
  auto threads = std::max(std::thread::hardware_concurrency(), 1u);
  auto& by_msync = c.add([&] { return mapped.timed_write(source, threads); });
  auto peers = s.start_peers(table);
  std::vector<const samples*> theirs;
  theirs.reserve(peers.size());
  for (auto& peer : peers)
    theirs.push_back(&c.add([&] { return peer.save(peer_path(s.on_disk, peer.name()), true); }));
  c.run(s.how.rounds);
  row r;
  r.name = "save/" + table.name + "/disk";
  r.size_bytes = table.size_bytes;
  r.ours = ours;
  r.floor_s = std::min(by_direct.median(), by_msync.median());
  name_peers(r, "save+fsync", s.peers, theirs);
  r.others.emplace_back("O_DIRECT", by_direct.median());
  r.others.emplace_back("mapped, msync", by_msync.median());
  r.stages = stages_of(last);
  if (!s.how.quick)
    r.floor_min = 0.90;
  s.out.add(std::move(r));
  if (auto bad = checkpoints.close(); !bad.ok())
    give_up(bad, "closing");
}

} // namespace

void disk_section(stage& s) {
  if (!takes_direct_io(s.on_disk.path()))
    return skip_aloud("disk", s.on_disk.path() + " takes no O_DIRECT; choose another --disk");
  service at{
    s.on_disk.path(),
    {.kind = service_kind::pmem,
     .capacity_bytes = s.how.pool_bytes(),
     .path = s.on_disk.file("pool")}};
  auto names = s.how.tables();
  // A few models are enough to characterise a disk.
  std::erase_if(names, [&](auto& n) {
    return !s.how.quick && n != "ResNet50" && n != "VGG19-BN" && n != "BERT-large";
  });
  for (auto& name : names) {
    auto table = table_named(name);
    saves(s, at, table);
    direct_file floor{s.on_disk.file("floor-read"), s.target.bytes()};
    floor.timed_write(table.size_bytes, true);
    row r;
    r.name = "restore/" + table.name + "/disk";
    r.floor_s = std::min(floor.timed_read(table.size_bytes), floor.timed_read(table.size_bytes));
    restores(s, at, table, s.on_disk, true, std::move(r));
    at.connect().checkpoints().erase(table.name).get();
  }
}

} // namespace millrace::bench
