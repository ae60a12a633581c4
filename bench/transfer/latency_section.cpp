// Measures one transfer after the other, with all competitors in turns: the median and the slowest
// hundredth of a round.
#include <millrace/bench/transfer/stage.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <list>

namespace millrace::bench {

using transport::direction;

namespace {

constexpr std::uint32_t request_bytes = 64; // of a bare exchange: names the wanted bytes
constexpr std::uint32_t confirmation_bytes = 16;
constexpr std::uint32_t poll_us = net::io_loop_options{}.poll_us;
constexpr double raw_factor_max = 1.5;
constexpr std::uint64_t ucx_exchanges_max = 200;
// Below this size a transfer costs what its messages cost.
constexpr std::uint64_t floor_bytes_min = 256u << 10;

// Runs one round of exchanges and keeps the slowest hundredth in `p99`.
double median_of(std::uint64_t exchanges, samples& p99, const std::function<double()>& exchange) {
  samples all;
  for (std::uint64_t i = 0; i < exchanges; ++i)
    all.add(exchange());
  p99.add(all.quantile(0.99));
  return all.median();
}

// Another program that does the same work.
struct competitor {
  std::string name;
  const samples* p50 = nullptr;
  samples p99; // empty if it does not report them
};

using competitors = std::list<competitor>;

void add_sockets(
  stage& s, contest& c, const shape& how, competitors& to, std::list<tcp_ping_pong>& connections) {
  auto size = static_cast<std::uint32_t>(how.size_bytes);
  auto reads = how.dir == direction::read;
  auto request = reads ? request_bytes : request_bytes + size;
  auto response = reads ? size : confirmation_bytes;
  for (auto us : {poll_us, 0u}) {
    auto& connection = connections.emplace_back(us);
    auto& one = to.emplace_back();
    one.name = us > 0 ? "sockets" : "sockets, asleep";
    one.p50 = &c.add([&s, &connection, &one, request, response, size] {
      return median_of(
        s.how.exchanges(size), one.p99, [&] { return connection.exchange(request, response); });
    });
  }
}

void add_ucx(stage& s, contest& c, const shape& how, competitors& to) {
  if (!s.ucx)
    return;
  auto test = how.dir == direction::read ? "ucp_get" : "ucp_put_lat";
  auto& one = to.emplace_back();
  one.name = std::string{"ucx "} + test;
  auto exchanges = std::min(s.how.exchanges(how.size_bytes), ucx_exchanges_max);
  one.p50 = &c.add([&s, test, how, exchanges] {
    return s.ucx->run("posix", test, how.size_bytes, exchanges).p50_s;
  });
}

// The other side sees a write by polling the memory, before any completion.
void add_perftest(stage& s, contest& c, const shape& how, competitors& to) {
  if (!s.perftest)
    return;
  auto& one = to.emplace_back();
  one.name = how.dir == direction::read ? "ib_read_lat" : "ib_write_lat";
  one.p50 = &c.add([&s, &one, how] {
    auto figures = s.perftest->latency(how.dir, how.size_bytes, s.how.exchanges(how.size_bytes));
    one.p99.add(figures.p99_s);
    return figures.p50_s;
  });
}

void measure(stage& s, rig& r, const driver_kind& kind, const shape& how) {
  auto works = works_of(r, how);
  contest c;
  samples p99;
  auto exchanges = s.how.exchanges(how.size_bytes);
  auto& ours =
    c.add([&] { return median_of(exchanges, p99, [&] { return r.move(works.front()); }); });
  competitors others;
  std::list<tcp_ping_pong> connections;
  if (kind.streams)
    add_sockets(s, c, how, others, connections);
  if (kind.copies && !kind.one_process)
    add_ucx(s, c, how, others);
  if (kind.rdma)
    add_perftest(s, c, how, others);
  std::optional<copy_floor> floor;
  if (kind.copies && how.size_bytes >= floor_bytes_min)
    floor.emplace(
      c, s.source.first(how.size_bytes), s.target.first(how.size_bytes),
      static_cast<std::uint32_t>(exchanges));
  c.run(s.how.rounds);
  row out;
  out.name = "latency/" + how.name() + "/" + kind.column;
  out.ours = ours;
  out.others.emplace_back("p99", p99.median());
  if (floor)
    out.floor_s = floor->median() / static_cast<double>(exchanges);
  // The goal compares with the fastest. Polling does not help where cores are short.
  others.sort([](auto& a, auto& b) { return a.p50->median() < b.p50->median(); });
  for (auto& one : others) {
    if (out.peer.empty()) {
      out.peer = one.name;
      out.peer_s = one.p50->median();
    } else {
      out.others.emplace_back(one.name, one.p50->median());
    }
    if (!one.p99.empty())
      out.others.emplace_back(one.name + " p99", one.p99.median());
  }
  if (
    kind.streams && kind.peer_min && how.dir == direction::read && how.size_bytes == 4096 &&
    !s.how.quick)
    out.ratio_min = 1 / raw_factor_max;
  s.out.add(std::move(out));
}

} // namespace

void latency_section(stage& s) {
  for (auto* kind : s.drivers)
    if (auto r = s.rig_of(*kind))
      for (auto size : s.how.latency_sizes())
        for (auto dir : directions)
          measure(s, *r, *kind, {.dir = dir, .size_bytes = size, .same_memory = true});
}

} // namespace millrace::bench
