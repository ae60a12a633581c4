// Tests two nodes that share nothing but a network and a secret. Each is a process of its own at an
// address of the loopback network.
#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/net/tls_certificates.hpp>
#include <millrace/tests/support/service.hpp>
#include <millrace/tests/system/sample.hpp>

#include <arpa/inet.h>
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>

using namespace millrace;
using namespace millrace::testing;
using nlohmann::json;

namespace {

bool says(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

// Returns a port that is free on every address of the loopback network. Only this test knows it.
std::string free_port() {
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  socklen_t size = sizeof(at);
  BOOST_TEST_REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0);
  BOOST_TEST_REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  ::close(fd);
  return std::to_string(ntohs(at.sin_port));
}

struct cluster {
  scratch dir;
  std::string secret = dir / "cluster.secret";
  std::string port = free_port();
  std::string file;

  explicit cluster(const std::string& more = {}) {
    auto made = run_millrace({"cluster", "secret", secret});
    BOOST_TEST_REQUIRE(made.code == 0, made.err);
    file = dir.write("cluster.yaml", text("secret: " + secret) + more);
  }

  std::string address(const std::string& node) const {
    return "tls://127.0.0." + std::string{node == "a" ? "2" : "3"} + ":" + port;
  }

  std::string text(const std::string& security) const {
    return "staging: { size: 32MiB }\nsecurity: { " + security +
      " }\n"
      "checkpoints: { staging_piece: 1MiB, staging_pieces: 4 }\n"
      "client: { connect_timeout: 20s }\n"
      "cluster:\n  nodes:\n"
      "    - { name: a, listen: '" +
      address("a") +
      "', providers: [{ name: fast-a, capacity: 128MiB }] }\n"
      "    - name: b\n      listen: ['" +
      address("b") +
      "']\n      providers:\n"
      "        - { name: fast-b, capacity: 128MiB }\n"
      "        - { name: pool, bucket: pmem, group: pool, capacity: 128MiB, path: " +
      (dir / "p.pool") + " }\n";
  }

  config::settings settings() const { return load_configuration(file).value(); }
  std::vector<std::string> serve(const std::string& node) const {
    return {MILLRACE_PROGRAM, "serve", "-c", file, "--node", node};
  }
};

struct running_cluster : cluster {
  using cluster::cluster;
  child_process a{serve("a")};
  child_process b{serve("b")};
  std::string ready_a = a.read_line();
  std::string ready_b = b.read_line();
};

std::vector<load_target> targets_of(const sample& s) {
  std::vector<load_target> out;
  for (auto& view : s.views)
    out.push_back({view, {}});
  return out;
}

} // namespace

BOOST_AUTO_TEST_SUITE(two_hosts)

BOOST_AUTO_TEST_CASE(models_are_stored_and_loaded_over_the_network) {
  running_cluster c;
  BOOST_TEST(says(c.ready_a, "node a ready on " + c.address("a")), c.ready_a);
  auto repo = client::of(c.settings())->repository();
  std::set<std::string> providers;
  for (std::uint64_t i = 0; i < 8; ++i) {
    auto model = "m" + std::to_string(i);
    auto stored = repo.store(model, sample::of_mib(8).fill(i).views).get();
    BOOST_TEST(stored.driver == "tcp");
    providers.insert(stored.provider);
    auto arrived = sample::of_mib(8);
    auto loaded = repo.load(model, targets_of(arrived)).get();
    BOOST_TEST(loaded.driver == "tcp");
    BOOST_TEST(loaded.verified);
    BOOST_TEST((arrived.bytes == sample::of_mib(8).fill(i).bytes));
  }
  // Both nodes have some.
  BOOST_TEST(providers.size() == 2u);
  auto listed = run_millrace({"models", "ls", "-c", c.file, "--json"});
  BOOST_TEST(json::parse(listed.out).at("models").size() == 8u);
}

BOOST_AUTO_TEST_CASE(members_with_certificates_work_together_and_others_stay_outside) {
  cluster c;
  net::testing::authority ours{"ours"}, foreign{"foreign"};
  // Each process has a certificate of its own, and so a file of its own.
  auto file_of = [&](net::testing::authority& by, const std::string& bearer) {
    auto o = by.issue(bearer);
    return c.dir.write(
      bearer + std::to_string(&by == &ours) + ".yaml",
      c.text("certificate: " + o.certificate + ", key: " + o.key + ", authority: " + o.authority));
  };
  auto serve = [&](const std::string& node, const std::string& file) {
    return std::vector<std::string>{MILLRACE_PROGRAM, "serve", "-c", file, "--node", node};
  };
  child_process a{serve("a", file_of(ours, "a"))};
  child_process b{serve("b", file_of(ours, "b"))};
  BOOST_TEST(says(a.read_line(), "node a ready"), a.err());
  BOOST_TEST(says(b.read_line(), "node b ready"), b.err());
  auto file = file_of(ours, "job");
  {
    auto repo = client::of(load_configuration(file).value())->repository();
    for (std::uint64_t i = 0; i < 4; ++i) {
      auto model = "m" + std::to_string(i);
      BOOST_TEST(repo.store(model, sample::of_mib(4).fill(i).views).get().driver == "tcp");
      auto arrived = sample::of_mib(4);
      BOOST_TEST(repo.load(model, targets_of(arrived)).get().verified);
      BOOST_TEST((arrived.bytes == sample::of_mib(4).fill(i).bytes));
    }
  }
  auto status = run_millrace({"status", "--json", "-c", file});
  BOOST_TEST_REQUIRE(status.code == 0, status.err);
  std::set<std::string> nodes;
  auto answered = json::parse(status.out);
  for (auto& n : answered.at("nodes"))
    if (n.contains("uptime_ms"))
      nodes.insert(n.at("node"));
  BOOST_TEST((nodes == std::set<std::string>{"a", "b"}), status.out);
  auto outside = run_millrace({"status", "-c", file_of(foreign, "job")});
  BOOST_TEST(outside.code != 0, outside.out);
}

BOOST_AUTO_TEST_CASE(checkpoints_are_saved_and_restored_over_the_network) {
  running_cluster c;
  {
    auto connection = client::of(c.settings()).value();
    auto s = sample::of_mib(8);
    checkpoint_options options;
    options.model = "job";
    auto job = connection.checkpointer(options, s.views).get();
    for (std::uint64_t step : {1u, 2u, 3u}) {
      s = std::move(s).fill(step);
      auto save = job.save(step, step == 2 ? save_mode::snapshot : save_mode::direct);
      BOOST_TEST(save.durable.get().driver == "tcp");
      BOOST_TEST(job.fence().ok());
    }
    s = std::move(s).fill(99);
    BOOST_TEST(job.restore().get().version == 3u);
    BOOST_TEST((s.bytes == sample::of_mib(8).fill(3).bytes));
    BOOST_TEST(job.restore(2).get().version == 2u);
    BOOST_TEST((s.bytes == sample::of_mib(8).fill(2).bytes));
    BOOST_TEST(job.close(true).ok());
  }
  auto listed = run_millrace({"checkpoints", "ls", "-c", c.file, "--json"});
  BOOST_TEST_REQUIRE(listed.code == 0, listed.err);
  BOOST_TEST(json::parse(listed.out).at("checkpoints").at(0).at("newest_step") == 3);
  auto archive = c.dir / "job.safetensors";
  auto dumped = run_millrace({"checkpoints", "dump", "job@3", archive, "-c", c.file});
  BOOST_TEST(dumped.code == 0, dumped.err);
  auto loaded =
    run_millrace({"checkpoints", "load", archive, "--model", "copy", "--step", "7", "-c", c.file});
  BOOST_TEST(loaded.code == 0, loaded.err);
  auto verified = run_millrace({"checkpoints", "verify", "-c", c.file, "--json"});
  BOOST_TEST(verified.code == 0, verified.err + verified.out);
}

BOOST_AUTO_TEST_CASE(one_address_and_the_secret_are_enough_to_find_the_whole_cluster) {
  running_cluster c;
  auto settings = parse_configuration("security: { secret: " + c.secret + " }", "client").value();
  auto found = client::open(c.address("b"), settings);
  BOOST_TEST_REQUIRE(found.has_value(), (found ? "" : found.error().to_string()));
  BOOST_TEST(found->nodes().size() == 2u);
  BOOST_TEST(found->providers().size() == 3u);
  auto s = sample::of_mib(1).fill(5);
  found->repository().store("m", s.views).get();
  auto status =
    run_millrace({"status", "--address", c.address("a"), "--secret", c.secret, "--json"});
  BOOST_TEST_REQUIRE(status.code == 0, status.err);
  auto nodes = json::parse(status.out).at("nodes");
  BOOST_TEST_REQUIRE(nodes.size() == 2u);
  BOOST_TEST(nodes[0].at("node") == "a");
  BOOST_TEST(nodes[1].at("addresses").at(0) == c.address("b"));
  bool moved = false;
  for (auto& node : nodes)
    for (auto& path : node.at("paths"))
      moved |= path.at("driver") == "tcp" && path.at("chosen") == true && path.at("bytes") > 0 &&
        path.at("rate_bytes_per_s") > 0;
  BOOST_TEST(moved, status.out);
}

BOOST_AUTO_TEST_CASE(a_node_that_is_down_is_named_with_the_reason_and_the_others_are_shown) {
  running_cluster c;
  std::set<std::string> of_a;
  for (auto* model : {"m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"}) {
    auto repo = client::of(c.settings())->repository();
    if (repo.store(model, sample::of_mib(1).views).get().provider == "fast-a")
      of_a.insert(model);
  }
  BOOST_TEST_REQUIRE(!of_a.empty());
  BOOST_TEST_REQUIRE(of_a.size() < 8u);
  c.b.signal(SIGKILL);
  c.b.wait();
  auto status = run_millrace({"status", "-c", c.file, "--json", "--timeout", "30s"});
  BOOST_TEST(status.code == 1);
  auto nodes = json::parse(status.out).at("nodes");
  BOOST_TEST(nodes.at(0).at("node") == "a");
  BOOST_TEST(nodes.at(0).at("uptime_ms") >= 0);
  BOOST_TEST(nodes.at(1).at("node") == "b");
  BOOST_TEST(
    says(nodes.at(1).at("error").at("detail").get<std::string>(), c.address("b")), status.out);
  auto listed = run_millrace({"cluster", "nodes", "-c", c.file});
  BOOST_TEST(listed.code == 1);
  BOOST_TEST(says(listed.out, "yes"), listed.out);
  BOOST_TEST(says(listed.out, "no: "), listed.out);

  auto models = run_millrace({"models", "ls", "-c", c.file, "--json", "--timeout", "30s"});
  BOOST_TEST(models.code == 1);
  auto document = json::parse(models.out);
  std::set<std::string> shown;
  for (auto& model : document.at("models")) {
    BOOST_TEST(model.at("provider") == "fast-a");
    shown.insert(model.at("name").get<std::string>());
  }
  BOOST_TEST((shown == of_a), models.out);
  BOOST_TEST(document.at("silent").at(0).at("provider") == "fast-b");
  auto spoken = run_millrace({"models", "ls", "-c", c.file, "--timeout", "30s"});
  BOOST_TEST(spoken.code == 1);
  BOOST_TEST(says(spoken.out, *of_a.begin()), spoken.out);
  BOOST_TEST(says(spoken.err, "fast-b"), spoken.err);
  // The only provider of checkpoints is on the node that is down.
  auto checkpoints = run_millrace({"checkpoints", "ls", "-c", c.file, "--timeout", "30s"});
  BOOST_TEST(checkpoints.code == 1);
  BOOST_TEST(says(checkpoints.err, c.address("b")), checkpoints.err);
}

BOOST_AUTO_TEST_CASE(a_client_with_another_secret_or_none_is_refused_with_the_reason) {
  running_cluster c;
  auto other = c.dir / "other.secret";
  BOOST_TEST(run_millrace({"cluster", "secret", other}).code == 0);
  auto refused = run_millrace({"status", "--address", c.address("a"), "--secret", other, "--json"});
  BOOST_TEST(refused.code == 1);
  auto error = json::parse(refused.err).at("error");
  BOOST_TEST(error.at("code") == "permission_denied", refused.err);
  BOOST_TEST(says(error.at("detail").get<std::string>(), "secret"), refused.err);
  auto none = run_millrace({"status", "--address", c.address("a")});
  BOOST_TEST(none.code == 2);
  BOOST_TEST(says(none.err, "--secret FILE"), none.err);
  // And those who know it go on.
  BOOST_TEST(run_millrace({"status", "-c", c.file}).code == 0);
}

BOOST_AUTO_TEST_CASE(a_secret_that_others_can_read_stops_the_service) {
  cluster c;
  BOOST_TEST(::chmod(c.secret.c_str(), 0644) == 0);
  auto refused = run_program(c.serve("a"));
  BOOST_TEST(refused.code == 1);
  BOOST_TEST(says(refused.err, c.secret), refused.err);
  BOOST_TEST(::chmod(c.secret.c_str(), 0600) == 0);
  auto again = run_millrace({"cluster", "secret", c.secret});
  BOOST_TEST(again.code == 1);
  BOOST_TEST(says(again.err, c.secret), again.err);
}

BOOST_AUTO_TEST_CASE(an_address_where_another_node_answers_is_refused) {
  running_cluster c;
  auto swapped = c.settings();
  std::swap(swapped.nodes[0].listen, swapped.nodes[1].listen);
  auto connection = client::of(swapped).value();
  auto answers = connection.status().get();
  BOOST_TEST_REQUIRE(answers.size() == 2u);
  for (auto& answer : answers) {
    BOOST_TEST_REQUIRE(!answer.has_value());
    BOOST_TEST((answer.error().code() == errc::permission_denied), answer.error().to_string());
  }
}

BOOST_AUTO_TEST_CASE(the_socket_is_taken_where_there_is_one_and_the_network_elsewhere) {
  cluster c;
  auto socket = c.dir / "a.sock";
  auto file = c.dir.write(
    "both.yaml",
    "staging: { size: 32MiB }\nsecurity: { secret: " + c.secret +
      " }\ncluster:\n  nodes:\n    - { name: a, listen: ['unix:" + socket + "', '" +
      c.address("a") + "'], providers: [{ name: p, capacity: 64MiB }] }\n");
  child_process a{{MILLRACE_PROGRAM, "serve", "-c", file}};
  BOOST_TEST(says(a.read_line(), "ready on unix:" + socket + ", " + c.address("a")));
  auto settings = load_configuration(file).value();
  auto s = sample::of_mib(4).fill(1);
  auto store = [&] { return client::of(settings)->repository().store("m", s.views).get().driver; };
  BOOST_TEST(store() == "shm");
  // Without the socket the client is as on another host.
  BOOST_TEST(::unlink(socket.c_str()) == 0);
  BOOST_TEST(store() == "tcp");
}

BOOST_AUTO_TEST_CASE(an_embedded_node_listens_on_its_network_too) {
  cluster c;
  auto n = node::embed(c.file, "a");
  BOOST_TEST(n.address() == c.address("a"));
  child_process b{c.serve("b")};
  BOOST_TEST(says(b.read_line(), "node b ready"));
  auto status = run_millrace({"status", "-c", c.file});
  BOOST_TEST(status.code == 0, status.out + status.err);
  // Its own client reaches the other node's providers.
  auto repo = n.client().repository();
  std::set<std::string> drivers;
  for (int i = 0; i < 8; ++i)
    drivers.insert(
      repo.store("m" + std::to_string(i), sample::of_mib(1).fill(1).views).get().driver);
  BOOST_TEST((drivers == std::set<std::string>{"local", "tcp"}));
}

BOOST_AUTO_TEST_CASE(a_job_scheduler_says_who_is_who) {
  cluster c;
  auto file = c.dir.write(
    "job.yaml",
    "staging: { size: 32MiB }\nsecurity: { secret: " + c.secret +
      " }\ncluster:\n  hosts: job\n  port: " + c.port +
      "\n  nodes:\n    - { name: mem, providers: [{ name: p, capacity: 64MiB }] }\n"
      "    - { name: disk, providers: [{ name: q, capacity: 64MiB }] }\n");
  auto in_job = [&](std::vector<std::string> words, const std::string& host) {
    std::vector<std::string> all{
      "/usr/bin/env", "SLURM_JOB_NODELIST=127.0.0.[2-3]", "SLURMD_NODENAME=" + host,
      "XDG_RUNTIME_DIR=" + c.dir.path.string(), MILLRACE_PROGRAM};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  };
  child_process second{in_job({"serve", "-c", file}, "127.0.0.3")};
  BOOST_TEST(says(second.read_line(), "node disk ready on unix:"));
  child_process first{in_job({"serve", "-c", file}, "127.0.0.2")};
  BOOST_TEST(says(first.read_line(), ", tls://127.0.0.2:" + c.port));
  auto status = run_program(in_job({"cluster", "nodes", "-c", file, "--json"}, "127.0.0.2"));
  BOOST_TEST(status.code == 0, status.err + status.out);
  BOOST_TEST(
    json::parse(status.out).at("nodes").at(1).at("addresses").at(1) == "tls://127.0.0.3:" + c.port);
}

BOOST_AUTO_TEST_CASE(two_tasks_of_one_host_are_the_nodes_of_a_file_that_names_no_hosts) {
  cluster c;
  auto file = c.dir.write(
    "job.yaml",
    "staging: { size: 32MiB }\nsecurity: { secret: " + c.secret +
      " }\ncluster:\n  hosts: job\n  port: " + c.port +
      "\n  nodes:\n    - { name: mr_no_host_a, providers: [{ name: p, capacity: 64MiB }] }\n"
      "    - { name: mr_no_host_b, providers: [{ name: q, capacity: 64MiB }] }\n");
  auto in_job = [&](const std::string& task, std::vector<std::string> words) {
    std::vector<std::string> all{"/usr/bin/env",
                                 "SLURM_NODELIST=127.0.0.4",
                                 "SLURM_PROCID=" + task,
                                 "SLURM_LOCALID=" + task,
                                 "SLURMD_NODENAME=127.0.0.4",
                                 "XDG_RUNTIME_DIR=" + c.dir.path.string(),
                                 MILLRACE_PROGRAM};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  };
  auto next_port = std::to_string(std::stoi(c.port) + 1);
  child_process first{in_job("0", {"serve", "-c", file})};
  BOOST_TEST(says(first.read_line(), ", tls://127.0.0.4:" + c.port));
  child_process second{in_job("1", {"serve", "-c", file})};
  BOOST_TEST(says(second.read_line(), ", tls://127.0.0.4:" + next_port));
  auto nodes = run_program(in_job("7", {"cluster", "nodes", "-c", file, "--json"}));
  BOOST_TEST(nodes.code == 0, nodes.err + nodes.out);
}

BOOST_AUTO_TEST_SUITE_END()
