// Measures a pool in memory, written back line by line as if it were persistent: saves, restores,
// and their stages.
#include <millrace/bench/checkpoint/stage.hpp>

#include <algorithm>
#include <cstring>

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
  auto& staged = c.add([&] {
    auto seconds = seconds_of([&] { checkpoints.save(++step).staged.get(); });
    if (auto bad = checkpoints.fence(); !bad.ok())
      give_up(bad, "a save");
    return seconds;
  });
  auto peers = s.start_peers(table);
  std::vector<const samples*> theirs;
  theirs.reserve(peers.size());
  for (auto& peer : peers)
    theirs.push_back(&c.add([&] { return peer.save(peer_path(s.in_memory, peer.name()), false); }));
  copy_floor floor{c, source, s.target.first(table.size_bytes)};
  c.run(s.how.rounds);
  // The last save is the version to restore. It is as durable as the pool.
  checkpoints.save(++step).durable.get();
  row r;
  r.name = "save/" + table.name + "/memory";
  r.size_bytes = table.size_bytes;
  r.ours = ours;
  r.floor_s = floor.median();
  r.others.emplace_back("until staged", staged.median());
  name_peers(r, "save", s.peers, theirs);
  r.stages = stages_of(last);
  for (auto& peer : peers)
    r.stages += stages_of(peer.name(), peer.save_stages(peer_path(s.in_memory, peer.name())));
  if (!s.how.quick) {
    r.ratio_min = 9.23;
    r.floor_min = 0.75;
  }
  s.out.add(std::move(r));
  if (auto bad = checkpoints.close(); !bad.ok())
    give_up(bad, "closing");
}

} // namespace

void memory_section(stage& s) {
  service at{
    s.in_memory.path(),
    {.kind = service_kind::pmem,
     .capacity_bytes = s.how.pool_bytes(),
     .path = s.in_memory.file("pool")}};
  for (auto& name : s.how.tables()) {
    auto table = table_named(name);
    saves(s, at, table);
    row r;
    r.name = "restore/" + table.name + "/memory";
    if (!s.how.quick)
      r.ratio_min = 7;
    restores(s, at, table, s.in_memory, false, std::move(r));
    at.connect().checkpoints().erase(table.name).get();
  }
}

} // namespace millrace::bench
