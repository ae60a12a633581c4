// Tests the addresses of nodes, what proves a cluster's members, and which node a process is on its
// host or in a Slurm job.
#include "expect.hpp"

#include <millrace/config/host_list.hpp>
#include <millrace/config/place.hpp>

using namespace millrace;
using namespace millrace::config;

namespace {

using list = std::vector<std::string>;

constexpr auto secret = "security: {secret: /s}\n";

std::string cluster_of(std::string_view more, const list& names) {
  std::string text = std::string{more} + "cluster:\n  nodes:\n";
  for (auto& name : names)
    text += "  - {name: " + name + ", providers: [{name: p-" + name + "}]}\n";
  return text;
}

list expanded(std::string_view text) {
  auto hosts = expand_host_list(text);
  return hosts ? *hosts : list{"error"};
}

std::string picked(const settings& all, const surroundings& here) {
  auto node = pick_node(all, "", here);
  return node ? node->node.name : node.error().detail();
}

surroundings on_host(std::string name) {
  surroundings here;
  here.host_name = std::move(name);
  return here;
}

surroundings in_job(std::string hosts, std::string this_host, std::string task) {
  auto here = on_host(this_host);
  here.slurm_node_list = std::move(hosts);
  here.slurm_node_name = std::move(this_host);
  here.slurm_task = std::move(task);
  return here;
}

} // namespace

BOOST_AUTO_TEST_SUITE(config_addresses)

BOOST_AUTO_TEST_CASE(a_node_has_one_address_or_several) {
  auto s = good(std::string{secret} + "node: {listen: ['unix:/a', 'tls://h:1', 'tls://[::1]:2']}");
  BOOST_TEST((s.node.listen == list{"unix:/a", "tls://h:1", "tls://[::1]:2"}));
  BOOST_TEST((s.nodes.at(0).addresses() == s.node.listen));
  BOOST_TEST(
    bad("node: {listen: ['unix:/a', 'unix:/a']}") ==
    "t.yaml:1:28: node.listen: 'unix:/a' is given twice");
  BOOST_TEST(bad("node: {listen: []}") == "t.yaml:1:16: node.listen: needs at least one address");
  std::string many;
  for (int i = 0; i < 9; ++i)
    many += "'unix:/" + std::to_string(i) + "',";
  BOOST_TEST(
    (bad("node: {listen: [" + many + "]}").find("node.listen: more than 8 entries") != many.npos));
}

BOOST_AUTO_TEST_CASE(all_addresses_of_a_host_are_told_to_others_as_its_name) {
  auto s = good(
    std::string{secret} +
    "cluster:\n  nodes:\n"
    "  - {name: a, listen: ['unix:/a', 'tls://0.0.0.0:7710'], providers: [{name: p}]}\n"
    "  - {name: b, host: b.example, listen: 'tls://[::]:7710', providers: [{name: q}]}\n");
  BOOST_TEST((s.nodes[0].listen == list{"unix:/a", "tls://0.0.0.0:7710"}));
  BOOST_TEST((s.nodes[0].addresses() == list{"unix:/a", "tls://a:7710"}));
  BOOST_TEST((s.nodes[1].addresses() == list{"tls://b.example:7710"}));
  BOOST_TEST((s.for_node("b")->node.host == "b.example"));
}

BOOST_AUTO_TEST_CASE(nodes_that_say_nothing_listen_on_their_host_when_there_is_security) {
  auto open = good(cluster_of("", {"a", "b"}));
  BOOST_TEST((open.nodes[0].listen == list{default_listen("a")}));
  auto closed = good(cluster_of(secret, {"a", "b"}));
  BOOST_TEST((closed.nodes[1].listen == list{default_listen("b"), "tls://b:7710"}));
  auto elsewhere = good(
    std::string{secret} + "cluster: {port: 99, nodes: [{name: a, host: '::1', providers: []}]}");
  BOOST_TEST((elsewhere.nodes[0].listen == list{default_listen("a"), "tls://[::1]:99"}));
  // A file of one node says of itself where it listens.
  BOOST_TEST((good(secret).node.listen == list{default_listen("n0")}));
}

BOOST_AUTO_TEST_CASE(a_node_may_have_no_providers_but_says_so) {
  auto s = good("cluster: {nodes: [{name: a, providers: []}, {name: b, providers: [{name: p}]}]}");
  BOOST_TEST(s.nodes.at(0).providers.empty());
  BOOST_TEST(s.for_node("a")->providers.empty());
  BOOST_TEST(s.nodes.at(1).providers.size() == 1u);
}

BOOST_AUTO_TEST_CASE(security_is_a_secret_or_certificates) {
  BOOST_TEST(good(secret).security.secret == "/s");
  auto s = good("security: {certificate: /c, key: /k, authority: /a}").security;
  BOOST_TEST((s.configured() && s.certificate == "/c" && s.key == "/k" && s.authority == "/a"));
  BOOST_TEST(
    bad("security: {secret: /s, key: /k}") ==
    "t.yaml:1:12: security: give either a secret or certificates, not both");
  for (auto* half : {"{key: /k}", "{certificate: /c, authority: /a}", "{authority: /a, key: /k}"})
    BOOST_TEST(
      bad("security: " + std::string{half}) ==
      "t.yaml:1:1: security: certificates need all three keys 'certificate', 'key' and "
      "'authority'");
}

BOOST_AUTO_TEST_CASE(lists_of_hosts_are_read_as_slurm_writes_them) {
  BOOST_TEST((expanded("n1") == list{"n1"}));
  BOOST_TEST((expanded("n[1-3]") == list{"n1", "n2", "n3"}));
  BOOST_TEST((expanded("n[01-03,7],x2") == list{"n01", "n02", "n03", "n7", "x2"}));
  BOOST_TEST((expanded("n[8-11]") == list{"n8", "n9", "n10", "n11"}));
  BOOST_TEST((expanded("n[008-010].site") == list{"n008.site", "n009.site", "n010.site"}));
  BOOST_TEST((expanded("r[0-1]n[0-1]") == list{"r0n0", "r0n1", "r1n0", "r1n1"}));
  BOOST_TEST(expanded("n[0-16383]").size() == listed_hosts_max);
}

BOOST_AUTO_TEST_CASE(what_is_no_list_of_hosts_is_refused) {
  for (std::string text :
       {"",
        ",",
        "a,",
        ",a",
        "a,,b",
        "n[",
        "n]",
        "n[]",
        "n[1",
        "n[1-",
        "n[1-]",
        "n[-1]",
        "n[3-1]",
        "n[1,]",
        "n[,1]",
        "n[a-b]",
        "n[1-2-3]",
        "n[[1]]",
        "a b",
        "n[1] ",
        "n[0-16384]",
        "n[0-9999999999]",
        "n[00000000001]",
        "n[0-999]m[0-999]",
        "n[0-16383],m",
        "a/b"})
    BOOST_TEST((expanded(text) == list{"error"}), text);
  auto long_text = "n" + std::string(host_list_bytes_max, '1');
  BOOST_TEST((expanded(long_text) == list{"error"}));
  BOOST_TEST((expanded(std::string(254, 'n')) == list{"error"}));
}

BOOST_AUTO_TEST_CASE(a_node_is_the_one_with_the_name_of_this_host) {
  auto s = good(cluster_of("", {"n1", "n2.site", "n3"}));
  BOOST_TEST(picked(s, on_host("n1")) == "n1");
  BOOST_TEST(picked(s, on_host("n3.other.site")) == "n3");
  BOOST_TEST(picked(s, on_host("n2.site")) == "n2.site");
  BOOST_TEST(picked(s, on_host("n2")) == "n2.site");
  BOOST_TEST(
    picked(s, on_host("n4")) ==
    "the configuration describes several nodes, name the one to be: n1, n2.site, n3; none is on "
    "this host, n4");
  BOOST_TEST(pick_node(s, "n3", on_host("n1"))->node.name == "n3");
  BOOST_TEST(picked(good(cluster_of("", {"solo"})), on_host("n4")) == "solo");
  // The whole name goes before the one without its domain.
  auto both = good(cluster_of("", {"n1", "n1.site"}));
  BOOST_TEST(picked(both, on_host("n1.site")) == "n1.site");
  BOOST_TEST(picked(both, on_host("n1")) == "n1");
}

BOOST_AUTO_TEST_CASE(several_nodes_of_one_host_are_told_apart_by_the_local_task) {
  auto s =
    good("cluster: {nodes: [{name: a, host: n1, providers: []}, {name: b, host: n1, providers: []},"
         " {name: c, host: n2, providers: []}]}");
  BOOST_TEST(picked(s, on_host("n2")) == "c");
  auto here = on_host("n1");
  BOOST_TEST((picked(s, here).find("several are on this host, n1") != std::string::npos));
  here.slurm_local = "1";
  BOOST_TEST(picked(s, here) == "b");
}

BOOST_AUTO_TEST_CASE(slurms_name_of_a_host_counts_where_the_systems_does_not) {
  auto s = good(cluster_of("", {"n1", "n2"}));
  auto here = in_job("n[1-2]", "n2", "0");
  here.host_name = "ip-10-0-0-7";
  BOOST_TEST(picked(s, here) == "n2");
}

BOOST_AUTO_TEST_CASE(nodes_without_a_host_get_those_of_the_job_in_order) {
  auto file = good(cluster_of(secret, {"mem", "disk"}) + "  hosts: job\n");
  auto s = place_in_job(file, in_job("gpu[07-09]", "gpu08", "5")).value();
  BOOST_TEST((s.nodes[0].addresses() == list{default_listen("mem"), "tls://gpu07:7710"}));
  BOOST_TEST((s.nodes[1].addresses() == list{default_listen("disk"), "tls://gpu08:7710"}));
  // The host decides, not the number of the task: another step of the job has other numbers.
  BOOST_TEST(picked(s, in_job("gpu[07-09]", "gpu08", "5")) == "disk");
  BOOST_TEST(picked(s, in_job("gpu[07-09]", "gpu07", "5")) == "mem");
  BOOST_TEST(
    picked(s, in_job("gpu[07-09]", "gpu09", "2")) ==
    "this is host number 2 (from 0) of the job, and the configuration describes 2 nodes");
}

BOOST_AUTO_TEST_CASE(a_job_with_fewer_hosts_than_nodes_has_several_on_a_host) {
  auto file = good(cluster_of(secret, {"a", "b", "c", "d", "e"}) + "  hosts: job\n  port: 9000\n");
  auto s = place_in_job(file, in_job("gpu[07-08]", "gpu07", "0")).value();
  list network;
  for (auto& node : s.nodes)
    network.push_back(node.addresses().at(1));
  BOOST_TEST(
    (network ==
     list{
       "tls://gpu07:9000", "tls://gpu07:9001", "tls://gpu07:9002", "tls://gpu08:9000",
       "tls://gpu08:9001"}));
  // Tasks may be spread over the hosts in any way.
  auto task = [](std::string host, std::string number, std::string local) {
    auto here = in_job("gpu[07-08]", std::move(host), std::move(number));
    here.slurm_local = std::move(local);
    return here;
  };
  BOOST_TEST(picked(s, task("gpu07", "2", "2")) == "c");
  BOOST_TEST(picked(s, task("gpu07", "4", "2")) == "c");
  BOOST_TEST(picked(s, task("gpu08", "1", "0")) == "d");
  BOOST_TEST(
    picked(s, task("gpu08", "1", "2")) ==
    "this is task number 2 (from 0) of its host, on which the configuration has 2 nodes: d, e");
  BOOST_TEST(
    (picked(s, task("gpu08", "1", "x")).find("several are on this host") != std::string::npos));
}

BOOST_AUTO_TEST_CASE(nodes_of_one_host_listen_at_one_port_after_the_other) {
  auto s = good(
    std::string{secret} +
    "cluster: {port: 65534, nodes: [{name: a, host: n1, providers: []}, {name: b, providers: []},"
    " {name: c, host: n1, providers: []}, {name: d, host: n1, listen: 'tls://n1:7', providers: "
    "[]}]}");
  BOOST_TEST(s.nodes[0].listen.at(1) == "tls://n1:65534");
  BOOST_TEST(s.nodes[1].listen.at(1) == "tls://b:65534");
  BOOST_TEST(s.nodes[2].listen.at(1) == "tls://n1:65535");
  auto beyond = bad(
    std::string{secret} +
    "cluster: {port: 65535, nodes: [{name: a, host: n1, providers: []}, {name: c, host: n1, "
    "providers: []}]}");
  BOOST_TEST(
    (beyond.find("there are more nodes on n1 than ports from cluster.port, 65535, on") !=
     std::string::npos),
    beyond);
  auto job = good(cluster_of(secret, {"a", "b"}) + "  hosts: job\n  port: 65535\n");
  BOOST_TEST(
    (place_in_job(job, in_job("n1", "n1", "0")).error().detail().find("more nodes on n1 than") !=
     std::string::npos));
}

BOOST_AUTO_TEST_CASE(names_are_names_of_hosts_unless_the_file_asks_for_those_of_the_job) {
  auto here = in_job("vm", "vm", "1");
  here.slurm_local = "1";
  auto names = good(cluster_of(secret, {"x", "y"}));
  BOOST_TEST((place_in_job(names, here).value() == names));
  BOOST_TEST((good(cluster_of(secret, {"x", "y"}) + "  hosts: names\n") == names));
  BOOST_TEST(picked(names, here) == "y");
  BOOST_TEST(
    bad(cluster_of(secret, {"x", "y"}) + "  hosts: auto\n") ==
    "t.yaml:6:10: cluster.hosts: 'auto' does not exist any more; use 'job' if the nodes run on the "
    "hosts of the Slurm job, and 'names', the default, if not");
}

BOOST_AUTO_TEST_CASE(hosts_of_a_job_outside_of_one_are_an_error_that_says_what_to_do) {
  auto why = [](const std::string& text) {
    auto placed = place_in_job(good(text), on_host("login"));
    return placed ? "" : placed.error().detail();
  };
  auto detail = why(cluster_of(secret, {"x", "y"}) + "  hosts: job\n");
  BOOST_TEST((detail.find("cluster.hosts is 'job', and this process is in none") == 0));
  BOOST_TEST((detail.find("SLURM_JOB_NODELIST") != std::string::npos));
  auto everywhere = std::string{secret} +
    "cluster: {hosts: job, nodes: [{name: x, listen: 'tls://0.0.0.0:1', providers: []}]}";
  BOOST_TEST((why(everywhere).find("where the node x is") != std::string::npos));
  // Here no address depends on the job.
  BOOST_TEST(why(cluster_of("", {"x", "y"}) + "  hosts: job\n") == "");
  auto known = std::string{secret} +
    "cluster: {hosts: job, nodes: [{name: x, host: h, providers: []}, {name: y, listen: "
    "'tls://g:1', providers: []}]}";
  BOOST_TEST(why(known) == "");
}

BOOST_AUTO_TEST_CASE(a_file_that_names_hosts_is_taken_at_its_word) {
  // A job elsewhere that uses this cluster.
  auto away = good(cluster_of(secret, {"store1", "store2"}));
  BOOST_TEST((place_in_job(away, in_job("gpu[07-09]", "gpu09", "0")).value() == away));
  // The order of the job decides where no name says more.
  BOOST_TEST(picked(away, in_job("gpu[07-08]", "gpu08", "0")) == "store2");
  auto file = good(cluster_of(secret, {"gpu07", "gpu01"}));
  BOOST_TEST((place_in_job(file, in_job("gpu[07-09]", "gpu09", "0")).value() == file));
  BOOST_TEST(
    (picked(file, in_job("gpu[07-09]", "gpu09", "0")).find("name the one to be") !=
     std::string::npos));
  auto mixed = good(
    std::string{secret} +
    "cluster: {hosts: job, nodes: [{name: a, host: h1, providers: []}, {name: b, providers: []}]}");
  auto placed = place_in_job(mixed, in_job("gpu[07-09]", "gpu09", "0")).value();
  BOOST_TEST(placed.nodes[0].host == "h1");
  BOOST_TEST(placed.nodes[1].host == "gpu08");
}

BOOST_AUTO_TEST_CASE(a_list_of_hosts_that_is_none_is_an_error_where_it_counts) {
  auto cluster = good(cluster_of("", {"a", "b"}) + "  hosts: job\n");
  auto wrong = place_in_job(cluster, in_job("n[", "n1", "0"));
  BOOST_TEST((wrong.error().detail().find("SLURM_JOB_NODELIST: 'n[' is no list") == 0));
  BOOST_TEST(place_in_job(good(""), in_job("n[", "n1", "0")).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
