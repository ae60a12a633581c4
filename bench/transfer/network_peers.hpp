// What others take to move the same bytes: UCX's own benchmark, iperf3, perftest, and bare TCP sockets.
#pragma once

#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/transfer/rig.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace::bench {

/// UCX over shared memory, by `ucx_perftest`. One server process a measurement: that is how it works.
class ucx_peer {
public:
  /// Nothing, and a line on standard output, when it cannot be had.
  static std::optional<ucx_peer> find();

  struct figures {
    double p50_s = 0;            // of one message
    double bytes_per_second = 0; // over all of them
  };
  /// `test` as ucx_perftest names it: tag_bw, ucp_get, ucp_put_bw, ...; `transports` as UCX_TLS does: "posix" copies
  /// through shared memory, "shm" may also copy straight out of the other process.
  figures run(
    const std::string& transports, const std::string& test, std::uint64_t size_bytes,
    std::uint64_t iterations) const;

private:
  std::string version_;
};

/// iperf3 over loopback. Its server lives as long as this does.
class iperf_peer {
public:
  static std::optional<iperf_peer> start(std::size_t rounds);

  /// What all streams together take in one second; the median of some. It sends no messages, so what was measured for a
  /// number of streams holds for every size.
  double bytes_per_second(std::uint32_t streams);

private:
  iperf_peer(child server, std::uint16_t port, std::size_t rounds)
    : server_(std::move(server)), port_(port), rounds_(rounds) {}
  double once(std::uint32_t streams) const;

  child server_;
  std::uint16_t port_;
  std::size_t rounds_;
  std::map<std::uint32_t, samples> measured_; // seconds a byte by streams
};

/// perftest's programs between the two RDMA ports of `rdma_ports`: reliable connections, the ports' own MTU. A server
/// process a measurement: that is how they work.
class perftest_peer {
public:
  static std::optional<perftest_peer> find();

  /// ib_read_bw or ib_write_bw, so many messages, `depth` in flight.
  double bytes_per_second(
    transport::direction dir, std::uint64_t size_bytes, std::uint64_t count,
    std::uint32_t depth) const;

  struct figures {
    double p50_s = 0, p99_s = 0;
  };
  /// ib_read_lat: until a read is done. ib_write_lat: half of a ping-pong of writes, each seen by polling the memory.
  figures latency(
    transport::direction dir, std::uint64_t size_bytes, std::uint64_t exchanges) const;

private:
  explicit perftest_peer(port_pair ports) : ports_(std::move(ports)) {}
  std::vector<double> last_line(
    const std::string& program, std::vector<std::string> options, std::size_t columns) const;

  port_pair ports_;
};

/// A request and its response over a TCP connection on loopback, to another process. It waits as our loop does: it
/// polls for `poll_us` after the last bytes and then sleeps.
class tcp_ping_pong {
public:
  explicit tcp_ping_pong(std::uint32_t poll_us);
  ~tcp_ping_pong();
  tcp_ping_pong(const tcp_ping_pong&) = delete;
  tcp_ping_pong& operator=(const tcp_ping_pong&) = delete;

  /// Seconds of one exchange.
  double exchange(std::uint32_t request_bytes, std::uint32_t response_bytes);

private:
  child server_;
  int fd_ = -1;
  std::uint32_t poll_us_;
  std::vector<std::byte> bytes_; // as many as the largest exchange so far has
};

/// The program of the other side: `--echo POLL_US`. Prints its port.
int answer_pings(std::uint32_t poll_us);

} // namespace millrace::bench
