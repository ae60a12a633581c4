// Batches whose samples lie on several data servers, each on a host of its own behind a switch; and
// what the switch loses when all of them answer at once, with and without the pacing of reads.
#include <millrace/actors/loader/read_options.hpp>
#include <millrace/bench/loader/hosts.hpp>
#include <millrace/bench/loader/loading.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/transport/fabric_options.hpp>

#include <fmt/format.h>

#include <fstream>
#include <utility>

namespace millrace::bench {

namespace {

constexpr std::size_t reader_host = 0;           // the servers are the hosts after it
constexpr std::uint64_t bandwidth = 250'000'000; // of the switch's port to the reader, in bytes
constexpr std::uint64_t buffer_bytes = 512 * kib;
constexpr std::uint64_t without_bound = 1024 * mib; // of bytes in flight
constexpr double losses_goal = 0.5;

// A set that is divided among data servers. The control connections are Unix sockets. Make and use
// it on the reader's host: a thread that waits for a future makes the connections itself.
class cluster {
public:
  cluster(const stage& s, const hosts& net, const sample_files& of, std::size_t servers)
    : files_(s.files), net_(net), of_(of) {
    auto capacity = round_up(of.size_bytes() / servers + 2 * region_bytes, region_bytes);
    for (std::size_t i = 1; i <= servers; ++i)
      start(i, capacity);
    settings_ = settings_of(servers);
    preload_options how;
    how.servers = static_cast<std::uint32_t>(servers);
    auto c = connect();
    need(c.working_set(of.name()).preload({of.path()}, how).result(), "preloading");
  }

  const hosts& net() const { return net_; }
  const sample_files& samples_of() const { return of_; }

  /// Returns a client that has the driver tcp alone.
  client connect(std::uint64_t inflight_min = 0, std::uint64_t inflight_max = 0) const {
    auto s = settings_;
    auto& transport = s.options.edit<transport::fabric_options>();
    transport.prefer = {"tcp"};
    transport.prefer_is_explicit = true;
    auto& reading = s.options.edit<actors::read_options>();
    if (inflight_max > 0) {
      reading.inflight_bytes_min = inflight_min;
      reading.inflight_bytes_max = inflight_max;
    }
    return need(client::of(s), "connecting to the data servers");
  }

private:
  std::string socket_of(std::size_t host) const {
    return files_.file(fmt::format("d{}.sock", host));
  }

  // A node need not know the others.
  void start(std::size_t host, std::uint64_t capacity) {
    auto config = files_.file(fmt::format("d{}.yaml", host));
    std::ofstream{config} << fmt::format(
      "node: {{ name: d{}, listen: 'unix:{}', log_level: error }}\n"
      "data: {{ capacity: {}, region_size: {} }}\n"
      "tcp: {{ listen: ['{}:0'] }}\n"
      "staging: {{ size: 16MiB }}\n"
      "providers: [{{ name: store, bucket: memory, capacity: 16MiB }}]\n",
      host, socket_of(host), capacity, region_bytes, hosts::address(host));
    net_.on(host, [&] { nodes_.push_back(start_node(config)); });
  }

  config::settings settings_of(std::size_t servers) const {
    auto text = fmt::format("data: {{ capacity: {} }}\ncluster:\n  nodes:\n", 16 * region_bytes);
    for (std::size_t i = 1; i <= servers; ++i)
      text +=
        fmt::format("    - {{ name: d{}, listen: 'unix:{}', providers: [] }}\n", i, socket_of(i));
    return need(parse_configuration(text, "cluster.yaml"), "reading the configuration");
  }

  const scratch_directory& files_;
  const hosts& net_;
  const sample_files& of_;
  std::vector<child> nodes_;
  config::settings settings_;
};

row row_of(std::string name, const samples& ours, std::uint64_t bytes, double batches) {
  row r;
  r.name = std::move(name);
  r.size_bytes = bytes;
  for (auto seconds : ours.values())
    r.ours.add(seconds / batches);
  return r;
}

// One or two servers, over links without bounds: batches beside one read of all samples.
void measure_servers(
  const stage& s, const hosts& net, const sample_files& of, std::size_t servers) {
  cluster there{s, net, of, servers};
  auto r = against_large_read(
    fmt::format("network/{}/{}-servers", of.name(), servers), of, there.connect(), there.connect(),
    of.batches_of_round(), s.rounds(7));
  if (!s.options.quick)
    r.ratio_min = large_read_goal;
  s.out.add(std::move(r));
}

// A reader, and what the switch has dropped of what came for it.
class counted_reader {
public:
  counted_reader(const cluster& of, client c) : of_(of), reads_(std::move(c), of.samples_of()) {}

  double read(std::size_t batches) {
    auto before = of_.net().dropped_frames(reader_host);
    auto seconds = seconds_of([&] { reads_.read(batches); });
    dropped_ += of_.net().dropped_frames(reader_host) - before;
    return seconds;
  }
  std::uint64_t dropped_bytes() const { return dropped_ * hosts::frame_bytes; }

private:
  const cluster& of_;
  batch_reader reads_;
  std::uint64_t dropped_ = 0;
};

void measure_incast(const stage& s, const hosts& net, const sample_files& of, std::size_t servers) {
  cluster there{s, net, of, servers};
  net.bound_port(reader_host, bandwidth, buffer_bytes);
  counted_reader paced{there, there.connect()};
  counted_reader unpaced{there, there.connect(without_bound, without_bound)};
  auto batches = of.batches_of_round();
  contest all;
  auto& ours = all.add([&] { return paced.read(batches); });
  auto& others = all.add([&] { return unpaced.read(batches); });
  all.run(s.rounds(5), false);
  auto name = fmt::format("network/{}/incast-{}", of.name(), servers);
  auto r = row_of(name, ours, of.batch_bytes(batch_size), static_cast<double>(batches));
  r.peer = "without pacing";
  r.peer_s = others.median() / static_cast<double>(batches);
  s.out.add(std::move(r));
  auto lost = row_of(name + "/lost", ours, paced.dropped_bytes(), static_cast<double>(batches));
  if (!s.options.quick)
    lost.bytes_max =
      static_cast<std::uint64_t>(losses_goal * static_cast<double>(unpaced.dropped_bytes()));
  s.out.add(std::move(lost));
}

} // namespace

void network_section(const stage& s) {
  if (auto why = hosts::why_none(); !why.empty())
    return skip_aloud("hosts behind a switch", why);
  auto& kind = kinds[1];
  if (!s.wants(kind.name))
    return;
  sample_files of{s.files, kind, s.set_bytes()};
  auto most = std::size_t{s.options.quick ? 4u : 8u};
  hosts net{most + 1};
  net.on(reader_host, [&] {
    for (std::size_t servers : {1, 2})
      measure_servers(s, net, of, servers);
    measure_incast(s, net, of, most);
  });
}

} // namespace millrace::bench
