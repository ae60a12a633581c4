// Other programs that move the same bytes: UCX's own benchmark, iperf3, perftest, and bare TCP
// sockets.
// Used by the sections of bench_transfer.
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

/// UCX over shared memory, by `ucx_perftest`, which needs a server process for each measurement.
class ucx_peer {
public:
  /// Finds the program. If this machine lacks it, returns nothing and prints a line.
  static std::optional<ucx_peer> find();

  struct figures {
    double p50_s = 0;            // of one message
    double bytes_per_second = 0; // over all of them
  };
  /// Runs a test. `test` is named as in ucx_perftest: tag_bw, ucp_get, ucp_put_bw, ... `transports`
  /// is the value of UCX_TLS: "posix" copies through shared memory, "shm" may also copy straight
  /// from the other process.
  figures run(
    const std::string& transports, const std::string& test, std::uint64_t size_bytes,
    std::uint64_t iterations) const;

private:
  std::string version_;
};

/// iperf3 over loopback. Its server lives as long as this object.
class iperf_peer {
public:
  static std::optional<iperf_peer> start(std::size_t rounds);

  /// Returns what all streams together move in one second, as the median of some runs. iperf3 has
  /// no messages, so the result for a number of streams holds for every size.
  double bytes_per_second(std::uint32_t streams);

private:
  iperf_peer(child server, std::uint16_t port, std::size_t rounds)
    : server_(std::move(server)), port_(port), rounds_(rounds) {}
  double once(std::uint32_t streams) const;

  child server_;
  std::uint16_t port_;
  std::size_t rounds_;
  std::map<std::uint32_t, samples> measured_; // seconds per byte, by number of streams
};

/// perftest's programs between the two RDMA ports of `rdma_ports`, with reliable connections and
/// the ports' own MTU. They need a server process for each measurement.
class perftest_peer {
public:
  static std::optional<perftest_peer> find();

  /// Runs ib_read_bw or ib_write_bw with `count` messages, `depth` in flight.
  double bytes_per_second(
    transport::direction dir, std::uint64_t size_bytes, std::uint64_t count,
    std::uint32_t depth) const;

  struct figures {
    double p50_s = 0, p99_s = 0;
  };
  /// Runs ib_read_lat, which measures until a read is done, or ib_write_lat, which measures half of
  /// a ping-pong of writes, each seen by polling the memory.
  figures latency(
    transport::direction dir, std::uint64_t size_bytes, std::uint64_t exchanges) const;

private:
  explicit perftest_peer(port_pair ports) : ports_(std::move(ports)) {}
  std::vector<double> last_line(
    const std::string& program, std::vector<std::string> options, std::size_t columns) const;

  port_pair ports_;
};

/// A request and its response over a loopback TCP connection to another process. It waits like our
/// I/O loop: it polls for `poll_us` after the last bytes and then sleeps.
class tcp_ping_pong {
public:
  explicit tcp_ping_pong(std::uint32_t poll_us);
  ~tcp_ping_pong();
  tcp_ping_pong(const tcp_ping_pong&) = delete;
  tcp_ping_pong& operator=(const tcp_ping_pong&) = delete;

  /// Returns the seconds of one exchange.
  double exchange(std::uint32_t request_bytes, std::uint32_t response_bytes);

private:
  child server_;
  int fd_ = -1;
  std::uint32_t poll_us_;
  std::vector<std::byte> bytes_; // as large as the largest exchange so far
};

/// Runs the program of the other side: `--echo POLL_US`. Prints its port.
int answer_pings(std::uint32_t poll_us);

} // namespace millrace::bench
