// Runs nodes and jobs on three hosts. What they send arrives through loss, delay, and partitions
// that end.
#include "networks.hpp"

#include <millrace/tests/support/skipped.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <signal.h>

#include <iostream>
#include <thread>

using namespace millrace::testing;

namespace {

// Two nodes, on the hosts 0 and 1; jobs run on host 2. Deadlines are short: a partition shall end
// within the test.
constexpr auto cluster_file = R"(
security: { secret: DIRECTORY/secret }
channel: { heartbeat: 200ms, peer_timeout: 3s }
client: { request_timeout: 20s, staging: 16MiB }
limits: { request_timeout: 20s }
staging: { size: 32MiB }
checkpoints: { staging_piece: 1MiB, staging_pieces: 4 }
cluster:
  nodes:
    - name: store
      listen: LISTEN_STORE
      providers: [{ name: fast, capacity: 128MiB }]
    - name: keep
      listen: LISTEN_KEEP
      providers: [{ name: pool, bucket: pmem, path: DIRECTORY/p.pool, capacity: 128MiB, group: pool }]
)";

bool skipped() {
  auto why = why_no_networks();
  if (!why.empty())
    millrace::testing::skipped("hosts in network namespaces: " + why);
  return !why.empty();
}

struct addresses {
  std::string store = R"([tls://10.99.0.1:7710, "tls://[fd99::1]:7710"])";
  std::string keep = "tls://10.99.0.2:7710";
};

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
}

class cluster {
public:
  explicit cluster(const addresses& at = {}) {
    std::string text{cluster_file};
    replace_all(text, "DIRECTORY", here_.path.string());
    replace_all(text, "LISTEN_STORE", at.store);
    replace_all(text, "LISTEN_KEEP", at.keep);
    config_ = here_.write("cluster.yaml", text);
    auto made = run_program({MILLRACE_PROGRAM, "cluster", "secret", here_ / "secret"});
    BOOST_TEST_REQUIRE(made.code == 0, made.err);
    start(0, "store");
    start(1, "keep");
  }

  networks net{3};

  void start(int host, const std::string& node) {
    auto& process = nodes_[host];
    process = std::make_unique<child_process>(
      net.on(host, {MILLRACE_PROGRAM, "serve", "-c", config_, "--node", node}));
    auto line = process->read_line();
    BOOST_TEST_REQUIRE(line.find("ready") != std::string::npos, line + process->err());
  }
  void kill(int host) { nodes_[host].reset(); }

  std::vector<std::string> peer(
    int host, const std::string& verb, const std::string& model, int mib, int seed = 7) const {
    return net.on(
      host, {MILLRACE_PEER, config_, verb, model, std::to_string(mib), std::to_string(seed)});
  }
  std::vector<std::string> trainer(int steps, const std::string& mode = "direct") const {
    return net.on(2, {MILLRACE_TRAINER, config_, "8", std::to_string(steps), mode});
  }
  nlohmann::json status(int host) const {
    auto done = run_program(net.on(host, {MILLRACE_PROGRAM, "status", "--json", "-c", config_}));
    return nlohmann::json::parse(done.out);
  }
  nlohmann::json node(const std::string& name) const {
    auto all = status(2);
    for (auto& n : all.at("nodes"))
      if (n.value("node", "") == name)
        return n;
    return {};
  }

private:
  scratch here_;
  std::string config_;
  std::unique_ptr<child_process> nodes_[2];
};

bool says(const outcome& o, const std::string& what) {
  return o.out.find(what) != std::string::npos;
}

void check_models_and_steps(const cluster& c, const std::string& model, int first_step) {
  auto stored = run_program(c.peer(2, "store", model, 8));
  BOOST_TEST(stored.code == 0, stored.err);
  BOOST_TEST(stored.err == "stored by tcp\n");
  // From another host than it came from.
  auto loaded = run_program(c.peer(1, "load", model, 8));
  BOOST_TEST(says(loaded, "same verified"), loaded.out + loaded.err);
  BOOST_TEST(loaded.err == "loaded by tcp\n");
  auto trained = run_program(c.trainer(first_step + 2));
  BOOST_TEST(trained.code == 0, trained.out + trained.err);
  BOOST_TEST(says(trained, " by tcp\n"), trained.out);
  auto again = run_program(c.trainer(first_step + 4, "snapshot"));
  BOOST_TEST(says(again, "resumed " + std::to_string(first_step + 2) + " same"), again.out);
  BOOST_TEST(says(again, "closed in order"), again.out);
  BOOST_TEST(again.err == "restored by tcp\n");
}

} // namespace

BOOST_AUTO_TEST_SUITE(clusters)

BOOST_AUTO_TEST_CASE(models_and_checkpoints_pass_between_hosts_whatever_the_network_loses) {
  if (skipped())
    return;
  cluster c;
  check_models_and_steps(c, "clean", 0);
  c.net.delay(5);
  check_models_and_steps(c, "far", 4);
  c.net.lose(1);
  check_models_and_steps(c, "lossy", 8);
  c.net.heal();
  auto all = c.status(2);
  BOOST_TEST(all.at("nodes").size() == 2);
  for (auto& n : all.at("nodes"))
    BOOST_TEST(n.contains("uptime_ms"), n.dump());
}

BOOST_AUTO_TEST_CASE(a_short_cut_is_survived_by_what_was_under_way) {
  if (skipped())
    return;
  cluster c;
  child_process job{c.trainer(12)};
  while (job.read_line() != "saved 3") {
  }
  c.net.cut(1, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds{500});
  c.net.heal();
  BOOST_TEST(job.wait() == 0);
  BOOST_TEST(job.out().find("saved 12\n") != std::string::npos, job.out());
}

BOOST_AUTO_TEST_CASE(a_partition_ends_its_jobs_alone_and_the_next_one_goes_on_when_it_heals) {
  if (skipped())
    return;
  cluster c;
  child_process job{c.trainer(100'000)};
  while (job.read_line() != "saved 3") {
  }
  c.net.cut(1, 2);
  // The trainer hears of it within its deadline, and so does the node that was pulling.
  BOOST_TEST(job.wait() == 3);
  BOOST_TEST(job.out().find("failed ") != std::string::npos, job.out());
  // Other hosts notice nothing.
  BOOST_TEST(run_program(c.peer(2, "store", "meanwhile", 8)).code == 0);
  BOOST_TEST(says(run_program(c.peer(1, "load", "meanwhile", 8)), "same verified"));
  c.net.heal();
  BOOST_TEST(eventually([&] {
    auto keep = c.node("keep");
    return keep.contains("providers") &&
      keep.at("providers").at(0).at("checkpoints").at("registered") == 0;
  }));
  auto again = run_program(c.trainer(5));
  BOOST_TEST(says(again, " same\n"), again.out + again.err);
  BOOST_TEST(again.code == 0, again.out + again.err);
}

BOOST_AUTO_TEST_CASE(models_pass_between_hosts_that_have_ipv6_alone) {
  if (skipped())
    return;
  cluster c{{"\"tls://[fd99::1]:7710\"", "\"tls://[fd99::2]:7710\""}};
  check_models_and_steps(c, "v6", 0);
}

BOOST_AUTO_TEST_CASE(after_a_partition_a_model_is_as_its_last_store_left_it) {
  if (skipped())
    return;
  cluster c;
  child_process job{c.peer(2, "rounds", "m", 8, 1)};
  while (job.read_line() != "stored 4") {
  }
  c.net.cut(0, 2);
  // The cut comes amid a store or a load, which hears of it within its deadline.
  BOOST_TEST(job.wait() == 1);
  BOOST_TEST(!job.err().empty());
  // The node has given the peer up, too.
  std::this_thread::sleep_for(std::chrono::seconds{4});
  c.net.heal();
  int last = 4;
  while (job.out().find("stored " + std::to_string(last + 1) + "\n") != std::string::npos)
    ++last;
  // The store under way may have succeeded, and only its receipt was lost.
  auto found = run_program(c.peer(2, "load", "m", 8, last));
  if (says(found, "different"))
    found = run_program(c.peer(2, "load", "m", 8, last + 1));
  BOOST_TEST(found.out == "same verified\n", found.out + found.err);
  BOOST_TEST(run_program(c.peer(2, "store", "m", 8, 99)).code == 0);
  BOOST_TEST(run_program(c.peer(1, "load", "m", 8, 99)).out == "same verified\n");
  BOOST_TEST(eventually([&] {
    auto store = c.node("store");
    return store.contains("connections") && store.at("staging").at("used_bytes") == 0;
  }));
}

BOOST_AUTO_TEST_CASE(a_node_that_dies_and_returns_is_found_again) {
  if (skipped())
    return;
  cluster c;
  BOOST_TEST(run_program(c.trainer(3)).code == 0);
  c.kill(1);
  auto without = run_program(c.trainer(5));
  BOOST_TEST(without.code == 3, without.out);
  BOOST_TEST(says(without, "10.99.0.2:7710"), without.out);
  c.start(1, "keep");
  BOOST_TEST(says(run_program(c.trainer(5)), "resumed 3 same"));
}

BOOST_AUTO_TEST_SUITE_END()
