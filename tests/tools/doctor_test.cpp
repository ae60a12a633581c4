// Tests the checks of `millrace doctor` against machines made of a few files.
#include <millrace/actors/loader/data_options.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/tests/transport/gpu_host.hpp>
#include <millrace/tools/doctor/cluster_checks.hpp>
#include <millrace/tools/doctor/doctor.hpp>
#include <millrace/tools/doctor/gpu_checks.hpp>
#include <millrace/tools/doctor/verbs_checks.hpp>
#include <millrace/tools/run.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

using namespace millrace::tools::doctor;
namespace fs = std::filesystem;

namespace {

int works() { return 0; }
int refused() { return EPERM; }

// A machine without any files, on which every system call works.
struct fake_machine {
  fs::path root;
  machine m;

  fake_machine() {
    auto pattern = (fs::temp_directory_path() / "millrace.XXXXXX").string();
    root = mkdtemp(pattern.data());
    m.root = root.string();
    m.calls = {
      works, works, [](const std::string&) { return 0; },
      [](const std::string&, std::uint64_t& out) {
        out = std::uint64_t{100} << 30;
        return 0;
      }};
  }
  ~fake_machine() { fs::remove_all(root); }

  fake_machine& put(const std::string& file, const std::string& text) {
    auto path = m.root + file;
    fs::create_directories(fs::path{path}.parent_path());
    std::ofstream{path} << text << '\n';
    return *this;
  }

  finding about(const std::string& check) const {
    auto all = examine(m);
    auto found = std::find_if(all.begin(), all.end(), [&](auto& f) { return f.check == check; });
    BOOST_TEST_REQUIRE((found != all.end()), check << " is no check");
    return *found;
  }
};

void expect(const finding& f, check_state state, const std::string& part) {
  BOOST_TEST((f.state == state), f.check << ": " << to_string(f.state) << " " << f.value);
  BOOST_TEST((f.value.find(part) != f.value.npos), f.value << " lacks " << part);
  BOOST_TEST(f.remedy.empty() == (state == check_state::ok), f.check << ": " << f.remedy);
}

const std::string thp = "/sys/kernel/mm/transparent_hugepage/";

} // namespace

BOOST_AUTO_TEST_SUITE(doctor)

BOOST_AUTO_TEST_CASE(a_machine_without_files_is_examined_without_harm) {
  fake_machine bare;
  auto all = examine(bare.m);
  BOOST_TEST(all.size() == 19u);
  for (auto& f : all) {
    BOOST_TEST(!f.check.empty());
    BOOST_TEST(!f.value.empty(), f.check);
    BOOST_TEST(f.remedy.empty() == (f.state == check_state::ok), f.check);
  }
}

BOOST_AUTO_TEST_CASE(garbage_in_every_file_is_examined_without_harm) {
  fake_machine odd;
  for (auto file :
       {"/proc/sys/kernel/osrelease", "/proc/meminfo", "/proc/self/limits", "/proc/self/status",
        "/proc/self/cgroup", "/sys/devices/system/cpu/online", "/sys/devices/system/node/online",
        "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max", "/proc/sys/kernel/yama/ptrace_scope",
        "/sys/class/infiniband/x/ports/1/state"})
    for (auto text : {"", "-", "9-1", ":::", "99999999999999999999999", "0-99999999999", "]["})
      BOOST_TEST(examine(odd.put(file, text).m).size() == 19u);
}

BOOST_AUTO_TEST_CASE(an_old_kernel_is_noted) {
  fake_machine f;
  expect(
    f.put("/proc/sys/kernel/osrelease", "6.1.0-25-amd64").about("kernel"), check_state::ok, "6.1");
  expect(f.put("/proc/sys/kernel/osrelease", "5.14").about("kernel"), check_state::ok, "5.14");
  expect(f.put("/proc/sys/kernel/osrelease", "5.10.0").about("kernel"), check_state::note, "5.10");
  expect(f.put("/proc/sys/kernel/osrelease", "4.18.0").about("kernel"), check_state::note, "4.18");
}

BOOST_AUTO_TEST_CASE(cores_are_those_this_process_may_use) {
  fake_machine f;
  f.put("/sys/devices/system/cpu/online", "0-7,10");
  expect(f.about("cores"), check_state::ok, "9");
  f.put("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-1,4");
  expect(f.about("cores"), check_state::ok, "3 of 9");
  f.put("/sys/fs/cgroup/cpu.max", "150000 100000");
  expect(f.about("cores"), check_state::note, "150 %");
  f.put("/sys/fs/cgroup/cpu.max", "max 100000");
  f.put("/proc/self/status", "Cpus_allowed_list:\t3");
  expect(f.about("cores"), check_state::note, "1 of 9");
}

BOOST_AUTO_TEST_CASE(several_numa_nodes_are_noted) {
  fake_machine f;
  expect(f.about("numa nodes"), check_state::ok, "1");
  expect(
    f.put("/sys/devices/system/node/online", "0-1").about("numa nodes"), check_state::note, "2");
}

BOOST_AUTO_TEST_CASE(the_control_group_bounds_memory) {
  fake_machine f;
  f.put("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB");
  expect(f.about("memory"), check_state::ok, "8 GiB available of 16 GiB");
  f.put("/proc/self/cgroup", "0::/a/b");
  f.put("/sys/fs/cgroup/a/b/memory.max", "4294967296");
  f.put("/sys/fs/cgroup/a/b/memory.current", "3221225472");
  expect(f.about("memory"), check_state::note, "control group /a/b has 3 GiB of 4 GiB");
}

BOOST_AUTO_TEST_CASE(the_control_groups_around_ours_bound_memory_too) {
  fake_machine f;
  f.put("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB");
  f.put("/proc/self/cgroup", "0::/a/b/c");
  f.put("/sys/fs/cgroup/a/b/c/memory.max", "max");
  f.put("/sys/fs/cgroup/a/memory.max", "1073741824");
  f.put("/sys/fs/cgroup/a/memory.current", "0");
  expect(f.about("memory"), check_state::note, "control group /a has 0 B of 1 GiB");
}

BOOST_AUTO_TEST_CASE(control_groups_of_version_1_bound_memory) {
  fake_machine f;
  f.put("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB");
  f.put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/id\n0::/");
  f.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824");
  f.put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "536870912");
  expect(f.about("memory"), check_state::note, "control group / has 512 MiB of 1 GiB");
  f.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  expect(f.about("memory"), check_state::ok, "8 GiB available of 16 GiB");
}

BOOST_AUTO_TEST_CASE(the_sizes_of_a_node_are_compared_with_what_its_control_group_allows) {
  fake_machine f;
  f.put("/proc/meminfo", "MemTotal: 16777216 kB");
  auto settings = millrace::parse_configuration(
                    "providers:\n"
                    "  - { name: a, capacity: 3GiB }\n"
                    "  - { name: b, bucket: rocksdb, path: /b, capacity: 90GiB }\n"
                    "  - { name: c, bucket: pmem, path: /c, capacity: 90GiB }\n"
                    "checkpoints: { staging_pieces: 64, staging_piece: 16MiB }\n"
                    "staging: { size: 1GiB }\n"
                    "limits: { requests_size: 1GiB }\n"
                    "channel: { buffers_max: 1GiB }\n"
                    "staged: { size: 1GiB }\n",
                    "t.yaml")
                    .value();
  // 3 GiB and half as much of descriptions, 104 MiB and twice 256 MiB, 2 GiB of two stagings.
  expect(check_sizes(settings, f.m), check_state::ok, "7.10 GiB");
  f.put("/proc/meminfo", "MemTotal: 10485760 kB");
  auto seen = check_sizes(settings, f.m);
  expect(seen, check_state::note, "peers may add 3.06 GiB, this machine has 10 GiB");
  BOOST_TEST(seen.remedy.find("limits.requests_size") != std::string::npos, seen.remedy);
  f.put("/proc/meminfo", "MemTotal: 16777216 kB");
  f.put("/proc/self/cgroup", "0::/job");
  f.put("/sys/fs/cgroup/job/memory.max", "4294967296");
  seen = check_sizes(settings, f.m);
  expect(seen, check_state::missing, "control group /job has 4 GiB");
  BOOST_TEST(
    seen.remedy.starts_with("lower one of `capacity` of provider a, `descriptions_max`,"),
    seen.remedy);
  settings.options.edit<millrace::actors::data_options>().capacity_bytes = 2ull << 30;
  seen = check_sizes(settings, f.m);
  expect(seen, check_state::missing, "9.10 GiB for providers, working sets and staging");
  BOOST_TEST(seen.remedy.find("`data.capacity`") != std::string::npos, seen.remedy);
}

BOOST_AUTO_TEST_CASE(huge_pages_that_are_off_get_a_command) {
  fake_machine f;
  f.put(thp + "enabled", "always [madvise] never")
    .put(
      thp + "shmem_enabled",
      "always within_size "
      "[advise] never deny force");
  expect(f.about("huge pages, private"), check_state::ok, "madvise");
  expect(f.about("huge pages, shared"), check_state::ok, "advise");
  f.put(thp + "enabled", "always madvise [never]")
    .put(thp + "shmem_enabled", "advise [never] deny");
  expect(f.about("huge pages, private"), check_state::missing, "never");
  auto shared = f.about("huge pages, shared");
  expect(shared, check_state::missing, "never");
  BOOST_TEST(shared.remedy == "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
}

BOOST_AUTO_TEST_CASE(the_pool_of_huge_pages_is_counted) {
  fake_machine f;
  f.put("/proc/meminfo", "HugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB");
  expect(f.about("huge page pool"), check_state::missing, "empty");
  f.put("/proc/meminfo", "HugePages_Total: 64\nHugePages_Free: 60\nHugepagesize: 2048 kB");
  expect(f.about("huge page pool"), check_state::ok, "60 of 64 pages of 2 MiB free");
}

BOOST_AUTO_TEST_CASE(a_low_limit_of_locked_memory_matters_without_the_capability) {
  fake_machine f;
  const std::string line =
    "Max locked memory         8388608              8388608              bytes";
  f.put("/proc/self/limits", line).put("/proc/self/status", "CapEff:\t0000000000000000");
  expect(f.about("locked memory"), check_state::missing, "8 MiB");
  f.put("/proc/self/status", "CapEff:\t0000000000004000");
  expect(f.about("locked memory"), check_state::ok, "CAP_IPC_LOCK");
  f.put("/proc/self/status", "CapEff:\t0000000000000000");
  f.put("/proc/self/limits", "Max locked memory  unlimited  unlimited  bytes");
  expect(f.about("locked memory"), check_state::ok, "unlimited");
}

BOOST_AUTO_TEST_CASE(refused_system_calls_are_named) {
  fake_machine f;
  f.m.calls.sealed_memfd = refused;
  f.m.calls.pidfd = refused;
  expect(f.about("shared memory"), check_state::missing, "memfd_create: ");
  expect(f.about("pidfd"), check_state::note, "pidfd_open: ");
  f.put("/proc/sys/vm/memfd_noexec", "2");
  BOOST_TEST(f.about("shared memory").remedy == "sysctl vm.memfd_noexec=1");
}

BOOST_AUTO_TEST_CASE(the_scope_of_ptrace_is_read) {
  fake_machine f;
  expect(f.about("ptrace scope"), check_state::ok, "no Yama");
  expect(
    f.put("/proc/sys/kernel/yama/ptrace_scope", "1").about("ptrace scope"), check_state::note, "1");
  f.put("/proc/self/status", "CapEff:\t0000000000080000");
  expect(f.about("ptrace scope"), check_state::ok, "CAP_SYS_PTRACE");
  expect(
    f.put("/proc/sys/kernel/yama/ptrace_scope", "3").about("ptrace scope"), check_state::note, "3");
}

BOOST_AUTO_TEST_CASE(the_hard_limit_of_open_files_counts) {
  fake_machine f;
  f.put("/proc/self/limits", "Max open files  1024  1048576  files");
  expect(f.about("open files"), check_state::ok, "1024, services raise it to 1048576");
  f.put("/proc/self/limits", "Max open files  1024  1024  files");
  expect(f.about("open files"), check_state::missing, "1024");
}

BOOST_AUTO_TEST_CASE(rdma_devices_are_listed_with_their_ports) {
  fake_machine f;
  expect(f.about("rdma devices"), check_state::missing, "none");
  f.put("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
  f.put("/sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)");
  expect(f.about("rdma devices"), check_state::note, "mlx5_0:1 DOWN, 100 Gb/sec (4X EDR)");
  f.put("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  expect(f.about("rdma devices"), check_state::note, "no /dev/infiniband/uverbs*");
  f.put("/dev/infiniband/uverbs0", "");
  expect(f.about("rdma devices"), check_state::ok, "mlx5_0:1 ACTIVE");
}

BOOST_AUTO_TEST_CASE(gpus_are_listed_by_model) {
  fake_machine f;
  f.put("/dev/nvidiactl", "").put("/dev/nvidia-uvm", "");
  expect(f.about("gpus"), check_state::missing, "none");
  f.put("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1");
  expect(f.about("gpus"), check_state::note, "NVIDIA H200, but no /dev/nvidia*");
  f.put("/dev/nvidia0", "");
  expect(f.about("gpus"), check_state::ok, "NVIDIA H200");
}

BOOST_AUTO_TEST_CASE(persistent_memory_is_listed) {
  fake_machine f;
  expect(f.about("persistent memory"), check_state::missing, "none");
  f.put("/sys/bus/nd/devices/region0/size", "1");
  expect(f.about("persistent memory"), check_state::note, "region0");
  f.put("/dev/pmem0", "").put("/dev/dax1.0", "");
  expect(f.about("persistent memory"), check_state::ok, "pmem0, dax1.0");
}

BOOST_AUTO_TEST_CASE(a_directory_is_tried_with_direct_writes) {
  fake_machine f;
  f.m.path = "/data";
  expect(f.about("direct i/o"), check_state::ok, "/data");
  f.m.calls.direct_write = [](const std::string&) { return EINVAL; };
  expect(f.about("direct i/o"), check_state::missing, "no O_DIRECT");
  f.m.calls.direct_write = [](const std::string&) { return EACCES; };
  expect(f.about("direct i/o"), check_state::missing, "/data: Permission denied");
  f.m.calls.free_bytes = [](const std::string&, std::uint64_t& out) {
    out = 1 << 30;
    return 0;
  };
  expect(f.about("free space"), check_state::note, "1 GiB in /data");
  f.put("/sys/fs/cgroup/io.max", "8:0 rbps=1048576 wbps=max");
  expect(f.about("i/o limits"), check_state::note, "rbps=1048576");
}

BOOST_AUTO_TEST_CASE(the_command_prints_every_check_of_this_machine_as_json) {
  std::ostringstream out;
  std::ostringstream err;
  BOOST_TEST(millrace::tools::run({"doctor", "--json", "--path", "/tmp"}, out, err) == 0);
  auto all = nlohmann::json::parse(out.str());
  BOOST_TEST(all.size() == 19u);
  for (auto& f : all) {
    auto state = f.at("state").get<std::string>();
    BOOST_TEST((state == "ok" || state == "note" || state == "missing"));
    BOOST_TEST(f.at("remedy").get<std::string>().empty() == (state == "ok"));
  }
}

BOOST_AUTO_TEST_CASE(tls_in_the_kernel_is_seen) {
  fake_machine without;
  expect(without.about("kernel tls"), check_state::note, "not loaded");
  fake_machine with;
  expect(with.put("/proc/net/tls_stat", "TlsCurrTxSw 0").about("kernel tls"), check_state::ok, "");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(doctor_of_clusters)

namespace {

millrace::result<std::vector<std::string>> resolve(const std::string& host) {
  if (host == "nowhere")
    return millrace::fail(millrace::errc::unavailable, "Name or service not known");
  return std::vector<std::string>{host == "loop" ? "127.0.1.1" : "10.0.0.2"};
}

int listen_anywhere(const std::string&, std::uint16_t port) {
  return port == 1 ? EADDRINUSE : port == 2 ? EADDRNOTAVAIL : 0;
}

std::vector<finding> examined(const std::string& text, const std::string& own = {}) {
  auto settings = millrace::parse_configuration(text, "t.yaml");
  BOOST_TEST_REQUIRE(settings.has_value(), (settings ? "" : settings.error().to_string()));
  return examine_cluster(*settings, own, {resolve, listen_anywhere});
}

finding called(const std::vector<finding>& all, const std::string& check) {
  auto found = std::find_if(all.begin(), all.end(), [&](auto& f) { return f.check == check; });
  BOOST_TEST_REQUIRE((found != all.end()), check << " is no check");
  return *found;
}

std::string hosts(const std::string& port_of_a = "7") {
  return "security: {secret: /absent/secret}\ncluster:\n  nodes:\n"
         "  - {name: a, host: good, listen: 'tls://0.0.0.0:" +
    port_of_a +
    "', providers: []}\n"
    "  - {name: loop, providers: []}\n  - {name: nowhere, providers: []}\n";
}

} // namespace

BOOST_AUTO_TEST_CASE(names_of_hosts_are_looked_up) {
  auto all = examined(hosts());
  expect(called(all, "host good"), check_state::ok, "10.0.0.2");
  expect(called(all, "host loop"), check_state::note, "which only this host reaches");
  expect(called(all, "host nowhere"), check_state::missing, "Name or service not known");
}

BOOST_AUTO_TEST_CASE(ports_of_the_own_node_are_tried) {
  expect(called(examined(hosts("7"), "a"), "port of a"), check_state::ok, "is free");
  expect(called(examined(hosts("1"), "a"), "port of a"), check_state::note, "in use");
  expect(called(examined(hosts("2"), "a"), "port of a"), check_state::missing, "Cannot assign");
  for (auto& f : examined(hosts("1")))
    BOOST_TEST(!f.check.starts_with("port"));
}

BOOST_AUTO_TEST_CASE(files_of_security_are_read) {
  expect(called(examined(hosts()), "security"), check_state::missing, "/absent/secret");
  expect(called(examined(""), "security"), check_state::ok, "one host");
  expect(
    called(
      examined("cluster: {nodes: [{name: a, providers: []}, {name: b, providers: []}]}"),
      "security"),
    check_state::note, "on their own host only");
}

BOOST_AUTO_TEST_CASE(ports_of_rdma_devices_say_which_gid_was_chosen_and_why) {
  BOOST_TEST(examine_verbs({}).empty());
  millrace::transport::verbs_state state;
  state.locked_memory = "65536";
  state.ports.resize(2);
  state.ports[0].device = "rxe0";
  state.ports[0].port = 1;
  state.ports[0].active = true;
  state.ports[0].gid = "::ffff:10.0.0.1";
  state.ports[0].gid_index = 1;
  state.ports[0].gid_rule = "an IPv4 address";
  state.ports[1].device = "rxe1";
  state.ports[1].port = 1;
  state.ports[1].remark = "the port is down";
  auto all = examine_verbs(state);
  expect(called(all, "rdma rxe0:1"), check_state::ok, "gid 1 ::ffff:10.0.0.1 (an IPv4 address)");
  expect(called(all, "rdma rxe1:1"), check_state::note, "not active");
  expect(called(all, "rdma memory"), check_state::note, "65536");
}

BOOST_AUTO_TEST_CASE(gpus_say_by_which_way_their_bytes_would_leave) {
  using millrace::transport::device_facts;
  millrace::transport::verbs_state state;
  state.ports.resize(3);
  for (std::size_t i = 0; i < 3; ++i)
    state.ports[i].port = 1;
  state.ports[0].device = "mlx5_0";
  state.ports[0].dma_buf = true;
  state.ports[1].device = "rxe0";
  state.ports[2].device = "rxe1";
  state.ports[2].remark = "the port is down";
  std::vector<device_facts> gpus{
    {"cuda:0", "A", 1u << 30, true, false}, {"cuda:1", "B", 1u << 30, false, true}};
  auto all = examine_gpus(gpus, state);
  expect(
    called(all, "gpu cuda:0"), check_state::note,
    "A, 1 GiB, mlx5_0:1 by dma-buf, rxe0:1 by staging");
  expect(
    called(all, "gpu cuda:1"), check_state::ok,
    "B, 1 GiB, mlx5_0:1 by peer memory, rxe0:1 by peer memory");
  expect(called(examine_gpus(gpus, {}), "gpu cuda:0"), check_state::ok, "staging over tcp");
  BOOST_TEST(examine_gpus({}, state).empty());
}

BOOST_AUTO_TEST_CASE(processors_near_devices_are_shown) {
  fake_machine f;
  f.m.topology_xml = millrace::testing::gpu_host;
  for (std::string device : {"mlx5_0", "mlx5_2", "mlx5_9"})
    f.put("/sys/class/infiniband/" + device + "/ports/1/state", "4: ACTIVE");
  f.put("/dev/infiniband/uverbs0", "");
  expect(
    f.about("rdma devices"), check_state::ok,
    "mlx5_0:1 ACTIVE, near processors 0, mlx5_2:1 ACTIVE, near processors 1, mlx5_9:1 ACTIVE");
  std::vector<millrace::transport::device_facts> gpus(2);
  gpus[0].name = "cuda:0";
  gpus[0].model = "A";
  gpus[0].pci_address = "0000:02:00.0";
  gpus[1].name = "cuda:1";
  auto all = examine_gpus(gpus, {}, millrace::testing::gpu_host);
  expect(called(all, "gpu cuda:0"), check_state::ok, "near processors 0");
  BOOST_TEST(called(all, "gpu cuda:1").value.find("near") == std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
