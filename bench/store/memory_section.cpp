// Measures a memory bucket in another process: stores, loads, and our own variants against each
// other.
#include <millrace/bench/store/sections.hpp>

#include <array>

namespace millrace::bench {

namespace {

struct store_times {
  std::array<const samples*, 2> ours;
  copy_floor floor;
  std::vector<const samples*> peers;
  std::array<receipt, 2> receipts;
};

void report_store(stage& s, const model_table& table, const store_times& t) {
  auto judged = s.how.judges(table);
  for (bool sums : {false, true}) {
    row r;
    r.name = "store/" + table.name + "/memory/" + sums_name(sums);
    r.size_bytes = table.size_bytes;
    r.ours = *t.ours[sums];
    r.floor_s = t.floor.median();
    r.peer = "torch.save";
    auto peers = s.python_peers();
    for (std::size_t i = 0; i < peers.size(); ++i)
      if (peers[i]->name() == "torch")
        r.peer_s = t.peers[i]->median();
      else
        r.others.emplace_back("h5py", t.peers[i]->median());
    if (judged) {
      r.ratio_min = sums ? std::optional<double>{} : 8;
      r.floor_min = sums ? 0.60 : 0.75;
    }
    r.stages = stages_of(t.receipts[sums]);
    s.out.add(std::move(r));
  }
}

void stores(stage& s, service& memory, const model_table& table) {
  contest c;
  store_times t;
  for (bool sums : {false, true})
    t.ours[sums] = &c.add(
      [&, sums] { return timed_store(memory.repository(), table, s, sums, &t.receipts[sums]); });
  t.floor = s.add_floor(c, table.size_bytes);
  for (auto* peer : s.python_peers())
    t.peers.push_back(
      &c.add([&s, peer] { return peer->save(s.in_memory.file(peer->name()), false); }));
  c.run(s.how.rounds);
  report_store(s, table, t);
}

struct load_times {
  selection what;
  const samples* ours;
  copy_floor floor;
};

void report_load(
  stage& s, const std::string& name, const load_times& t, const load_times& full,
  const std::vector<const samples*>& peers, bool judged) {
  row r;
  r.name = name;
  r.size_bytes = t.what.size_bytes;
  r.ours = *t.ours;
  r.floor_s = t.floor.median();
  // A peer loads the whole file, or its tensors one by one; we compare with the whole.
  if (t.ours == full.ours) {
    auto all = s.python_peers();
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i]->name() == "torch") {
        r.peer = "torch.load";
        r.peer_s = peers[i]->median();
      } else {
        r.others.emplace_back("h5py", peers[i]->median());
      }
  } else {
    r.peer = "own full load";
    r.peer_s = full.ours->median();
    if (judged)
      r.ratio_min = 1 / 0.30;
  }
  s.out.add(std::move(r));
}

// `stores` has stored the model just before.
void loads(stage& s, service& memory, const model_table& table, bool sums) {
  timed_store(memory.repository(), table, s, sums);
  check_stored(memory.repository(), table, s);
  constexpr std::array percents{100u, 75u, 50u, 25u};
  contest c;
  std::array<load_times, percents.size()> times;
  for (std::size_t i = 0; i < percents.size(); ++i) {
    auto& t = times[i];
    t.what = select(table, percents[i], s.target.bytes());
    t.ours = &c.add([&] { return timed_load(memory.repository(), t.what); });
    t.floor = s.add_floor(c, t.what.size_bytes);
  }
  std::vector<const samples*> peers;
  for (auto* peer : s.python_peers())
    peers.push_back(
      &c.add([&s, peer] { return peer->load(s.in_memory.file(peer->name()), false); }));
  c.run(s.how.rounds);
  for (std::size_t i = 0; i < percents.size(); ++i)
    report_load(
      s, "load/" + table.name + "/" + std::to_string(percents[i]) + "%/memory/" + sums_name(sums),
      times[i], times[0], peers, s.how.judges(table) && percents[i] == 25);
}

void against(
  stage& s, const std::string& name, std::uint64_t size_bytes, const samples& ours,
  const std::string& peer, const samples& theirs, const copy_floor& floor, double ratio_min) {
  row r;
  r.name = name;
  r.size_bytes = size_bytes;
  r.ours = ours;
  r.peer = peer;
  r.peer_s = theirs.median();
  r.floor_s = floor.median();
  r.ratio_min = ratio_min;
  s.out.add(std::move(r));
}

} // namespace

void memory_section(stage& s, service& memory) {
  for (auto& table : s.how.tables()) {
    for (auto* peer : s.python_peers())
      peer->build(table);
    stores(s, memory, table);
    loads(s, memory, table, false);
    loads(s, memory, table, true);
  }
}

void own_section(stage& s, service& memory) {
  auto few = layered(s.how.large_bytes, 10);
  auto many = layered(s.how.large_bytes, s.how.layers.back());
  {
    contest c;
    auto& ours = c.add([&] { return timed_store(memory.repository(), many, s, false); });
    auto& theirs = c.add([&] { return timed_store(memory.repository(), few, s, false); });
    auto floor = s.add_floor(c, few.size_bytes);
    c.run(2 * s.how.rounds + 1);
    against(
      s, "store/" + many.name + "/memory/plain/against-few", many.size_bytes, ours, "own 10-layers",
      theirs, floor, 1 / 1.1);
  }
  service on_demand{
    s.on_disk.path(),
    {.kind = service_kind::on_demand, .capacity_bytes = 3 * s.how.large_bytes, .path = {}}};
  contest c;
  auto& ours = c.add([&] { return timed_store(memory.repository(), few, s, false); });
  auto& theirs = c.add([&] { return timed_store(on_demand.repository(), few, s, false); });
  auto floor = s.add_floor(c, few.size_bytes);
  c.run(s.how.rounds);
  check_stored(on_demand.repository(), few, s);
  against(
    s, "store/" + few.name + "/memory/plain/pinned", few.size_bytes, ours, "own on-demand", theirs,
    floor, 2);
}

} // namespace millrace::bench
