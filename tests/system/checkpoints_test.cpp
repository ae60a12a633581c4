// Checkpoints of a running service from the command line: in as files, listed, verified, and out again.
#include <millrace/storage/archive/archive.hpp>
#include <millrace/tests/support/service.hpp>
#include <millrace/tests/support/tensors_in_memory.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

using namespace millrace;
using namespace millrace::testing;
using nlohmann::json;

namespace {

std::string with_pool(const scratch& dir) {
  return "[{ name: ckpt, bucket: pmem, capacity: 128MiB, path: " + (dir / "pool") + " }]";
}

tensors_in_memory content(std::uint64_t seed) {
  tensors_in_memory all;
  for (int i = 0; i < 20; ++i)
    all.add({"layer." + std::to_string(i), i % 2 == 0 ? dtype::f32 : dtype::i64, {1000, 37}}, seed);
  all.add({"none", dtype::i64, {0}}, seed);
  all.say("run", "seven");
  return all;
}

json parsed(const outcome& o) {
  BOOST_TEST_REQUIRE(o.code == 0, o.err);
  return json::parse(o.out);
}

void load(const service& s, const scratch& dir, std::uint64_t step) {
  auto source = content(step);
  auto file = dir / ("in-" + std::to_string(step) + ".npz");
  BOOST_TEST_REQUIRE(storage::write_archive(storage::archive_format::npz, file, source).ok());
  auto o =
    s.command({"checkpoints", "load", file, "--model", "bert", "--step", std::to_string(step)});
  BOOST_TEST_REQUIRE(o.code == 0, o.err);
}

bool holds(const std::string& file, std::uint64_t seed) {
  auto found = storage::open_archive(file);
  auto expected = content(seed);
  if (!found || (*found)->tensors() != expected.tensors())
    return false;
  for (std::uint32_t i = 0; i < expected.tensors().tensors.size(); ++i)
    if (read_tensor(**found, i) != expected.bytes(i))
      return false;
  return true;
}

} // namespace

BOOST_AUTO_TEST_SUITE(checkpoints_of_a_service)

BOOST_AUTO_TEST_CASE(files_go_in_and_come_out_whole) {
  scratch dir;
  service s{dir, {.providers = with_pool(dir)}};
  load(s, dir, 10);
  load(s, dir, 20);
  auto all = parsed(s.command({"checkpoints", "ls", "--json"})).at("checkpoints");
  BOOST_TEST_REQUIRE(all.size() == 1u);
  BOOST_TEST((all[0].at("complete_steps") == json{10, 20}));
  BOOST_TEST(all[0].at("newest_step") == 20);
  auto verified = parsed(s.command({"checkpoints", "verify", "--json"}));
  BOOST_TEST(verified.at("verified").size() == 2u);
  BOOST_TEST(verified.at("verified").at(0).at("corrupt").empty());
  for (std::string name : {"a.safetensors", "a.h5", "a.pt"}) {
    auto dumped = s.command({"checkpoints", "dump", "bert", dir / name});
    BOOST_TEST(dumped.code == 0, dumped.err);
    BOOST_TEST(holds(dir / name, 20), name);
  }
  BOOST_TEST(s.command({"checkpoints", "dump", "bert@10", dir / "old.npz"}).code == 0);
  BOOST_TEST(holds(dir / "old.npz", 10));
  auto none = s.command({"checkpoints", "dump", "bert@15", dir / "b.npz"});
  BOOST_TEST(none.code == 1);
  BOOST_TEST(none.err.find("has no step 15; it has ") != std::string::npos, none.err);
  BOOST_TEST(s.command({"checkpoints", "view", "bert"}).out.find("layer.7") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_pool_in_service_is_not_opened_twice_and_is_there_at_rest) {
  scratch dir;
  service s{dir, {.providers = with_pool(dir)}};
  load(s, dir, 10);
  auto busy = run_millrace({"checkpoints", "ls", "--pool", dir / "pool"});
  BOOST_TEST(busy.code == 1);
  BOOST_TEST(busy.err.starts_with("millrace: checkpoints ls: "), busy.err);
  s.kill();
  auto rest = parsed(run_millrace({"checkpoints", "ls", "--pool", dir / "pool", "--json"}));
  BOOST_TEST((rest.at("checkpoints").at(0).at("complete_steps") == json{10}));
  BOOST_TEST(
    run_millrace({"checkpoints", "dump", "bert", dir / "a.pt", "--pool", dir / "pool"}).code == 0);
  BOOST_TEST(holds(dir / "a.pt", 10));
  BOOST_TEST(run_millrace({"pool", "check", dir / "pool"}).code == 0);
}

BOOST_AUTO_TEST_CASE(space_is_reclaimed_and_models_removed) {
  scratch dir;
  service s{dir, {.providers = with_pool(dir)}};
  load(s, dir, 10);
  load(s, dir, 20);
  auto repacked = parsed(s.command({"checkpoints", "repack", "--json"})).at("repacked");
  BOOST_TEST(repacked.at(0).at("where") == "ckpt");
  BOOST_TEST(repacked.at(0).at("versions_freed") == 1);
  BOOST_TEST(s.command({"checkpoints", "rm", "bert@20"}).code == 0);
  BOOST_TEST(s.command({"checkpoints", "rm", "bert"}).code == 0);
  BOOST_TEST(s.command({"checkpoints", "rm", "bert"}).code == 1);
  BOOST_TEST(parsed(s.command({"checkpoints", "ls", "--json"})).at("checkpoints").empty());
}

BOOST_AUTO_TEST_SUITE_END()
