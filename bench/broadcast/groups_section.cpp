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
#include <optional>
#include <string>
#include <utility>
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

/// The processes of an MPI library.
class mpi_group {
public:
  /// Returns nothing, and says so, if this machine lacks the library. `kind`: "openmpi", "mpich".
  static std::optional<mpi_group> start(const std::string& kind, std::uint32_t size) {
    auto program = fmt::format("{}/mpi_peer.{}", MILLRACE_MPI_PEERS, kind);
    std::vector<std::string> command{"mpirun." + kind};
    if (kind == "openmpi")
      for (auto* flag : {"--allow-run-as-root", "--oversubscribe", "--bind-to", "none"})
        command.emplace_back(flag);
    for (auto& word : {std::string{"-n"}, std::to_string(size), program})
      command.push_back(word);
    auto process = child::start(command, true);
    auto hello = process ? process->read_line(mpi_timeout_ms) : fail(process.error());
    if (!hello || *hello != "ready") {
      skip_aloud(kind, hello ? *hello : std::string{hello.error().detail()});
      return {};
    }
    return mpi_group{kind, std::move(*process)};
  }

  const std::string& kind() const noexcept { return kind_; }

  double run(std::uint64_t size_bytes, std::uint64_t count) {
    if (auto bad = process_.write_line(fmt::format("{} {}", size_bytes, count)); !bad.ok())
      give_up(bad, "asking " + kind_);
    auto said = need(process_.read_line(mpi_timeout_ms), "waiting for " + kind_);
    char* end = nullptr;
    auto seconds = std::strtod(said.c_str(), &end);
    if (end == said.c_str())
      give_up(kind_ + " has failed: " + said);
    return seconds / static_cast<double>(count);
  }

private:
  mpi_group(std::string kind, child process)
    : kind_(std::move(kind)), process_(std::move(process)) {}

  std::string kind_;
  child process_;
};

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
  our_group& ours, std::vector<mpi_group>& peers, std::uint32_t members, std::uint64_t size_bytes,
  const model_options& o, report& out) {
  auto count = count_for(size_bytes, o.quick);
  warm_buffer source{size_bytes}, target{size_bytes};
  contest c;
  auto& our_times = c.add([&] { return ours.run(size_bytes, count); });
  std::vector<const samples*> others;
  for (auto& one : peers)
    others.push_back(&c.add([&] { return one.run(size_bytes, count); }));
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
    r.others.emplace_back(peers[i].kind(), seconds);
    if (!r.peer_s || seconds < *r.peer_s) {
      r.peer = peers[i].kind();
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
    std::vector<mpi_group> peers;
    for (auto* kind : {"openmpi", "mpich"})
      if (auto started = o.no_peers ? std::nullopt : mpi_group::start(kind, members))
        peers.push_back(std::move(*started));
    for (auto size_bytes : o.quick ? std::vector{4 * kib, mib}
                                   : std::vector{4 * kib, 64 * kib, mib, 16 * mib, 256 * mib})
      if (size_name(size_bytes).find(o.model) != std::string::npos)
        measure(ours, peers, members, size_bytes, o, out);
  }
}

} // namespace millrace::bench
