// Tests models across processes: one stores them, another loads them, and the command shows them.
#include <millrace/runtime/client/client.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/other_user.hpp>
#include <millrace/tests/support/service.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/tests/support/small_disk.hpp>
#include <millrace/tests/system/sample.hpp>
#include <millrace/transport/verbs/verbs_state.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <iostream>

using namespace millrace;
using namespace millrace::testing;
using nlohmann::json;

namespace {

json parsed(const outcome& o) {
  BOOST_TEST_REQUIRE(o.code == 0, o.err);
  return json::parse(o.out);
}

outcome peer(
  const service& s, const std::string& verb, const std::string& model, int mib, int seed) {
  return run_program(
    {MILLRACE_PEER, s.address(), verb, model, std::to_string(mib), std::to_string(seed)});
}

const std::string both_kinds = "\n  - { name: fast, capacity: 64MiB }\n"
                               "  - { name: kept, bucket: rocksdb, group: kept, capacity: 256MiB,"
                               " window: 1MiB, path: ";

// "net/a": two layers with attributes and metadata.
model_graph small_graph() {
  model_graph graph;
  graph.add(
    {"l0",
     "Linear",
     {{"in", "4"}, {"out", "8"}},
     {{"weight", dtype::f32, {8, 4}}, {"bias", dtype::bf16, {8}}},
     {}});
  graph.add({"l1", "ReLU", {}, {}, {0}});
  return graph;
}

} // namespace

BOOST_AUTO_TEST_SUITE(models_across_processes)

BOOST_AUTO_TEST_CASE(what_one_process_stores_another_loads) {
  scratch dir;
  service s{dir};
  auto stored = peer(s, "store", "big", 24, 7);
  BOOST_TEST(stored.code == 0, stored.err);
  BOOST_TEST(peer(s, "load", "big", 24, 7).out == "same verified\n");
  BOOST_TEST(peer(s, "load", "big", 24, 8).out == "different verified\n");
  BOOST_TEST(peer(s, "store", "big", 24, 8).code == 0);
  BOOST_TEST(peer(s, "load", "big", 24, 8).out == "same verified\n");
}

BOOST_AUTO_TEST_CASE(a_command_waits_for_a_version_that_is_newer) {
  scratch dir;
  service s{dir};
  BOOST_TEST(peer(s, "store", "m", 1, 7).code == 0);
  auto found = parsed(s.command({"models", "wait", "m", "--json"}));
  BOOST_TEST(found.at("name") == "m");
  auto version = std::to_string(found.at("version").get<std::uint64_t>());
  auto late =
    s.command({"models", "wait", "m", "--newer-than", version, "--timeout", "300ms", "--json"});
  BOOST_TEST(late.code == 1);
  BOOST_TEST(json::parse(late.err).at("error").at("code") == "deadline_exceeded", late.err);
  BOOST_TEST(s.command({"models", "wait", "m", "--newer-than", "-1"}).code == 2);
  BOOST_TEST(s.command({"models", "wait"}).code == 2);
  // Its provider keeps no checkpoints.
  auto none = s.command({"checkpoints", "wait", "m", "--json"});
  BOOST_TEST(none.code == 1);
  BOOST_TEST(json::parse(none.err).at("error").at("code") == "not_found", none.err);
}

BOOST_AUTO_TEST_CASE(a_durable_model_is_there_after_a_restart) {
  scratch dir;
  service s{
    dir,
    {.providers = "[{ name: kept, bucket: rocksdb, capacity: 64MiB, window: 1MiB, path: " +
       (dir / "kept") + " }]"}};
  BOOST_TEST(peer(s, "store", "big", 16, 7).code == 0);
  s.kill();
  s.start();
  BOOST_TEST(peer(s, "load", "big", 16, 7).out == "same verified\n");
  BOOST_TEST(s.stop() == 0);
  s.start();
  BOOST_TEST(peer(s, "load", "big", 16, 7).out == "same verified\n");
}

BOOST_AUTO_TEST_CASE(parts_and_rows_of_a_model_arrive) {
  scratch dir;
  service s{dir};
  auto whole = sample::of_mib(16).fill(3);
  auto repo = client::connect(s.address()).repository();
  repo.store("m", whole.views).get();
  auto part = sample::of_mib(16);
  repo.load("m", {{part.views[2], {}}}).get();
  BOOST_TEST((part.bytes[2] == whole.bytes[2]));
  BOOST_TEST((part.bytes[1] != whole.bytes[1]));
  std::vector<std::byte> rows(300 * sample::row_bytes);
  tensor_view into{{"layer3.weight", dtype::f32, {300, 1024}}, rows.data(), {}};
  auto receipt = repo.load("m", {{into, 515}}).get();
  BOOST_TEST(receipt.size_bytes == rows.size());
  BOOST_TEST(
    (std::memcmp(rows.data(), whole.bytes[3].data() + 515 * sample::row_bytes, rows.size()) == 0));
  auto beyond = repo.load("m", {{into, 1000}}).result();
  BOOST_TEST_REQUIRE(!beyond.has_value());
  BOOST_TEST((beyond.error().code() == errc::invalid_argument), beyond.error().to_string());
}

BOOST_AUTO_TEST_CASE(a_full_provider_says_so_and_keeps_what_it_has) {
  scratch dir;
  service s{dir};
  BOOST_TEST(peer(s, "store", "first", 40, 1).code == 0);
  auto refused = peer(s, "store", "second", 40, 2);
  BOOST_TEST(refused.code == 1);
  BOOST_TEST(refused.err.starts_with("no_space: "), refused.err);
  BOOST_TEST(lines_of(refused.err) == 1u, refused.err);
  BOOST_TEST(peer(s, "load", "first", 40, 1).out == "same verified\n");
  BOOST_TEST(s.command({"models", "rm", "first"}).code == 0);
  BOOST_TEST(peer(s, "store", "second", 40, 2).code == 0);
}

BOOST_AUTO_TEST_CASE(a_full_disk_stops_neither_the_other_provider_nor_the_next_start) {
  small_disk disk{240u << 20};
  if (!disk.mounted())
    return skipped("a full file system: needs root and mount");
  scratch dir;
  std::string larger_than_the_disk =
    "\n  - { name: fast, capacity: 64MiB }\n"
    "  - { name: kept, bucket: rocksdb, group: kept, capacity: 4GiB,"
    " window: 1MiB, path: ";
  service s{dir, {.providers = larger_than_the_disk + disk.path() + "/kept }"}};
  std::uint64_t stored = 0;
  auto store = [&](std::uint64_t number) {
    auto whole = sample::of_mib(8).fill(number);
    auto name = "m" + std::to_string(number);
    return client::connect(s.address()).repository("kept").store(name, whole.views).result();
  };
  auto expect_whole = [&](std::uint64_t number) {
    auto expected = sample::of_mib(8).fill(number), found = sample::of_mib(8);
    std::vector<load_target> targets;
    for (auto& view : found.views)
      targets.push_back({view, {}});
    auto name = "m" + std::to_string(number);
    auto loaded = client::connect(s.address()).repository("kept").load(name, targets).result();
    BOOST_TEST_REQUIRE(loaded.has_value(), why(loaded));
    BOOST_TEST((found.bytes == expected.bytes));
  };
  for (auto more = true; more; stored += more)
    more = store(stored).has_value();
  BOOST_TEST(stored >= 5u);
  disk.fill();
  auto refused = store(stored);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::no_space), why(refused));
  BOOST_TEST(peer(s, "store", "other", 24, 7).code == 0);
  BOOST_TEST(s.command({"status"}).code == 0);
  s.kill();
  disk.fill();
  // The full provider cannot write down, except in what is kept for that, that it is no more alone.
  write_config(
    dir,
    {.providers = larger_than_the_disk + disk.path() +
       "/kept }\n  - { name: more, bucket: rocksdb, group: kept, capacity: 64MiB, window: 1MiB, "
       "path: " +
       (dir / "more") + " }"});
  s.start();
  BOOST_TEST(peer(s, "store", "other", 24, 7).code == 0);
  BOOST_TEST(peer(s, "load", "other", 24, 7).out == "same verified\n");
  for (std::uint64_t i = 0; i < stored; ++i)
    expect_whole(i);
  BOOST_TEST(s.command({"models", "rm", "m0", "m1", "--group", "kept"}).code == 0);
  auto again = store(0);
  BOOST_TEST(again.has_value(), why(again));
  expect_whole(0);
  expect_whole(2);
  BOOST_TEST(s.stop() == 0);
}

BOOST_AUTO_TEST_CASE(the_command_lists_describes_and_removes) {
  scratch dir;
  service s{dir};
  auto whole = sample::of_mib(1).fill(3);
  auto repo = client::connect(s.address()).repository();
  std::vector<std::byte> weight(8 * 4 * 4);
  std::vector<std::byte> bias(8 * 2);
  repo
    .store(
      "net/a", small_graph(),
      {{{"l0.weight", dtype::f32, {8, 4}}, weight.data(), {}},
       {{"l0.bias", dtype::bf16, {8}}, bias.data(), {}}},
      {.pinned = true, .metadata = {{"epoch", "3"}}})
    .get();
  repo.store("other", whole.views).get();

  auto all = parsed(s.command({"models", "ls", "--json"})).at("models");
  BOOST_TEST_REQUIRE(all.size() == 2u);
  BOOST_TEST(all[0].at("name") == "net/a");
  BOOST_TEST(all[0].at("pinned") == true);
  BOOST_TEST(all[1].at("size_bytes") == 1 << 20);
  BOOST_TEST(all[1].at("tensors") == 4);
  BOOST_TEST(parsed(s.command({"models", "ls", "net/", "--json"})).at("models").size() == 1u);

  auto model = parsed(s.command({"models", "describe", "net/a", "--json"}));
  BOOST_TEST(model.at("metadata").at("epoch") == "3");
  BOOST_TEST(model.at("provider") == "fast");
  BOOST_TEST(model.at("layers").size() == 2u);
  BOOST_TEST(model.at("layers").at(0).at("kind") == "Linear");
  BOOST_TEST(model.at("layers").at(0).at("attributes").at("out") == "8");
  BOOST_TEST(model.at("layers").at(1).at("inputs") == json::array({0}));
  BOOST_TEST(model.at("tensors").at(0).at("layer") == 0);
  BOOST_TEST(model.at("tensors").at(0).at("shape") == json({8, 4}));

  auto text = s.command({"models", "describe", "net/a"}).out;
  BOOST_TEST((text.find("in=4 out=8") != text.npos), text);
  BOOST_TEST((text.find("epoch") != text.npos), text);
  auto removed = s.command({"models", "rm", "net/a", "absent", "--json"});
  BOOST_TEST(removed.code == 1);
  BOOST_TEST(json::parse(removed.out).at("removed") == json({"net/a"}));
  BOOST_TEST(json::parse(removed.out).at("failed").at(0).at("error").at("code") == "not_found");
  auto gone = s.command({"models", "describe", "net/a"});
  BOOST_TEST(gone.code == 1);
  BOOST_TEST(gone.err == "millrace: models describe: no model named net/a\n");
}

BOOST_AUTO_TEST_CASE(pins_are_set_and_lifted) {
  scratch dir;
  service s{dir};
  BOOST_TEST(peer(s, "store", "m", 1, 1).code == 0);
  auto pinned = [&] {
    return parsed(s.command({"models", "ls", "--json"})).at("models").at(0).at("pinned");
  };
  BOOST_TEST(pinned() == false);
  BOOST_TEST(s.command({"models", "pin", "m"}).code == 0);
  BOOST_TEST(pinned() == true);
  BOOST_TEST(s.command({"models", "unpin", "m"}).code == 0);
  BOOST_TEST(pinned() == false);
  BOOST_TEST(s.command({"models", "pin", "absent"}).code == 1);
}

BOOST_AUTO_TEST_CASE(names_from_outside_cannot_upset_a_terminal) {
  scratch dir;
  service s{dir};
  auto whole = sample::of_mib(1).fill(3);
  client::connect(s.address()).repository().store("evil\x1b[2Jé", whole.views).get();
  auto text = s.command({"models", "ls"}).out;
  BOOST_TEST((text.find('\x1b') == text.npos));
  BOOST_TEST((text.find("evil\\x1b[2Jé") != text.npos), text);
  BOOST_TEST(
    parsed(s.command({"models", "ls", "--json"})).at("models").at(0).at("name") == "evil\x1b[2Jé");
}

BOOST_AUTO_TEST_CASE(groups_keep_their_models_apart) {
  scratch dir;
  service s{dir, {.providers = both_kinds + (dir / "kept") + " }"}};
  auto whole = sample::of_mib(1).fill(3);
  client::connect(s.address()).repository("kept").store("m", whole.views).get();
  BOOST_TEST(parsed(s.command({"models", "ls", "--json"})).at("models").empty());
  auto kept = parsed(s.command({"models", "ls", "--group", "kept", "--json"}));
  BOOST_TEST(kept.at("models").size() == 1u);
  auto wrong = s.command({"models", "describe", "m", "--group", "absent"});
  BOOST_TEST(wrong.code == 1);
  BOOST_TEST((wrong.err.find("absent") != wrong.err.npos), wrong.err);
}

BOOST_AUTO_TEST_CASE(status_counts_what_was_done) {
  scratch dir;
  service s{dir, {.providers = both_kinds + (dir / "kept") + " }"}};
  BOOST_TEST(peer(s, "store", "m", 8, 1).code == 0);
  BOOST_TEST(peer(s, "load", "m", 8, 1).code == 0);
  BOOST_TEST(s.command({"models", "describe", "absent"}).code == 1);
  auto node = parsed(s.command({"status", "--json"})).at("nodes").at(0);
  BOOST_TEST(node.at("node") == "n0");
  BOOST_TEST(node.at("address") == s.address());
  BOOST_TEST(node.at("pid") == s.process().pid());
  BOOST_TEST(node.at("connections") == 1);
  BOOST_TEST(node.at("staging").at("capacity_bytes") == 32 << 20);
  BOOST_TEST_REQUIRE(node.at("providers").size() == 2u);
  auto& fast = node.at("providers").at(0);
  BOOST_TEST(fast.at("name") == "fast");
  BOOST_TEST(fast.at("models") == 1);
  BOOST_TEST(fast.at("stores") == 1);
  BOOST_TEST(fast.at("loads") == 1);
  BOOST_TEST(fast.at("stored_bytes") == 8 << 20);
  BOOST_TEST(fast.at("loaded_bytes") == 8 << 20);
  BOOST_TEST(fast.at("used_bytes") >= 8 << 20);
  BOOST_TEST(fast.at("in_flight") == 0);
  BOOST_TEST(node.at("providers").at(1).at("durable") == true);
  auto text = s.command({"status"}).out;
  BOOST_TEST((text.find(" MiB of 64 MiB") != text.npos), text);
  // No device, nothing of devices.
  auto devices = transport::describe_verbs_devices({}).remark.empty();
  BOOST_TEST(node.contains("rdma") == devices);
  BOOST_TEST((text.find("rdma: ") != text.npos) == devices, text);
}

BOOST_AUTO_TEST_CASE(status_shows_who_has_how_much_staging_memory) {
  scratch dir;
  service s{
    dir,
    {.providers = "[{ name: kept, bucket: rocksdb, capacity: 256MiB, window: 1MiB,"
                  " staging_percent: 50, path: " +
       (dir / "kept") + " }]"}};
  for (int i = 0; i < 3; ++i)
    BOOST_TEST(peer(s, "store", "m", 24, i).code == 0);
  BOOST_TEST(peer(s, "load", "m", 24, 2).out == "same verified\n");
  auto staging = parsed(s.command({"status", "--json"})).at("nodes").at(0).at("staging");
  BOOST_TEST_REQUIRE(staging.at("lenders").size() == 1u);
  auto& kept = staging.at("lenders").at(0);
  BOOST_TEST(kept.at("name") == "kept");
  BOOST_TEST(kept.at("quota_bytes") == 16 << 20);
  BOOST_TEST(kept.at("budget_bytes").get<int>() <= 16 << 20);
  BOOST_TEST(kept.at("used_bytes") == 0);
  BOOST_TEST(kept.at("waiting") == 0);
  BOOST_TEST(kept.at("lent").get<int>() >= 4 * 24);
  BOOST_TEST(kept.at("lent_bytes").get<int>() >= 4 * (24 << 20));
  auto calls = kept.at("calls").get<int>();
  BOOST_TEST(calls >= 1);
  BOOST_TEST(calls <= 1 + kept.at("lent_bytes").get<int>() / (64 << 20));
  auto text = s.command({"status"}).out;
  BOOST_TEST((text.find("staging of") != text.npos), text);
  BOOST_TEST((text.find(" 16 MiB") != text.npos), text);
}

BOOST_AUTO_TEST_CASE(status_names_the_node_that_does_not_answer) {
  scratch dir;
  auto node = [&](const std::string& name, const std::string& provider) {
    return "    - { name: " + name + ", listen: unix:" + (dir / name) +
      ", providers: [{ name: " + provider + ", capacity: 16MiB }] }\n";
  };
  auto config = dir.write(
    "two.yaml", "staging: { size: 16MiB }\ncluster:\n  nodes:\n" + node("a", "p") + node("b", "q"));
  child_process a{{MILLRACE_PROGRAM, "serve", "-c", config, "--node", "a"}};
  a.read_line();
  auto status = run_millrace({"status", "-c", config, "--json"});
  BOOST_TEST(status.code == 1);
  auto nodes = json::parse(status.out).at("nodes");
  BOOST_TEST(nodes.at(0).at("node") == "a");
  BOOST_TEST(nodes.at(1).at("address") == "unix:" + (dir / "b"));
  BOOST_TEST(nodes.at(1).at("error").at("code") == "unavailable");
  child_process b{{MILLRACE_PROGRAM, "serve", "-c", config, "--node", "b"}};
  b.read_line();
  BOOST_TEST(run_millrace({"status", "-c", config}).code == 0);
  // Either node knows where all providers are.
  BOOST_TEST(
    json::parse(run_millrace({"status", "--json", "--address", "unix:" + (dir / "b")}).out)
      .at("nodes")
      .size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_user_without_permission_is_refused) {
  constexpr uid_t stranger = 12345;
  if (auto why = why_not_as(stranger, MILLRACE_PROGRAM); !why.empty())
    return millrace::testing::skipped("a user without permission: " + why);
  scratch dir;
  chmod(dir.path.c_str(), 0755);
  {
    service s{dir, {.node = "closed"}};
    auto refused = run_millrace({"status", "--address", s.address()}, stranger);
    BOOST_TEST(refused.code == 1);
    BOOST_TEST(lines_of(refused.err) == 1u, refused.err);
    BOOST_TEST((refused.err.find("Permission denied") != refused.err.npos), refused.err);
    BOOST_TEST(s.command({"status"}).code == 0);
  }
  service s{dir, {.node = "open", .node_more = "  socket_mode: 0666\n  allow_users: [12346]\n"}};
  auto refused = run_millrace({"status", "--address", s.address(), "--json"}, stranger);
  BOOST_TEST(refused.code == 1);
  BOOST_TEST(json::parse(refused.err).at("error").at("code") == "permission_denied", refused.err);
  auto allowed = run_millrace({"status", "--address", s.address()}, stranger + 1);
  BOOST_TEST(allowed.code == 0, allowed.err);
}

BOOST_AUTO_TEST_SUITE_END()
