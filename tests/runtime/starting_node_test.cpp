// Tests what clients are told while a node starts, and what is left when the start fails.
#include "three_providers.hpp"

#include <millrace/net/channel/channel.hpp>
#include <millrace/runtime/node/node.hpp>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

/// A node's disk. A FIFO takes the place of the file CURRENT of its RocksDB index, so whoever opens
/// the index waits until `let_go`.
class held_disk : public testing::three_providers {
public:
  held_disk() {
    node::embed(settings).stop();
    std::ifstream file{current_};
    contents_ = {std::istreambuf_iterator<char>{file}, {}};
    BOOST_TEST_REQUIRE(!contents_.empty());
    BOOST_TEST_REQUIRE(::mkfifo(gate_.c_str(), 0600) == 0);
    BOOST_TEST_REQUIRE(std::remove(current_.c_str()) == 0);
    std::filesystem::create_hard_link(gate_, current_);
  }

  std::string socket() const { return dir.path() + "/n0.sock"; }
  std::string address() const { return settings.node.listen.front(); }

  void damage() { contents_ = "nothing"; }

  /// Lets the start go on, and returns its outcome. Who has found the FIFO may not wait there yet,
  /// so it is tried again. It is written once: RocksDB would take a second text for a part of the
  /// first.
  result<std::shared_ptr<node>> let_go(const future<std::shared_ptr<node>>& starting) {
    auto file = dir.path() + "/contents";
    std::ofstream{file} << contents_;
    std::filesystem::rename(file, current_);
    auto deadline = steady_clock::now() + 60s;
    auto passed = false;
    while (!starting.wait_for(20ms) && steady_clock::now() < deadline)
      passed = passed || pass_gate();
    BOOST_TEST_REQUIRE(starting.ready());
    return starting.result();
  }

private:
  // Returns false if nobody waits there.
  bool pass_gate() const {
    auto fd = ::open(gate_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
      return false;
    BOOST_TEST(::write(fd, contents_.data(), contents_.size()) > 0);
    ::close(fd);
    return true;
  }

  const std::string current_ = dir.path() + "/kept/index/CURRENT";
  const std::string gate_ = dir.path() + "/gate";
  std::string contents_;
};

config::settings with_connect_timeout(std::uint64_t timeout_ms) {
  config::settings settings;
  settings.client.connect_timeout_ms = timeout_ms;
  return settings;
}

// Waits for the socket, and then for the refusal.
status refusal(const std::string& address) {
  auto deadline = steady_clock::now() + 60s;
  while (true) {
    auto opened = client::open(address, with_connect_timeout(300));
    BOOST_TEST_REQUIRE(!opened.has_value());
    if (net::is_starting(opened.error()) || steady_clock::now() > deadline)
      return opened.error();
  }
}

} // namespace

BOOST_AUTO_TEST_SUITE(starting_nodes)

BOOST_AUTO_TEST_CASE(a_client_is_told_that_the_node_starts_and_a_patient_one_is_served_after_that) {
  held_disk disk;
  auto starting = node::start_async(disk.settings);
  auto why = refusal(disk.address());
  BOOST_TEST((why.code() == errc::unavailable), why.to_string());
  BOOST_TEST(
    why.detail().find("node n0 is starting; try again") != why.detail().npos, why.detail());
  BOOST_TEST(why.detail().find(disk.address()) != why.detail().npos, why.detail());
  auto patient = client::open_async(disk.address(), with_connect_timeout(120'000));
  BOOST_TEST(net::is_starting(refusal(disk.address())));
  BOOST_TEST(!patient.ready());
  BOOST_TEST(!starting.ready());
  auto n = disk.let_go(starting);
  BOOST_TEST_REQUIRE(n.has_value(), (n ? "" : n.error().to_string()));
  BOOST_TEST((*n)->down().empty());
  auto served = patient.get();
  served.repository("kept").store("net", disk.tensors()).get();
  BOOST_TEST(
    client::connect(disk.address()).repository("kept").describe("net").result().has_value());
}

BOOST_AUTO_TEST_CASE(a_start_that_fails_leaves_no_socket_and_ends_the_patience_of_clients) {
  held_disk disk;
  disk.settings.node.require = config::required_providers::all;
  disk.damage();
  auto starting = node::start_async(disk.settings);
  BOOST_TEST(net::is_starting(refusal(disk.address())));
  BOOST_TEST(std::filesystem::is_socket(disk.socket()));
  auto patient = client::open_async(disk.address(), with_connect_timeout(120'000));
  auto n = disk.let_go(starting);
  BOOST_TEST_REQUIRE(!n.has_value());
  BOOST_TEST(n.error().detail().find("provider kept") != std::string::npos, n.error().to_string());
  BOOST_TEST(!std::filesystem::exists(disk.socket()));
  BOOST_TEST(!std::filesystem::exists(disk.socket() + ".lock"));
  auto gone = patient.result();
  BOOST_TEST_REQUIRE(!gone.has_value());
  BOOST_TEST(!net::is_starting(gone.error()), gone.error().to_string());
  BOOST_TEST(gone.error().detail().find(disk.address()) != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_second_node_at_the_socket_of_one_that_starts_is_refused) {
  held_disk disk;
  auto starting = node::start_async(disk.settings);
  BOOST_TEST(net::is_starting(refusal(disk.address())));
  auto second = node::start(disk.settings);
  BOOST_TEST_REQUIRE(!second.has_value());
  BOOST_TEST((second.error().code() == errc::already_exists), second.error().to_string());
  BOOST_TEST(net::is_starting(refusal(disk.address())));
  auto first = disk.let_go(starting);
  BOOST_TEST_REQUIRE(first.has_value());
  BOOST_TEST((*first)->down().empty());
}

BOOST_AUTO_TEST_SUITE_END()
