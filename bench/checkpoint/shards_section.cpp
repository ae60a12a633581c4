// Measures one model over four ranks. Each rank is a process, and all save and restore at the same
// time.
#include <millrace/bench/checkpoint/stage.hpp>

#include <algorithm>
#include <deque>

namespace millrace::bench {

namespace {

constexpr std::uint32_t world_size = 4;

// All workers begin at the same time. Returns the time of the slowest one, without the check of its
// bytes.
template <class Workers, class Begin>
double together(Workers& workers, Begin begin) {
  for (auto& w : workers)
    begin(w);
  double slowest = 0;
  for (auto& w : workers)
    slowest = std::max(slowest, w.finish());
  return slowest;
}

struct peer_ranks {
  std::string name;
  std::deque<python_peer> ranks;

  std::string path(const stage& s, const python_peer& rank) const {
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (&ranks[i] == &rank)
        return peer_path(s.in_memory, name + "-" + std::to_string(i));
    return {};
  }
};

peer_ranks start_ranks(const std::string& name, const model_table& table) {
  peer_ranks out{name, {}};
  for (std::uint32_t i = 0; i < world_size; ++i) {
    auto peer = python_peer::start(name, false);
    if (!peer)
      give_up(name + " does not start any more");
    peer->build(table);
    out.ranks.push_back(std::move(*peer));
  }
  return out;
}

std::deque<trainer_process> start_trainers(
  const service& at, const std::string& table, bool empty) {
  std::deque<trainer_process> out;
  for (std::uint32_t i = 0; i < world_size; ++i)
    out.emplace_back(at.address(), table, i, world_size, empty);
  return out;
}

void saves(stage& s, const service& at, const model_table& table) {
  auto trainers = start_trainers(at, table.name, false);
  std::uint64_t step = 0;
  contest c;
  auto& ours = c.add([&] {
    ++step;
    return together(trainers, [&](auto& t) { t.begin_save(step); });
  });
  std::deque<peer_ranks> peers;
  for (auto& name : s.peers)
    peers.push_back(start_ranks(name, table));
  std::vector<const samples*> theirs;
  theirs.reserve(peers.size());
  for (auto& p : peers)
    theirs.push_back(&c.add([&] {
      return together(p.ranks, [&](auto& rank) { rank.begin_save(p.path(s, rank), false); });
    }));
  auto bytes = table.size_bytes * world_size;
  copy_floor floor{c, s.source.first(bytes), s.target.first(bytes)};
  c.run(s.how.rounds);
  row r;
  r.name = "save/" + table.name + "/4-ranks/memory";
  r.size_bytes = bytes;
  r.ours = ours;
  r.floor_s = floor.median();
  name_peers(r, "save", s.peers, theirs);
  if (!s.how.quick) {
    r.ratio_min = 9.23;
    r.floor_min = 0.75;
  }
  s.out.add(std::move(r));
}

void restores_of_all(stage& s, const service& at, const model_table& table) {
  contest c;
  auto& ours = c.add([&] {
    auto trainers = start_trainers(at, table.name, true);
    return together(trainers, [](auto& t) { t.begin_restore(); });
  });
  std::vector<const samples*> theirs;
  for (auto& name : s.peers)
    theirs.push_back(&c.add([&, name] {
      auto p = start_ranks(name, table);
      return together(p.ranks, [&](auto& rank) { rank.begin_restore(p.path(s, rank), false); });
    }));
  auto bytes = table.size_bytes * world_size;
  copy_floor floor{c, s.source.first(bytes), s.target.first(bytes)};
  c.run(s.how.fresh_rounds);
  row r;
  r.name = "restore/" + table.name + "/4-ranks/memory";
  r.size_bytes = bytes;
  r.ours = ours;
  r.floor_s = floor.median();
  name_peers(r, "load", s.peers, theirs);
  if (!s.how.quick)
    r.ratio_min = 7;
  s.out.add(std::move(r));
}

} // namespace

void shards_section(stage& s) {
  auto table = table_named(s.how.shard_table());
  service at{
    s.in_memory.path(),
    {.kind = service_kind::pmem,
     .capacity_bytes = s.how.pool_bytes(),
     .path = s.in_memory.file("pool-of-shards")}};
  saves(s, at, table);
  restores_of_all(s, at, table);
}

} // namespace millrace::bench
