// Measures broadcasts one after the other, from the first member's begin to the last one's end,
// beside those of MPI libraries.
#include <millrace/bench/broadcast/groups_section.hpp>
#include <millrace/bench/broadcast/member.hpp>
#include <millrace/bench/common/floors.hpp>
#include <millrace/bench/common/model_table.hpp>
#include <millrace/bench/common/peers.hpp>
#include <millrace/bench/common/service.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace millrace::bench {

namespace {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;
constexpr int mpi_timeout_ms = 300'000;
// Of the goals: from 1 MiB on so many times the fastest peer or such a part of the floor, whichever
// is less; below, no slower than the peer; from 16 MiB on that part of the floor.
constexpr double peer_goal = 1.5, floor_goal = 0.8;

// One measurement has about so many bytes, and at least two broadcasts.
std::uint64_t count_for(std::uint64_t size_bytes, bool quick) {
  return std::clamp<std::uint64_t>((quick ? 8 : 64) * mib / size_bytes, 2, quick ? 100 : 2000);
}

/// Our members, in a process each.
class our_group {
public:
  our_group(const service& at, std::uint32_t size) {
    auto name = fmt::format("group-of-{}", size);
    for (std::uint32_t rank = 0; rank < size; ++rank)
      members_.emplace_back(at.address(), name, rank, size);
    for (auto& one : members_)
      one.joined();
  }

  /// Returns the seconds of one broadcast.
  double run(std::uint64_t size_bytes, std::uint64_t count) {
    for (auto& one : members_)
      one.begin(size_bytes, count);
    auto first = members_.front().end();
    auto begun = first.begun, ended = first.ended;
    for (std::size_t i = 1; i < members_.size(); ++i) {
      auto other = members_[i].end();
      begun = std::min(begun, other.begun);
      ended = std::max(ended, other.ended);
    }
    return static_cast<double>(ended - begun) * 1e-9 / static_cast<double>(count);
  }

private:
  std::vector<member_process> members_;
};

/// An MPI library. Its processes compute while they wait, so each measurement has its own.
struct mpi_library {
  std::string kind; // "openmpi", "mpich"

  /// Returns the seconds of one broadcast.
  /// Errors:  what the processes said, or why they do not start.
  result<double> run(std::uint32_t members, std::uint64_t size_bytes, std::uint64_t count) const {
    std::vector<std::string> command{"mpirun." + kind};
    if (kind == "openmpi")
      for (auto* flag : {"--allow-run-as-root", "--oversubscribe", "--bind-to", "none"})
        command.emplace_back(flag);
    for (auto& word :
         {std::string{"-n"}, std::to_string(members),
          fmt::format("{}/mpi_peer.{}", MILLRACE_MPI_PEERS, kind), std::to_string(size_bytes),
          std::to_string(count)})
      command.push_back(word);
    auto process = child::start(command, true);
    if (!process)
      return fail(process.error());
    auto said = process->read_line(mpi_timeout_ms);
    if (!said)
      return fail(said.error());
    char* end = nullptr;
    auto seconds = std::strtod(said->c_str(), &end);
    if (end == said->c_str())
      return fail(errc::internal, "{} says: {}", kind, *said);
    return seconds / static_cast<double>(count);
  }
};

// MPICH takes seconds for a broadcast where its processes share cores.
std::vector<mpi_library> libraries_for(std::uint32_t members, bool no_peers) {
  std::vector<mpi_library> out;
  for (auto* kind : {"openmpi", "mpich"}) {
    mpi_library one{kind};
    if (no_peers)
      continue;
    if (one.kind == "mpich" && members > std::thread::hardware_concurrency())
      skip_aloud(one.kind, fmt::format("{} processes share the cores", members));
    else if (auto first = one.run(members, 4 * kib, 2); !first)
      skip_aloud(one.kind, std::string{first.error().detail()});
    else
      out.push_back(one);
  }
  return out;
}

void set_goals(row& r, std::uint64_t size_bytes) {
  if (size_bytes < mib) {
    r.ratio_min = 1;
    return;
  }
  auto by_peer = r.peer_s ? *r.peer_s / peer_goal : 0;
  auto by_floor = *r.floor_s / floor_goal;
  if (by_peer > by_floor && size_bytes < 16 * mib)
    r.ratio_min = peer_goal;
  else
    r.floor_min = floor_goal;
}

void measure(
  our_group& ours, const std::vector<mpi_library>& peers, std::uint32_t members,
  std::uint64_t size_bytes, const model_options& o, report& out) {
  auto count = count_for(size_bytes, o.quick);
  warm_buffer source{size_bytes}, target{size_bytes};
  contest c;
  auto& our_times = c.add([&] { return ours.run(size_bytes, count); });
  std::vector<const samples*> others;
  for (auto& one : peers)
    others.push_back(
      &c.add([&] { return need(one.run(members, size_bytes, count), "running " + one.kind); }));
  copy_floor floor{c, source.bytes(), target.bytes(), members - 1};
  c.run(o.rounds > 0 ? o.rounds : o.quick ? 2 : 7);
  row r;
  r.name = fmt::format("groups/{}/{}-members", size_name(size_bytes), members);
  r.size_bytes = size_bytes * (members - 1);
  r.transfers = count;
  r.ours = our_times;
  r.floor_s = floor.median();
  for (std::size_t i = 0; i < peers.size(); ++i) {
    auto seconds = others[i]->median();
    r.others.emplace_back(peers[i].kind, seconds);
    if (!r.peer_s || seconds < *r.peer_s) {
      r.peer = peers[i].kind;
      r.peer_s = seconds;
    }
  }
  if (!o.quick)
    set_goals(r, size_bytes);
  out.add(r);
}

} // namespace

void groups_section(const model_options& o, const scratch_directory& files, report& out) {
  service at{files.path(), {service_kind::memory, 16 * mib, {}, 0}};
  for (std::uint32_t members : o.quick ? std::vector{2u} : std::vector{2u, 4u, 8u}) {
    our_group ours{at, members};
    auto peers = libraries_for(members, o.no_peers);
    for (auto size_bytes : o.quick ? std::vector{4 * kib, mib}
                                   : std::vector{4 * kib, 64 * kib, mib, 16 * mib, 256 * mib})
      if (size_name(size_bytes).find(o.model) != std::string::npos)
        measure(ours, peers, members, size_bytes, o, out);
  }
}

} // namespace millrace::bench
