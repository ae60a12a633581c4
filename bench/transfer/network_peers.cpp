// Runs other programs and reads their output; drives bare sockets.
#include <millrace/bench/common/peers.hpp>
#include <millrace/bench/transfer/network_peers.hpp>
#include <millrace/core/clock.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

namespace millrace::bench {

namespace {

constexpr int program_timeout_ms = 60'000;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  out.sin_port = htons(port);
  return out;
}

// The kernel picks the port. Another process may take it before the program does; the program then
// reports an error.
std::uint16_t free_port() {
  auto fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto at = loopback(0);
  socklen_t length = sizeof(at);
  auto* address = reinterpret_cast<sockaddr*>(&at);
  if (fd < 0 || bind(fd, address, length) != 0 || getsockname(fd, address, &length) != 0)
    give_up(status_from_errno(errno, "a port on loopback"), "a peer");
  close(fd);
  return ntohs(at.sin_port);
}

// Returns everything that a program prints until it ends.
std::vector<std::string> output_of(child& program, std::string_view name) {
  std::vector<std::string> lines;
  for (;;) {
    auto line = program.read_line(program_timeout_ms);
    if (line)
      lines.push_back(std::move(*line));
    else if (line.error().code() == errc::peer_lost)
      return lines;
    else
      give_up(line.error(), name);
  }
}

bool is_installed(const std::string& program) {
  auto probe = child::start({"sh", "-c", "command -v " + program}, true);
  return probe && probe->read_line(program_timeout_ms);
}

bool accepts(std::uint16_t port) {
  auto fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto at = loopback(port);
  auto ok = connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0;
  close(fd);
  return ok;
}

} // namespace

std::optional<ucx_peer> ucx_peer::find() {
  if (is_installed("ucx_perftest"))
    return ucx_peer{};
  skip_aloud("ucx", "ucx_perftest is not installed (package ucx-utils)");
  return std::nullopt;
}

ucx_peer::figures ucx_peer::run(
  const std::string& transports, const std::string& test, std::uint64_t size_bytes,
  std::uint64_t iterations) const {
  std::vector<std::string> common = {
    "env", "UCX_TLS=" + transports + ",self", "UCX_WARN_UNUSED_ENV_VARS=n", "ucx_perftest",
    "-p",  std::to_string(free_port())};
  auto server = need(child::start(common, true), "ucx_perftest");
  auto asking = common;
  for (auto& argument :
       {std::string{"127.0.0.1"}, std::string{"-t"}, test, std::string{"-s"},
        std::to_string(size_bytes), std::string{"-n"}, std::to_string(iterations),
        std::string{"-w"}, std::to_string(iterations / 10 + 1), std::string{"-f"},
        std::string{"-v"}})
    asking.push_back(argument);
  // The server may not listen yet. A connection made to find out would count as the client.
  for (int attempts_left = 50; attempts_left > 0; --attempts_left) {
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
    auto client = need(child::start(asking, true), "ucx_perftest");
    auto lines = output_of(client, "ucx_perftest");
    // iterations,p50,average,overall latency (us),average,overall bandwidth (MiB/s),...
    std::array<double, 6> columns{};
    char comma = 0;
    std::istringstream last{lines.empty() ? "" : lines.back()};
    last >> columns[0];
    for (std::size_t i = 1; i < columns.size(); ++i)
      last >> comma >> columns[i];
    if (last)
      return {columns[1] * 1e-6, columns[5] * (1 << 20)};
  }
  give_up("ucx_perftest prints no figures for " + test);
}

std::optional<iperf_peer> iperf_peer::start(std::size_t rounds) {
  if (!is_installed("iperf3")) {
    skip_aloud("iperf3", "it is not installed (package iperf3)");
    return std::nullopt;
  }
  auto port = free_port();
  // Its reports would fill the pipe, which no thread reads, and then it would block.
  auto server = child::start(
    {"iperf3", "-s", "-B", "127.0.0.1", "-p", std::to_string(port), "--logfile", "/dev/null"},
    true);
  if (!server)
    give_up(server.error(), "iperf3");
  // A connection that says nothing. The server reports an error and goes on.
  for (int attempts_left = 100; attempts_left > 0 && !accepts(port); --attempts_left)
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  return iperf_peer{std::move(*server), port, rounds};
}

double iperf_peer::bytes_per_second(std::uint32_t streams) {
  auto& known = measured_[streams];
  while (known.size() < rounds_)
    known.add(1 / once(streams));
  return 1 / known.median();
}

double iperf_peer::once(std::uint32_t streams) const {
  std::string said;
  for (int attempts_left = 20; attempts_left > 0; --attempts_left) {
    auto client = need(
      child::start(
        {"iperf3", "-c", "127.0.0.1", "-p", std::to_string(port_), "-P", std::to_string(streams),
         "-t", "1", "-J"},
        true),
      "iperf3");
    std::string text;
    for (auto& line : output_of(client, "iperf3"))
      text += line + "\n";
    auto answer = nlohmann::json::parse(text, nullptr, false);
    if (answer.is_object() && answer.contains("end") && answer["end"].contains("sum_received"))
      return answer["end"]["sum_received"]["bits_per_second"].get<double>() / 8;
    said = answer.is_object() ? answer.value("error", "no figures") : "nothing";
    // The test before it may not be over.
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
  }
  give_up("iperf3 says: " + said);
}

namespace {

constexpr std::uint64_t perftest_count_min = 5; // its own minimum

} // namespace

std::optional<perftest_peer> perftest_peer::find() {
  auto ports = rdma_ports();
  if (!ports)
    return std::nullopt; // the driver's own row says why
  if (is_installed("ib_read_bw"))
    return perftest_peer{std::move(*ports)};
  skip_aloud("perftest", "ib_read_bw is not installed (package perftest)");
  return std::nullopt;
}

// Returns the last line of figures in the table, which must have at least so many columns.
std::vector<double> perftest_peer::last_line(
  const std::string& program, std::vector<std::string> options, std::size_t columns) const {
  options.insert(options.end(), {"-F", "-p", std::to_string(free_port())});
  auto on = [&](const transport::verbs_port& p) {
    std::vector<std::string> command{
      program, "-d", p.device, "-i", std::to_string(p.port), "-x", std::to_string(p.gid_index)};
    command.insert(command.end(), options.begin(), options.end());
    return command;
  };
  auto asking = on(ports_.mover);
  asking.emplace_back("127.0.0.1");
  for (int attempts_left = 5; attempts_left > 0; --attempts_left) {
    auto server = need(child::start(on(ports_.owner), true), program);
    // The server may not listen yet. A connection made to find out would count as the client.
    for (int knocks_left = 50; knocks_left > 0; --knocks_left) {
      std::this_thread::sleep_for(std::chrono::milliseconds{100});
      auto client = need(child::start(asking, true), program);
      std::vector<double> figures;
      auto met = false; // a client that reaches its server prints the addresses of both
      for (auto& line : output_of(client, program)) {
        std::istringstream words{line};
        std::vector<double> numbers{std::istream_iterator<double>{words}, {}};
        met |= line.find("remote address") != std::string::npos;
        if (words.eof() && numbers.size() >= columns)
          figures = std::move(numbers);
      }
      if (!figures.empty())
        return figures;
      if (met)
        break; // a device failure: try again with another server
    }
  }
  give_up(program + " prints no figures");
}

double perftest_peer::bytes_per_second(
  transport::direction dir, std::uint64_t size_bytes, std::uint64_t count,
  std::uint32_t depth) const {
  auto program = dir == transport::direction::read ? "ib_read_bw" : "ib_write_bw";
  // bytes, iterations, peak and average in MiB/s, messages
  auto line = last_line(
    program,
    {"-N", "-s", std::to_string(size_bytes), "-n",
     std::to_string(std::max(count, perftest_count_min)), "-t", std::to_string(depth)},
    5);
  return line[3] * (1 << 20);
}

perftest_peer::figures perftest_peer::latency(
  transport::direction dir, std::uint64_t size_bytes, std::uint64_t exchanges) const {
  auto program = dir == transport::direction::read ? "ib_read_lat" : "ib_write_lat";
  // bytes, iterations, least, most, typical, average, deviation, 99 %, 99.9 %
  auto line = last_line(
    program,
    {"-s", std::to_string(size_bytes), "-n",
     std::to_string(std::max(exchanges, perftest_count_min))},
    9);
  return {line[4] * 1e-6, line[7] * 1e-6};
}

namespace {

struct ping {
  std::uint32_t request_bytes = 0; // with this
  std::uint32_t response_bytes = 0;
};
constexpr std::uint32_t ping_bytes_max = (1u << 30) + 4096;

bool send_all(int fd, const std::byte* data, std::size_t length) {
  while (length > 0) {
    auto sent = send(fd, data, length, MSG_NOSIGNAL);
    if (sent <= 0)
      return false;
    data += sent;
    length -= static_cast<std::size_t>(sent);
  }
  return true;
}

// Polls first and then sleeps.
bool receive_all(int fd, std::byte* data, std::size_t length, std::uint32_t poll_us) {
  auto until = steady_clock::now() + std::chrono::microseconds{poll_us};
  while (length > 0) {
    auto got = recv(fd, data, length, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN))
      return false;
    if (got > 0) {
      data += got;
      length -= static_cast<std::size_t>(got);
      until = steady_clock::now() + std::chrono::microseconds{poll_us};
    } else if (steady_clock::now() > until) {
      pollfd ready{fd, POLLIN, 0};
      poll(&ready, 1, -1);
    }
  }
  return true;
}

void send_at_once(int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

} // namespace

tcp_ping_pong::tcp_ping_pong(std::uint32_t poll_us) : poll_us_(poll_us) {
  server_ = need(
    child::start({"/proc/self/exe", "--echo", std::to_string(poll_us)}),
    "the other side of a socket");
  auto port = std::stoi(need(server_.read_line(program_timeout_ms), "a socket"));
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto at = loopback(static_cast<std::uint16_t>(port));
  if (fd_ < 0 || connect(fd_, reinterpret_cast<sockaddr*>(&at), sizeof(at)) != 0)
    give_up(status_from_errno(errno, "connecting on loopback"), "a socket");
  send_at_once(fd_);
}

tcp_ping_pong::~tcp_ping_pong() { close(fd_); }

double tcp_ping_pong::exchange(std::uint32_t request_bytes, std::uint32_t response_bytes) {
  bytes_.resize(std::max({bytes_.size(), std::size_t{request_bytes}, std::size_t{response_bytes}}));
  ping p{request_bytes, response_bytes};
  std::memcpy(bytes_.data(), &p, sizeof(p));
  return seconds_of([&] {
    if (
      !send_all(fd_, bytes_.data(), request_bytes) ||
      !receive_all(fd_, bytes_.data(), response_bytes, poll_us_))
      give_up("the other side of a socket is gone");
  });
}

int answer_pings(std::uint32_t poll_us) {
  auto listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto at = loopback(0);
  socklen_t length = sizeof(at);
  auto* address = reinterpret_cast<sockaddr*>(&at);
  if (
    listening < 0 || bind(listening, address, length) != 0 || listen(listening, 1) != 0 ||
    getsockname(listening, address, &length) != 0)
    return 1;
  std::printf("%d\n", ntohs(at.sin_port));
  std::fflush(stdout);
  auto fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
  send_at_once(fd);
  std::vector<std::byte> bytes(sizeof(ping));
  while (receive_all(fd, bytes.data(), sizeof(ping), poll_us)) {
    ping p;
    std::memcpy(&p, bytes.data(), sizeof(p));
    if (p.request_bytes > ping_bytes_max || p.response_bytes > ping_bytes_max)
      return 1;
    bytes.resize(
      std::max({bytes.size(), std::size_t{p.request_bytes}, std::size_t{p.response_bytes}}));
    if (
      !receive_all(fd, bytes.data(), p.request_bytes - sizeof(ping), poll_us) ||
      !send_all(fd, bytes.data(), p.response_bytes))
      break;
  }
  return 0;
}

} // namespace millrace::bench
