// Measures many transfers in flight: by size, by number of segments, by number of peers.
#include <millrace/bench/transfer/stage.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

#include <algorithm>
#include <list>

namespace millrace::bench {

using transport::direction;

namespace {

constexpr std::uint64_t goal_bytes_min = 1u << 20;
// Below this size a transfer costs what its messages cost, and copies are no useful floor.
constexpr std::uint64_t floor_bytes_min = 4u << 10;

struct competitor {
  std::string name;
  const samples* times;
  bool counts; // whether the goal compares with it
};

class bandwidth_case {
public:
  bandwidth_case(stage& s, rig& r, const driver_kind& kind, const shape& how)
    : stage_(s), kind_(kind), how_(how), works_(works_of(r, how)), count_(s.how.transfers(how)),
      bytes_(count_ * how.size_bytes) {
    ours_ = &contest_.add([this, &r] { return r.stream(works_, count_, how_.depth()); });
  }

  void against_iperf() {
    if (!stage_.iperf || !kind_.streams || how_.size_bytes < goal_bytes_min)
      return;
    // With as many streams as one peer uses, whatever the number of peers.
    add("iperf3", true, [this] {
      return static_cast<double>(bytes_) /
        stage_.iperf->bytes_per_second(
          options_of(kind_).drivers.of<transport::tcp_options>().streams);
    });
  }

  // With as many messages in flight as ours.
  void against_perftest() {
    auto reads = how_.dir == direction::read;
    add(reads ? "ib_read_bw" : "ib_write_bw", true, [this] {
      return static_cast<double>(bytes_) /
        stage_.perftest->bytes_per_second(how_.dir, how_.size_bytes, count_, how_.depth());
    });
  }

  // The peer is UCX's messages, which work with any memory, like ours. Its one-sided transfers work
  // only in shared memory that UCX itself made; they are shown for comparison.
  void against_ucx() {
    auto one_sided = how_.dir == direction::read ? "ucp_get" : "ucp_put_bw";
    add_ucx("posix", "tag_bw", true);
    add_ucx("shm", "tag_bw", true);
    if (how_.size_bytes >= goal_bytes_min)
      add_ucx("posix", one_sided, false);
  }

  void against_copies() {
    if (!kind_.copies || how_.size_bytes < floor_bytes_min)
      return;
    auto window = std::min(bytes_, how_.size_bytes * (how_.same_memory ? 1 : how_.places()));
    floor_.emplace(
      contest_, stage_.source.first(window), stage_.target.first(window),
      static_cast<std::uint32_t>(bytes_ / window));
  }

  /// The goal compares with the fastest of the others.
  row run(const std::string& name, double at_least_s = 0) {
    auto long_one = stage_.how.takes_long(how_.size_bytes);
    contest_.run(long_one ? 1 : stage_.how.rounds, !long_one, at_least_s);
    row out;
    out.name = name + "/" + kind_.column;
    out.size_bytes = bytes_;
    out.transfers = count_;
    out.ours = *ours_;
    std::ranges::sort(others_, {}, [](auto& one) { return one.times->median(); });
    for (auto& one : others_)
      if (out.peer.empty() && one.counts) {
        out.peer = one.name;
        out.peer_s = one.times->median();
      } else {
        out.others.emplace_back(one.name, one.times->median());
      }
    if (floor_)
      out.floor_s = floor_->median();
    return out;
  }

private:
  void add(std::string name, bool counts, std::function<double()> run) {
    others_.push_back({std::move(name), &contest_.add(std::move(run)), counts});
  }

  void add_ucx(const std::string& transports, const std::string& test, bool counts) {
    add("ucx " + transports + " " + test, counts, [this, transports, test] {
      auto figures = stage_.ucx->run(transports, test, how_.size_bytes, count_);
      return static_cast<double>(bytes_) / figures.bytes_per_second;
    });
  }

  stage& stage_;
  const driver_kind& kind_;
  const shape how_;
  std::vector<work> works_;
  std::uint64_t count_;
  std::uint64_t bytes_; // per round
  contest contest_;
  const samples* ours_;
  std::vector<competitor> others_;
  std::optional<copy_floor> floor_;
};

void by_size(stage& s, rig& r, const driver_kind& kind, const shape& how) {
  bandwidth_case c{s, r, kind, how};
  c.against_iperf();
  c.against_copies();
  auto floor_min = !s.how.quick && how.size_bytes >= goal_bytes_min ? kind.floor_min : std::nullopt;
  auto out = c.run("bandwidth/" + how.name(), floor_min ? s.how.close_seconds() : 0);
  out.floor_min = floor_min;
  if (!s.how.quick && kind.streams)
    out.ratio_min = kind.peer_goal(how.size_bytes);
  s.out.add(std::move(out));
}

// Other benchmarks use the same memory again and again. To compare with them, this case does so,
// too.
void in_same_memory(stage& s, rig& r, const driver_kind& kind, shape how) {
  auto ucx = s.ucx && kind.copies && !kind.one_process;
  auto perftest = s.perftest && kind.rdma && !s.how.takes_long(how.size_bytes);
  if (!ucx && !perftest)
    return;
  how.same_memory = true;
  bandwidth_case c{s, r, kind, how};
  if (ucx)
    c.against_ucx();
  if (perftest)
    c.against_perftest();
  auto goal = s.how.quick ? std::nullopt : kind.peer_goal(how.size_bytes);
  auto out = c.run("same-memory/" + how.name(), goal && perftest ? s.how.close_seconds() : 0);
  out.ratio_min = goal;
  s.out.add(std::move(out));
}

} // namespace

void sizes_section(stage& s) {
  if (s.how.emulated && !s.how.quick && s.how.only_sizes.empty())
    skip_aloud(
      "256MiB and 1GiB on emulated devices",
      "a round of each would take minutes; 64MiB is measured once, without peers");
  for (auto* kind : s.drivers)
    if (auto r = s.rig_of(*kind))
      for (auto size : s.how.sizes())
        for (auto dir : directions) {
          by_size(s, *r, *kind, {.dir = dir, .size_bytes = size});
          in_same_memory(s, *r, *kind, {.dir = dir, .size_bytes = size});
        }
}

void segments_section(stage& s) {
  for (auto* kind : s.drivers)
    if (auto r = s.rig_of(*kind))
      for (auto size : s.how.segmented_sizes())
        for (auto segments : s.how.segments())
          for (auto dir : directions) {
            shape how{.dir = dir, .size_bytes = size, .segments = segments};
            bandwidth_case c{s, *r, *kind, how};
            s.out.add(c.run("segments/" + how.name() + "/" + std::to_string(segments)));
          }
}

void peers_section(stage& s) {
  for (auto* kind : s.drivers) {
    if (kind->one_process)
      continue;
    for (auto owners : s.how.peers())
      if (auto r = s.rig_of(*kind, owners))
        for (auto dir : directions) {
          shape how{.dir = dir, .size_bytes = 1u << 20, .owners = owners};
          bandwidth_case c{s, *r, *kind, how};
          c.against_iperf();
          c.against_copies();
          s.out.add(c.run("peers/" + how.name() + "/" + std::to_string(owners)));
        }
  }
}

} // namespace millrace::bench
