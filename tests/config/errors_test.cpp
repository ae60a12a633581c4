// Tests every kind of mistake: its place, its sentence, and the nearest thing that would have been
// right.
#include "expect.hpp"

#include <millrace/tests/support/other_user.hpp>
#include <millrace/transport/builtin.hpp>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

using namespace millrace;
using namespace millrace::config;

namespace {

struct temporary_file {
  std::string path = "/tmp/millrace-config-test-" + std::to_string(getpid());
  explicit temporary_file(const std::string& text) { std::ofstream{path} << text; }
  ~temporary_file() { std::remove(path.c_str()); }
};

// The names of drivers and of kinds of buckets, as errors list them.
std::string drivers() {
  std::vector<std::string_view> names;
  for (auto& kind : transport::builtin_drivers())
    names.push_back(kind.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string buckets() {
  return fmt::format("{}", fmt::join(configuration_schema().bucket_names(), ", "));
}

std::string buckets_with(std::string_view key) {
  std::vector<std::string_view> names;
  for (auto& kind : configuration_schema().buckets())
    if (kind.keys.number_of(key))
      names.push_back(kind.keys.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

} // namespace

BOOST_AUTO_TEST_SUITE(config_errors)

BOOST_AUTO_TEST_CASE(unknown_keys_are_named_with_the_nearest_known_one) {
  BOOST_TEST(
    bad("staging:\n  siez: 1GiB\n") ==
    "t.yaml:2:3: unknown key 'siez' in staging; did you mean 'size'?");
  BOOST_TEST(
    bad("stagging: {}\n") ==
    "t.yaml:1:1: unknown key 'stagging' in the configuration; did you mean 'staging'?");
  BOOST_TEST(
    bad("providers:\n  - name: a\n    Capacity: 1GiB\n") ==
    "t.yaml:3:5: unknown key 'Capacity' in providers[0]; did you mean 'capacity'?");
  BOOST_TEST(
    bad("channel: {peer-timeout: 5s}") ==
    "t.yaml:1:11: unknown key 'peer-timeout' in channel; did you mean 'peer_timeout'?");
  BOOST_TEST(
    bad("cluster:\n  node: []\n") ==
    "t.yaml:2:3: unknown key 'node' in cluster; did you mean 'nodes'?");
  BOOST_TEST(
    bad("cluster: {nodes: [{name: a, provider: []}]}") ==
    "t.yaml:1:29: unknown key 'provider' in cluster.nodes[0]; did you mean 'providers'?");
}

BOOST_AUTO_TEST_CASE(a_key_in_the_wrong_section_is_told_where_it_belongs) {
  BOOST_TEST(
    bad("staging: {capacity: 1GiB}") ==
    "t.yaml:1:11: unknown key 'capacity' in staging; did you mean 'providers[].capacity'?");
}

BOOST_AUTO_TEST_CASE(a_key_like_no_other_gets_the_list) {
  BOOST_TEST(
    bad("staging: {xyzzyx: 1}") ==
    "t.yaml:1:11: unknown key 'xyzzyx' in staging (known: size, huge_pages, lock, block, lease)");
}

BOOST_AUTO_TEST_CASE(wrong_types_are_refused_where_they_stand) {
  BOOST_TEST(
    bad("staging: 1GiB\n") ==
    "t.yaml:1:10: staging: expected a group of keys, found a single value");
  BOOST_TEST(
    bad("staging:\n  size: [1GiB]\n") ==
    "t.yaml:2:9: staging.size: expected a single value, found a list");
  BOOST_TEST(
    bad("staging:\n  size:\n") ==
    "t.yaml:2:3: staging.size: expected a single value, found nothing");
  BOOST_TEST(
    bad("transport: {prefer: shm}") ==
    "t.yaml:1:21: transport.prefer: expected a list, found a single value");
  BOOST_TEST(
    bad("node: {allow_users: [[a]]}") ==
    "t.yaml:1:22: node.allow_users: expected single values in the list, found a list");
  BOOST_TEST(
    bad("providers: {name: a}") ==
    "t.yaml:1:12: providers: expected a list, found a group of keys");
  BOOST_TEST(
    bad("providers: [fast]") ==
    "t.yaml:1:13: providers[0]: expected a group of keys, found a single value");
  BOOST_TEST(
    bad("- a\n") == "t.yaml:1:1: the configuration: expected a group of keys, found a list");
  BOOST_TEST(
    bad("hello") ==
    "t.yaml:1:1: the configuration: expected a group of keys, found a single value");
  BOOST_TEST(
    bad("cluster: {nodes: }") == "t.yaml:1:11: cluster.nodes: expected a list, found nothing");
}

BOOST_AUTO_TEST_CASE(keys_given_twice_are_refused) {
  BOOST_TEST(
    bad("staging:\n  size: 1GiB\n  lock: off\n  size: 2GiB\n") ==
    "t.yaml:4:3: key 'size' is given twice, first in line 2");
  BOOST_TEST(
    bad("node: {}\nnode: {}\n") == "t.yaml:2:1: key 'node' is given twice, first in line 1");
  BOOST_TEST(
    bad("transport: {prefer: [shm, shm]}") ==
    "t.yaml:1:27: transport.prefer: 'shm' is given twice");
}

BOOST_AUTO_TEST_CASE(values_of_the_wrong_form_are_refused) {
  BOOST_TEST(
    bad("staging: {size: 1GB}") ==
    "t.yaml:1:17: staging.size: '1GB' is not a size such as 4096, 64KiB, 512MiB or 1GiB; did you "
    "mean '1GiB'?");
  BOOST_TEST(
    bad("staging: {size: lots}") ==
    "t.yaml:1:17: staging.size: 'lots' is not a size such as 4096, 64KiB, 512MiB or 1GiB");
  BOOST_TEST(
    bad("channel: {heartbeat: 5}") ==
    "t.yaml:1:22: channel.heartbeat: '5' is not a duration such as 50us, 500ms, 5s or 2m; did you "
    "mean '5s'?");
  BOOST_TEST(
    bad("channel: {heartbeat: 20500us}") ==
    "t.yaml:1:22: channel.heartbeat: '20500us' is not a whole number of milliseconds");
  BOOST_TEST(
    bad("transport: {movers: -1}") == "t.yaml:1:21: transport.movers: '-1' is not a whole number");
  BOOST_TEST(
    bad("providers: [{name: a, checksums: yes}]") ==
    "t.yaml:1:34: providers[0].checksums: 'yes' is neither true nor false; did you mean 'true'?");
  BOOST_TEST(
    bad("providers: [{name: a, checksums: 'Off'}]") ==
    "t.yaml:1:34: providers[0].checksums: 'Off' is neither true nor false; did you mean 'false'?");
  BOOST_TEST(
    bad("staging: {lock: of}") ==
    "t.yaml:1:17: staging.lock: 'of' is not one of auto, off; did you mean 'off'?");
  BOOST_TEST(
    bad("staging: {mode: on_demand}") ==
    "t.yaml:1:11: staging.mode: this key does not exist any more; staging memory is always pinned. "
    "Remove the key");
  BOOST_TEST(
    bad("providers: [{name: a, bucket: rocks}]") ==
    "t.yaml:1:31: providers[0].bucket: 'rocks' is not one of " + buckets() +
      "; did you mean 'rocksdb'?");
  BOOST_TEST(
    bad("transport: {prefer: [shm, carrier_pigeon]}") ==
    "t.yaml:1:27: transport.prefer: 'carrier_pigeon' is not one of " + drivers());
  BOOST_TEST(
    bad("transport: {prefer: []}") ==
    "t.yaml:1:21: transport.prefer: needs at least one of " + drivers());
  BOOST_TEST(
    bad("node: {name: 'a b'}") ==
    "t.yaml:1:14: node.name: 'a b' is not a name: 1 to 64 of A-Z a-z 0-9 . _ -");
  BOOST_TEST(
    bad("node: {socket_mode: 0888}") ==
    "t.yaml:1:21: node.socket_mode: '0888' is not a mode such as 0600 or 0666");
  BOOST_TEST(
    bad("node: {socket_mode: 1777}") ==
    "t.yaml:1:21: node.socket_mode: '1777' is not a mode such as 0600 or 0666");
  BOOST_TEST(
    bad("node: {allow_users: [bob, 'a b']}") ==
    "t.yaml:1:27: node.allow_users: 'a b' is not the name or number of a user");
  BOOST_TEST(
    bad("providers: [{name: a, bucket: rocksdb, path: \"a\\0b\"}]") ==
    "t.yaml:1:46: providers[0].path: 'a?b' is not a path");
}

BOOST_AUTO_TEST_CASE(addresses_are_absolute_unix_sockets_or_ports_of_hosts) {
  BOOST_TEST(
    bad("node: {listen: 'tls://host:7710'}") ==
    "t.yaml:1:8: node.listen: tls://host:7710 needs the key security.secret, the file of the "
    "cluster's secret (`millrace cluster secret FILE` makes one), or certificates");
  std::string secret = "security: {secret: /s}\n";
  for (std::string address :
       {"tls://host:7710", "tls://h.example:1", "tls://10.0.0.2:7710", "tls://[::1]:65535",
        "tls://[fe80::1%eth0]:7710", "tls://0.0.0.0:1"})
    BOOST_TEST(
      (good(secret + "node: {listen: '" + address + "'}").node.listen ==
       std::vector<std::string>{address}));
  auto refused = [&](const std::string& address) {
    return bad(secret + "node: {listen: '" + address + "'}");
  };
  std::string where = "t.yaml:2:16: node.listen: ";
  BOOST_TEST(refused("tls://host") == where + "'tls://host': it reads tls://HOST:PORT");
  BOOST_TEST(refused("tls://:1") == where + "'tls://:1': '' is not the name or address of a host");
  BOOST_TEST(
    refused("tls://::1:7710") ==
    where + "'tls://::1:7710': an IPv6 address stands in brackets, as in tls://[::1]:7710");
  BOOST_TEST(
    refused("tls://[::g]:1") ==
    where + "'tls://[::g]:1': what stands in brackets is no IPv6 address");
  for (std::string port : {"0", "65536", "x", "1x", "", "-1"})
    BOOST_TEST(
      refused("tls://h:" + port) ==
      where + "'tls://h:" + port + "': the port is no number from 1 to 65535");
  BOOST_TEST(refused("tls://1.2.3:1") == where + "'tls://1.2.3:1': '1.2.3' is not an IPv4 address");
  BOOST_TEST(
    refused("tcp://h:1") == where + "'tcp://h:1' is not an address; did you mean 'tls://h:1'?");
  BOOST_TEST(
    bad("node: {listen: /run/s}") ==
    "t.yaml:1:16: node.listen: '/run/s' is not an address; did you mean 'unix:/run/s'?");
  BOOST_TEST(
    bad("node: {listen: unix:s}") ==
    "t.yaml:1:16: node.listen: 'unix:s' is not an address: it reads unix:/absolute/path, or "
    "tls://HOST:PORT between machines");
  auto path = "/" + std::string(106, 'p');
  BOOST_TEST(
    (good("node: {listen: 'unix:" + path + "'}").node.listen ==
     std::vector<std::string>{"unix:" + path}));
  auto text = bad("node: {listen: 'unix:" + path + "p'}");
  BOOST_TEST((text.find("the path has 108 bytes, a socket's has at most 107") != text.npos));
}

BOOST_AUTO_TEST_CASE(values_out_of_range_are_refused) {
  BOOST_TEST(
    bad("staging:\n  size: 4KiB\n") ==
    "t.yaml:2:9: staging.size: '4KiB' is below the least allowed, 1MiB");
  BOOST_TEST(
    bad("transport: {movers: 65}") ==
    "t.yaml:1:21: transport.movers: '65' is above the most allowed, 64");
  BOOST_TEST(
    bad("providers: [{name: a, weight: 0}]") ==
    "t.yaml:1:31: providers[0].weight: '0' is below the least allowed, 1");
  BOOST_TEST(
    bad("channel: {poll: 2s}") == "t.yaml:1:17: channel.poll: '2s' is above the most allowed, 1s");
  BOOST_TEST(
    bad("client: {connect_timeout: 90m}") ==
    "t.yaml:1:27: client.connect_timeout: '90m' is above the most allowed, 1h");
}

BOOST_AUTO_TEST_CASE(sizes_that_do_not_fit_each_other_are_refused) {
  BOOST_TEST(
    bad("channel: {frame_max: 128MiB}") ==
    "t.yaml:1:11: channel.frame_max (128MiB) must not be above channel.send_queue_max (64MiB)");
  BOOST_TEST(
    bad("channel: {frame_max: 1GiB, send_queue_max: 1GiB}") ==
    "t.yaml:1:11: channel.frame_max (1GiB) must not be above channel.buffers_max (512MiB)");
  BOOST_TEST(
    bad("channel: {send_queue_max: 1MiB}") ==
    "t.yaml:1:11: channel.frame_max (16MiB) must not be above channel.send_queue_max (1MiB)");
  BOOST_TEST(
    bad("channel: {frame_max: 1GiB, send_queue_max: 1GiB, buffers_max: 1GiB}") ==
    "t.yaml:1:11: channel.frame_max (1GiB) must not be above limits.requests_size (512MiB)");
  BOOST_TEST(
    bad("channel: {frame_max: 100MiB, send_queue_max: 1GiB}\nlimits: {requests_size: 64MiB}\n") ==
    "t.yaml:1:11: channel.frame_max (100MiB) must not be above limits.requests_size (64MiB)");
  BOOST_TEST(
    bad("channel:\n  heartbeat: 6s\n") ==
    "t.yaml:2:3: channel.peer_timeout (10s) must be at least twice channel.heartbeat (6s)");
  BOOST_TEST(
    bad("verbs: {mtu: 1500}") ==
    "t.yaml:1:9: verbs.mtu (1500) is not the size of a packet: 256, 512, 1024, 2048 or 4096 bytes; "
    "0 takes the smaller value of the two ports");
  BOOST_TEST(
    bad("limits: {request_timeout: 2h}") ==
    "t.yaml:1:10: limits.request_timeout (2h) must not be above limits.request_timeout_max (1h)");
  BOOST_TEST(
    bad("data: {capacity: 1GiB, quota: 1KiB}") ==
    "t.yaml:1:24: data.quota (1KiB) must be 0, or at least data.region_size (512MiB)");
  BOOST_TEST(
    bad("client: {reconnect_backoff_min: 3s}") ==
    "t.yaml:1:10: client.reconnect_backoff_min (3s) must not be above "
    "client.reconnect_backoff_max (2s)");
  BOOST_TEST(
    bad("staging: {size: 32MiB}\nproviders: [{name: k, bucket: rocksdb, path: p}]") ==
    "t.yaml:1:11: staging.size (32MiB) cannot hold one operation of provider k: "
    "limits.windows_max (8) windows of 8MiB");
  BOOST_TEST(
    bad("providers: [{name: k, bucket: rocksdb, path: p, inline_max: 4MiB, window: 1MiB}]") ==
    "t.yaml:1:49: providers[0].inline_max (4MiB) must not be above providers[0].window (1MiB)");
  BOOST_TEST(
    bad("providers:\n- {name: a, capacity: 40TiB}\n- {name: b, capacity: 40TiB}\n") ==
    "t.yaml:3:13: providers[1].capacity: the staging memory of node n0 and the memory of its "
    "providers together exceed 64TiB");
}

BOOST_AUTO_TEST_CASE(providers_need_what_their_bucket_needs) {
  BOOST_TEST(
    bad("providers: [{bucket: memory}]") == "t.yaml:1:13: providers[0] needs the key 'name'");
  BOOST_TEST(
    bad("providers: [{name: a, bucket: rocksdb}]") ==
    "t.yaml:1:13: providers[0] needs the key 'path', since its bucket is rocksdb");
  BOOST_TEST(
    bad("providers:\n- name: a\n  path: /p\n") ==
    "t.yaml:3:3: providers[0].path: a bucket of kind memory has no such key; these kinds have "
    "it: " +
      buckets_with("path"));
  BOOST_TEST(
    bad("providers: [{name: a, bucket: pmem, path: /p, inline_max: 1MiB}]") ==
    "t.yaml:1:47: providers[0].inline_max: a bucket of kind pmem has no such key; these kinds have "
    "it: rocksdb");
  BOOST_TEST(
    bad("providers: [{name: a, bucket: pmem}]") ==
    "t.yaml:1:13: providers[0] needs the key 'path', since its bucket is pmem");
  BOOST_TEST(
    bad("providers: [{name: a, io_threads: 2, bucket: memory}]") ==
    "t.yaml:1:23: providers[0].io_threads: a bucket of kind memory has no such key; these kinds "
    "have it: " +
      buckets_with("io_threads"));
  BOOST_TEST(bad("providers: []") == "t.yaml:1:12: providers: needs at least one entry");
  std::string many = "providers:\n";
  for (int i = 0; i < 65; ++i)
    many += "- name: p" + std::to_string(i) + "\n";
  BOOST_TEST(bad(many) == "t.yaml:66:3: providers: more than 64 entries");
}

BOOST_AUTO_TEST_CASE(names_and_directories_are_used_once) {
  BOOST_TEST(
    bad("providers:\n- name: a\n- name: a\n") ==
    "t.yaml:3:3: providers[1].name: the provider name a is already taken by providers[0].name");
  BOOST_TEST(
    bad("providers:\n- {name: a, bucket: rocksdb, path: /x/y}\n"
        "- {name: b, bucket: rocksdb, path: /x/./y/}\n") ==
    "t.yaml:3:30: providers[1].path: the path /x/y is already taken by providers[0].path");
  BOOST_TEST(
    bad("providers:\n- {name: a, bucket: rocksdb, path: /x/y}\n"
        "- {name: b, bucket: pmem, path: /x/y/pool}\n") ==
    "t.yaml:3:27: providers[1].path: /x/y/pool lies inside /x/y (providers[0].path)");
  BOOST_TEST(
    bad("providers:\n- {name: a, bucket: rocksdb, path: /x/y}\n"
        "- {name: b, bucket: pmem, path: /z, flush_to: /x/y}\n") ==
    "t.yaml:3:37: providers[1].flush_to: /x/y lies inside /x/y (providers[0].path)");
  // A relative path counts from here.
  auto here = std::filesystem::current_path().string();
  for (auto other : {here + "/x/pool", here + "/x", std::string{"./x/pool"}, std::string{"y/../x"}})
    BOOST_TEST(
      bad(
        "providers:\n- {name: a, bucket: rocksdb, path: x}\n"
        "- {name: b, bucket: pmem, path: " +
        other + "}\n")
        .starts_with("t.yaml:3:27: providers[1].path: "),
      other);
  BOOST_TEST(
    bad("providers:\n- {name: a, bucket: pmem, path: /x, capacity: 15MiB}\n") ==
    "t.yaml:2:47: providers[0].capacity: '15MiB' is below the least allowed, 16MiB");
  BOOST_TEST(
    bad("providers:\n- {name: a}\n- {name: b, id: a}\n") ==
    "t.yaml:3:13: providers[1].id: the provider id a is already taken by providers[0].name");
  BOOST_TEST(
    bad("providers:\n- {name: a, id: i}\n- {name: b, id: i}\n") ==
    "t.yaml:3:13: providers[1].id: the provider id i is already taken by providers[0].id");
}

BOOST_AUTO_TEST_CASE(users_that_the_socket_keeps_out_are_refused) {
  BOOST_TEST(
    (bad("node:\n  allow_users: [bob]\n").find("t.yaml:2:3: node.allow_users: the permissions") ==
     0));
  BOOST_TEST(
    (bad("node: {allow_users: [bob], socket_mode: '0644'}").find("0660") != std::string::npos));
  BOOST_TEST(good("node: {allow_users: [bob], socket_mode: '0660'}").node.socket_mode == 0660u);
}

BOOST_AUTO_TEST_CASE(what_is_not_yaml_says_where) {
  BOOST_TEST((bad("node: {name: a\n").find("t.yaml:2:1: not YAML: ") == 0));
  BOOST_TEST((bad("a: b: c\n").find("t.yaml:1:5: not YAML: ") == 0));
  for (auto text :
       {"staging:\n\tsize: 1GiB\n", "staging:\n  lock: off\n\tsize: 1GiB\n",
        "providers:\n  - name: a\n  \t  weight: 2\n"})
    BOOST_TEST(
      (bad(text).find("a tab; YAML is indented with spaces") != std::string::npos), bad(text));
  BOOST_TEST((bad("node: *nowhere\n").find("t.yaml:1:7: not YAML: ") == 0));
  BOOST_TEST(bad("node: {}\n---\nnode: {}\n").find("a second document") != std::string::npos);
  BOOST_TEST(bad("? [a]\n: b\n") == "t.yaml:1:3: a key must be a word");
  BOOST_TEST(bad("~: b\n") == "t.yaml:1:1: a key must be a word");
}

BOOST_AUTO_TEST_CASE(a_file_is_read_and_named_in_errors) {
  temporary_file file{"node: {name: filed}\n"};
  BOOST_TEST(load_configuration(file.path)->node.name == "filed");
  temporary_file wrong{"nodes: {}\n"};
  BOOST_TEST(
    load_configuration(wrong.path).error().detail() ==
    wrong.path + ":1:1: unknown key 'nodes' in the configuration; did you mean 'node'?");
}

BOOST_AUTO_TEST_CASE(files_that_cannot_be_read_say_why) {
  auto missing = load_configuration("/nonexistent/millrace.yaml");
  BOOST_TEST((missing.error().code() == errc::not_found));
  BOOST_TEST(
    missing.error().detail() ==
    "opening the configuration /nonexistent/millrace.yaml: No such file or directory");
  BOOST_TEST(
    load_configuration("/tmp").error().detail() ==
    "reading the configuration /tmp: Is a directory");
}

BOOST_AUTO_TEST_CASE(a_file_that_the_user_may_not_read_is_refused) {
  temporary_file locked{"{}"};
  BOOST_TEST_REQUIRE(::chmod(locked.path.c_str(), 0) == 0);
  auto load = [&] { return load_configuration(locked.path); };
  // Root reads every file.
  auto refused = ::geteuid() == 0 ? millrace::testing::as_user(54'321, load) : load();
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::permission_denied));
}

BOOST_AUTO_TEST_SUITE_END()
