// A working set over RDMA: its data server is a process with one device, the client has the other.
// MILLRACE_TEST_VERBS=OURS/THEIRS names them. Run in the lab guest.
#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/tests/support/npy_file.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/verbs_devices.hpp>
#include <millrace/tests/transport/gpu_host.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::uint64_t sample_bytes = 5000, samples = 1003;

// What hwloc takes for this guest: our device is near the second processor.
void pretend_sockets(const scratch& dir, const std::string& device) {
  std::string host = gpu_host;
  auto at = host.find("mlx5_2");
  BOOST_TEST_REQUIRE(at != std::string::npos);
  host.replace(at, std::strlen("mlx5_2"), device);
  ::setenv("HWLOC_XMLFILE", dir.write("host.xml", host).c_str(), 1);
  ::setenv("HWLOC_THISSYSTEM", "1", 1);
}

/// A node with a data server in a process of its own, and a client; verbs is their only driver.
struct set_over_verbs {
  verbs_devices which = verbs_devices::from_environment();
  scratch dir;
  std::string text = fmt::format(
    "node: {{ name: n0, listen: 'unix:{}/n0.sock' }}\n"
    "staging: {{ size: 8MiB }}\n"
    "data: {{ capacity: 8MiB, region_size: 1MiB }}\n"
    "transport: {{ prefer: [verbs] }}\n",
    dir.path.string());
  child_process server{
    {MILLRACE_PROGRAM, "serve", "-c", dir.write("server.yaml", text + verbs(which.theirs))}};
  client ours = connect();

  static std::string verbs(const std::vector<std::string>& devices) {
    return fmt::format(
      "verbs: {{ devices: [{}], ack_timeout: 100ms }}\n", fmt::join(devices, ", "));
  }
  client connect() {
    server.read_line();
    pretend_sockets(dir, which.ours.front()); // before the topology is read
    auto file = dir.write("client.yaml", text + verbs(which.ours));
    return client::of(load_configuration(file).value()).value();
  }
};

bool is_sample(const std::byte* bytes, std::uint64_t id) {
  return is_pattern({bytes, sample_bytes}, id * sample_bytes, 1);
}

} // namespace

BOOST_AUTO_TEST_SUITE(verbs_data)

BOOST_AUTO_TEST_CASE(a_set_is_preloaded_and_each_sample_is_read_once) {
  set_over_verbs at;
  auto path = write_npy(
    at.dir / "a.npy", {"x", dtype::u8, {samples, sample_bytes}},
    pattern(samples * sample_bytes, 1));
  auto set = at.ours.working_set("s");
  // The queue pairs connect meanwhile.
  BOOST_TEST_REQUIRE(eventually([&] { return set.preload({path}).result().has_value(); }));
  auto reader = set.open().get();
  BOOST_TEST(reader.verify().get().damaged == 0u);
  auto from = reader.load_batches({.batch_size = 32, .seed = 5}).value();
  std::vector<std::uint64_t> seen;
  seen.reserve(samples);
  while (auto batch = from.next().get())
    for (std::size_t i = 0; i < batch->ids().size(); ++i) {
      BOOST_TEST_REQUIRE(is_sample(batch->field(0).data + i * sample_bytes, batch->ids()[i]));
      seen.push_back(batch->ids()[i]);
    }
  std::ranges::sort(seen);
  std::vector<std::uint64_t> all(samples);
  std::iota(all.begin(), all.end(), 0);
  BOOST_TEST((seen == all));
  BOOST_TEST(from.counts().samples_from_files == 0u);
  BOOST_TEST(from.counts().remote_stages > 0u);
  // The movers stay near the device by which the bytes come.
  BOOST_TEST(from.processors() == "processors 1, near " + at.which.ours.front());
  set.unload().get();
}

BOOST_AUTO_TEST_SUITE_END()
