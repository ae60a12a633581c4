// Tests a node with a damaged provider. It serves the others, and says what is down and why.
#include "three_providers.hpp"

#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/support/kept_log.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

using namespace millrace;
namespace data = boost::unit_test::data;

namespace {

void overwrite(const std::string& path, std::uint64_t offset, std::size_t length) {
  std::fstream file{path, std::ios::in | std::ios::out | std::ios::binary};
  BOOST_REQUIRE(file.is_open());
  file.seekp(static_cast<std::streamoff>(offset));
  file << std::string(length, 'x');
}

/// A node's disk after a node ran on it, with a model in every group.
struct used_disk : testing::three_providers {
  used_disk() {
    auto n = node::embed(settings);
    for (auto& p : settings.providers)
      n.client().repository(p.group).store("net", tensors()).get();
  }

  // Damages the logs of libpmemobj, where it looks before anything else.
  void damage_pool() const { overwrite(dir.path() + "/pool", 8192, 4096); }
  void damage_bucket() const { overwrite(dir.path() + "/kept/index/CURRENT", 0, 8); }
};

bool says(const status& why, const std::string& words) {
  return why.detail().find(words) != std::string::npos;
}

} // namespace

BOOST_AUTO_TEST_SUITE(down_providers)

BOOST_DATA_TEST_CASE(
  a_node_serves_what_is_whole_and_refuses_the_rest_with_the_reason, data::make({false, true}),
  over_socket) {
  used_disk disk;
  disk.damage_pool();
  disk.damage_bucket();
  auto n = node::embed(disk.settings);
  BOOST_TEST(n.down().size() == 2u);
  auto asked = over_socket ? client::connect(n.address()) : n.client();
  BOOST_TEST(asked.repository("fast").store("net", disk.tensors()).get().size_bytes == 100'000u);
  for (std::string name : {"kept", "pool"}) {
    auto refused = asked.repository(name).describe("net", 0).result();
    BOOST_REQUIRE(!refused);
    BOOST_TEST((refused.error().code() == errc::unavailable), refused.error().to_string());
    BOOST_TEST(says(refused.error(), "provider " + name + " is down"), refused.error().to_string());
    auto stored = asked.repository(name).store("new", disk.tensors()).result();
    BOOST_TEST((!stored && stored.error().code() == errc::unavailable));
  }
  BOOST_TEST(says(asked.repository("pool").describe("net", 0).result().error(), "damaged"));
}

BOOST_AUTO_TEST_CASE(the_status_names_what_is_down_and_why) {
  used_disk disk;
  disk.damage_pool();
  auto n = node::embed(disk.settings);
  auto answers = client::connect(n.address()).status().get();
  BOOST_REQUIRE(answers.size() == 1u);
  BOOST_REQUIRE(answers[0]);
  std::size_t down = 0;
  for (auto& p : answers[0]->providers)
    if (!p.down.empty()) {
      ++down;
      BOOST_TEST(p.name == "pool");
      BOOST_TEST(p.kind == "pmem");
      BOOST_TEST(p.down.find("millrace pool salvage") != std::string::npos, p.down);
    }
  BOOST_TEST(down == 1u);
  BOOST_TEST(answers[0]->providers.size() == 3u);
}

BOOST_AUTO_TEST_CASE(a_node_that_requires_all_does_not_start) {
  used_disk disk;
  disk.damage_pool();
  disk.settings.node.require = config::required_providers::all;
  auto refused = node::start(disk.settings);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::corrupt_data));
  BOOST_TEST(says(refused.error(), "provider pool"), refused.error().to_string());
}

BOOST_AUTO_TEST_CASE(a_node_without_one_whole_provider_starts_unless_it_requires_any) {
  used_disk disk;
  disk.damage_pool();
  disk.damage_bucket();
  disk.settings.providers.erase(disk.settings.providers.begin());
  disk.settings.nodes[0].providers = disk.settings.providers;
  BOOST_TEST((config::node_settings{}.require == config::required_providers::none));
  {
    auto n = node::start(disk.settings);
    BOOST_REQUIRE(n);
    BOOST_TEST(n->down().size() == 2u);
    auto answers = client::connect(n->address()).status().get();
    BOOST_REQUIRE(answers[0]);
    BOOST_TEST(answers[0]->providers.size() == 2u);
    for (auto& p : answers[0]->providers)
      BOOST_TEST(!p.down.empty());
  }
  disk.settings.node.require = config::required_providers::any;
  auto refused = node::start(disk.settings);
  BOOST_REQUIRE(!refused);
  BOOST_TEST(says(refused.error(), "provider kept"), refused.error().to_string());
}

BOOST_AUTO_TEST_CASE(a_node_says_at_its_start_what_is_set_too_low_and_what_it_cannot_serve) {
  used_disk disk;
  disk.damage_pool();
  disk.damage_bucket();
  auto& kept = disk.settings.providers[1].options.edit<storage::rocksdb_bucket_options>();
  kept.index_reserve_bytes = 16u << 20;
  disk.settings.providers.erase(disk.settings.providers.begin());
  disk.settings.nodes[0].providers = disk.settings.providers;
  testing::kept_log log;
  auto n = node::embed(disk.settings);
  BOOST_TEST(log.count("provider kept: index_reserve is 16MiB") == 1u, log.text());
  BOOST_TEST(log.count("a provider is down, the node starts without it") == 2u, log.text());
  BOOST_TEST(log.count("no provider could be opened, the node serves nothing") == 1u, log.text());
}

BOOST_AUTO_TEST_SUITE_END()
