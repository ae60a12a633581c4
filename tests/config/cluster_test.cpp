// Tests one file for several nodes: which node is picked, and where clients find the providers.
#include "expect.hpp"

using namespace millrace;
using namespace millrace::config;

namespace {

using list = std::vector<std::string>;

constexpr auto two_nodes = R"(staging: {size: 128MiB}
node: {socket_mode: '0666', log_level: warn}
cluster:
  nodes:
    - name: mem0
      listen: unix:/run/mem0.sock
      providers: [{name: fast0, weight: 2}, {name: fast1, group: other}]
    - name: disk
      listen: unix:/run/disk.sock
      providers:
        - {name: kept, bucket: rocksdb, path: /var/kept}
)";

} // namespace

BOOST_AUTO_TEST_SUITE(config_cluster)

BOOST_AUTO_TEST_CASE(a_node_is_picked_by_name_and_inherits_the_rest) {
  auto all = good(two_nodes);
  BOOST_TEST(all.node.name == "");
  BOOST_TEST(all.providers.empty());
  auto disk = all.for_node("disk").value();
  BOOST_TEST(disk.node.name == "disk");
  BOOST_TEST((disk.node.listen == list{"unix:/run/disk.sock"}));
  BOOST_TEST(disk.node.socket_mode == 0666u);
  BOOST_TEST(disk.node.log_level == "warn");
  BOOST_TEST(disk.staging.size_bytes == 128u << 20);
  BOOST_TEST_REQUIRE(disk.providers.size() == 1u);
  BOOST_TEST(disk.providers[0].name == "kept");
  BOOST_TEST(disk.nodes.size() == 2u);
  BOOST_TEST(all.for_node("mem0")->providers.size() == 2u);
}

BOOST_AUTO_TEST_CASE(several_nodes_and_no_name_is_an_error_that_lists_them) {
  auto none = good(two_nodes).for_node();
  BOOST_TEST(
    none.error().detail() ==
    "the configuration describes several nodes, name the one to be: mem0, disk");
  auto wrong = good(two_nodes).for_node("mem1");
  BOOST_TEST((wrong.error().code() == errc::invalid_argument));
  BOOST_TEST(
    wrong.error().detail() ==
    "the configuration has no node mem1; did you mean 'mem0'? (nodes: mem0, disk)");
}

BOOST_AUTO_TEST_CASE(the_only_node_needs_no_name) {
  auto s = good("cluster: {nodes: [{name: solo, providers: [{name: p}]}]}");
  BOOST_TEST(s.node.name == "solo");
  BOOST_TEST((s.node.listen == list{default_listen("solo")}));
  BOOST_TEST(s.providers.at(0).name == "p");
  BOOST_TEST((s.for_node().value() == s));
  BOOST_TEST((s.for_node("solo").value() == s));
  auto plain = good("");
  BOOST_TEST((plain.for_node().value() == plain));
  BOOST_TEST((plain.for_node("n0").value() == plain));
  BOOST_TEST(!plain.for_node("n1"));
}

BOOST_AUTO_TEST_CASE(every_node_knows_all_providers_and_addresses) {
  auto all = good(two_nodes);
  for (auto& s : {all, *all.for_node("disk")}) {
    BOOST_TEST_REQUIRE(s.nodes.size() == 2u);
    BOOST_TEST((s.nodes[0].addresses() == list{"unix:/run/mem0.sock"}));
    BOOST_TEST(s.nodes[0].providers.at(0).weight == 2u);
    BOOST_TEST(s.nodes[0].providers.at(1).group == "other");
    BOOST_TEST(s.nodes[0].providers.at(1).bucket == "memory");
    BOOST_TEST(s.nodes[1].providers.at(0).bucket == "rocksdb");
  }
  BOOST_TEST((good("").nodes.at(0).addresses() == list{default_listen("n0")}));
}

BOOST_AUTO_TEST_CASE(what_belongs_to_a_node_is_refused_beside_a_cluster) {
  std::string cluster = "cluster: {nodes: [{name: a, providers: [{name: p}]}]}\n";
  for (std::string key : {"name: b", "listen: 'unix:/b'", "host: b"}) {
    auto text = bad(cluster + "node: {" + key + "}");
    BOOST_TEST((text.find("t.yaml:2:8: node." + key.substr(0, key.find(':'))) == 0), text);
    BOOST_TEST((text.find("every entry of cluster.nodes has its own") != text.npos));
  }
  BOOST_TEST(
    (bad("providers: [{name: q}]\n" + cluster)
       .find("t.yaml:1:1: providers: a file with 'cluster' does not take this key") == 0));
}

BOOST_AUTO_TEST_CASE(names_are_unique_across_the_cluster) {
  auto file = [](std::string_view second) {
    return "cluster:\n  nodes:\n  - {name: a, listen: 'unix:/a', providers: [{name: p}]}\n  - " +
      std::string{second} + "\n";
  };
  BOOST_TEST(
    bad(file("{name: a, providers: [{name: q}]}")) ==
    "t.yaml:4:6: cluster.nodes[1].name: the name a is already taken by cluster.nodes[0].name");
  BOOST_TEST(
    bad(file("{name: b, listen: 'unix:/a', providers: [{name: q}]}")) ==
    "t.yaml:4:15: cluster.nodes[1].listen: the address unix:/a is already taken by "
    "cluster.nodes[0].listen");
  BOOST_TEST(
    bad(file("{name: b, providers: [{name: p}]}")) ==
    "t.yaml:4:28: cluster.nodes[1].providers[0].name: the provider name p is already taken by "
    "cluster.nodes[0].providers[0].name");
}

BOOST_AUTO_TEST_CASE(every_node_of_a_cluster_has_a_name_and_providers) {
  BOOST_TEST(
    bad("cluster: {nodes: [{providers: [{name: p}]}]}") ==
    "t.yaml:1:19: cluster.nodes[0] needs the key 'name'");
  BOOST_TEST(
    bad("cluster: {nodes: [{name: a}]}") ==
    "t.yaml:1:19: cluster.nodes[0] needs the key 'providers'");
  BOOST_TEST(bad("cluster: {nodes: []}") == "t.yaml:1:18: cluster.nodes: needs at least one entry");
  BOOST_TEST(bad("cluster: {}") == "t.yaml:1:10: cluster needs the key 'nodes'");
  BOOST_TEST(bad("cluster:\n") == "t.yaml:1:1: cluster needs the key 'nodes'");
}

BOOST_AUTO_TEST_CASE(sizes_are_checked_in_every_node) {
  auto text = std::string{two_nodes} + "limits: {windows_max: 32}\n";
  BOOST_TEST(
    (bad(text).find("t.yaml:1:11: staging.size (128MiB) cannot hold one operation of "
                    "provider kept") == 0));
}

BOOST_AUTO_TEST_SUITE_END()
