// Tests the life of a service: it starts, is refused, ends, and leaves nothing behind.
#include <millrace/storage/rocksdb/index.hpp>
#include <millrace/storage/rocksdb/stored_record.hpp>
#include <millrace/tests/support/other_user.hpp>
#include <millrace/tests/support/service.hpp>
#include <millrace/tests/support/skipped.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iostream>

using namespace millrace::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::string kept(const std::string& path) {
  return "[{ name: kept, bucket: rocksdb, capacity: 64MiB, window: 1MiB, path: " + path + " }]";
}

// One line on standard error, nothing elsewhere.
void expect_one_line(const outcome& o, int code, const std::string& part) {
  BOOST_TEST(o.code == code);
  BOOST_TEST(lines_of(o.err) == 1u, o.err);
  BOOST_TEST(o.err.starts_with("millrace: serve: "), o.err);
  BOOST_TEST((o.err.find(part) != o.err.npos), o.err << " lacks " << part);
  BOOST_TEST(o.out.empty(), o.out);
}

constexpr auto require_all = "  require: all\n"; // of the section `node`

outcome serve(const std::string& config) { return run_millrace({"serve", "-c", config}); }

} // namespace

BOOST_AUTO_TEST_SUITE(serve_command)

BOOST_AUTO_TEST_CASE(a_ready_service_says_so_and_a_stopped_one_leaves_no_socket) {
  scratch dir;
  service s{dir};
  BOOST_TEST(
    s.ready_line() ==
    "millrace: node n0 ready on " + s.address() + " providers fast (memory, 64MiB)");
  BOOST_TEST(fs::is_socket(s.socket()));
  BOOST_TEST(
    (fs::status(s.socket()).permissions() == (fs::perms::owner_read | fs::perms::owner_write)));
  BOOST_TEST(s.stop() == 0);
  BOOST_TEST(!fs::exists(s.socket()));
  BOOST_TEST(!fs::exists(s.socket() + ".lock"));
}

BOOST_AUTO_TEST_CASE(the_ready_line_is_json_where_that_is_asked_for) {
  scratch dir;
  auto config = write_config(dir, {});
  child_process served{{MILLRACE_PROGRAM, "serve", "--json", "-c", config}};
  auto ready = json::parse(served.read_line()).at("ready");
  BOOST_TEST(ready.at("node") == "n0");
  BOOST_TEST(ready.at("pid") == served.pid());
  BOOST_TEST(ready.at("providers").at(0).at("capacity_bytes") == 64 << 20);
  served.signal(SIGINT);
  BOOST_TEST(served.wait() == 0);
}

BOOST_AUTO_TEST_CASE(a_damaged_provider_is_named_and_the_others_serve) {
  scratch dir;
  auto pool = dir / "p.pool";
  service s{
    dir,
    {.providers = "[" + std::string{"{ name: fast, capacity: 64MiB }, "} +
       "{ name: pool, group: pool, bucket: pmem, capacity: 32MiB, window: 1MiB, path: " + pool +
       " }]"}};
  BOOST_TEST(s.command({"status"}).code == 0);
  BOOST_TEST(s.stop() == 0);
  {
    std::fstream file{pool, std::ios::in | std::ios::out | std::ios::binary};
    file.seekp(8192); // the logs of libpmemobj
    file << std::string(4096, 'x');
  }
  s.start();
  BOOST_TEST(s.ready_line().ends_with("p.pool) (down)"), s.ready_line());
  auto seen = s.command({"status"});
  BOOST_TEST(seen.code == 1);
  for (auto* words : {"pool", "damaged", "millrace pool salvage", "fast"})
    BOOST_TEST(seen.out.find(words) != seen.out.npos, seen.out);
  BOOST_TEST(s.command({"models", "ls"}).code == 0);
  BOOST_TEST(s.command({"models", "ls", "--group", "pool"}).code == 1);
}

BOOST_AUTO_TEST_CASE(a_node_that_can_open_nothing_says_so_and_runs) {
  scratch dir;
  auto file = dir.write("file", "in the way");
  service s{dir, {.providers = kept(file)}};
  BOOST_TEST(s.ready_line().ends_with("(down)"), s.ready_line());
  auto seen = s.command({"status"});
  BOOST_TEST(seen.code == 1);
  for (auto* words : {"provider kept is down", "the node serves nothing"})
    BOOST_TEST(seen.out.find(words) != seen.out.npos, seen.out);
  BOOST_TEST(s.stop() == 0);
}

BOOST_AUTO_TEST_CASE(a_signal_before_the_service_is_ready_ends_it_in_order) {
  scratch dir;
  auto config = write_config(dir, {.providers = "[{ name: fast, capacity: 256MiB }]"});
  for (int i = 0; i < 5; ++i) {
    child_process served{{MILLRACE_PROGRAM, "serve", "-c", config}};
    // Signals are blocked before anything else is made; until then the default ends it as well.
    for (int polls = 0; polls < 4 * i; ++polls)
      pause_between_polls();
    served.signal(SIGTERM);
    auto code = served.wait();
    BOOST_TEST((code == 0 || code == 128 + SIGTERM), code);
    BOOST_TEST(!fs::exists(dir / "n0.sock"));
  }
}

BOOST_AUTO_TEST_CASE(a_configuration_that_makes_no_sense_is_refused_in_one_line) {
  scratch dir;
  expect_one_line(serve(dir / "absent.yaml"), 2, "absent.yaml: No such file or directory");
  expect_one_line(serve(dir.path.string()), 2, "Is a directory");
  auto unknown = dir.write("unknown.yaml", "providers:\n  - { name: a, capcity: 1GiB }\n");
  expect_one_line(serve(unknown), 2, unknown + ":2:16: unknown key 'capcity'");
  expect_one_line(serve(dir.write("binary.yaml", "a: \x01\xff")), 2, ":1:");
  auto two = dir.write(
    "two.yaml",
    "cluster: { nodes: [{ name: a, providers: [{ name: p }] },"
    " { name: b, providers: [{ name: q }] }] }\n");
  expect_one_line(serve(two), 2, "a, b");
  auto other = run_millrace({"serve", "-c", two, "--node", "c", "--json"});
  BOOST_TEST(other.code == 2);
  BOOST_TEST(json::parse(other.err).at("error").at("code") == "invalid_argument");
}

BOOST_AUTO_TEST_CASE(a_configuration_that_cannot_be_read_is_refused_in_one_line) {
  constexpr uid_t nobody = 65534;
  if (auto why = why_not_as(nobody, MILLRACE_PROGRAM); !why.empty())
    return millrace::testing::skipped("a configuration of another user: " + why);
  scratch dir;
  fs::permissions(dir.path, fs::perms::all);
  auto config = write_config(dir, {});
  chmod(config.c_str(), 0600);
  expect_one_line(run_millrace({"serve", "-c", config}, nobody), 2, "Permission denied");
}

BOOST_AUTO_TEST_CASE(a_socket_in_use_is_refused_and_its_owner_unharmed) {
  scratch dir;
  service s{dir};
  expect_one_line(serve(s.config()), 1, "a live service listens on " + s.socket());
  BOOST_TEST(s.command({"status"}).code == 0);
  BOOST_TEST(s.stop() == 0);
}

BOOST_AUTO_TEST_CASE(a_socket_left_by_a_killed_service_is_taken_over) {
  scratch dir;
  service s{dir};
  s.kill();
  BOOST_TEST(fs::is_socket(s.socket()));
  s.start();
  BOOST_TEST(s.command({"status"}).code == 0);
  BOOST_TEST(s.stop() == 0);
  BOOST_TEST(!fs::exists(s.socket()));
}

BOOST_AUTO_TEST_CASE(a_second_signal_ends_a_service_that_still_drains) {
  scratch dir;
  // A store that does not move keeps the service draining.
  service s{dir, {.more = "limits: { shutdown_timeout: 1h }\n"}};
  child_process stalled{{MILLRACE_PEER, s.address(), "stall", "m", "32", "1"}};
  BOOST_TEST_REQUIRE(stalled.wait_stopped());
  s.process().signal(SIGTERM);
  BOOST_TEST(
    eventually([&] { return !fs::exists(s.socket()) || s.command({"status"}).code == 1; }));
  s.process().signal(SIGTERM);
  BOOST_TEST(s.process().wait() == 128 + SIGTERM);
}

BOOST_AUTO_TEST_CASE(a_directory_of_another_version_is_refused_in_one_line) {
  scratch dir;
  auto path = dir / "kept";
  service s{dir, {.providers = kept(path), .node_more = require_all}};
  BOOST_TEST(s.stop() == 0);
  {
    using namespace millrace::storage::rocksdb;
    auto index = index::open(path + "/index", false, *index_reserve::open(path, 0));
    BOOST_TEST_REQUIRE(index.has_value());
    auto changed = (*index)->write({{keys::format, std::string{format_magic} + "999"}});
    BOOST_TEST_REQUIRE(changed.ok());
  }
  expect_one_line(serve(s.config()), 1, "has format 999, this build reads format");
  BOOST_TEST(!fs::exists(s.socket()));
}

BOOST_AUTO_TEST_CASE(a_directory_that_cannot_be_is_refused_in_one_line) {
  scratch dir;
  auto file = dir.write("file", "in the way");
  expect_one_line(
    serve(write_config(dir, {.providers = kept(file), .node_more = require_all})), 1, file);
  auto other = dir / "other";
  fs::create_directory(other);
  dir.write("other/notes.txt", "mine");
  expect_one_line(
    serve(write_config(dir, {.providers = kept(other), .node_more = require_all})), 1, "notes.txt");
  BOOST_TEST(fs::exists(other + "/notes.txt"));
  expect_one_line(
    serve(write_config(dir, {.providers = kept("/proc/kept"), .node_more = require_all})), 1,
    "/proc/kept");
}

BOOST_AUTO_TEST_CASE(a_directory_in_use_is_refused_and_its_owner_unharmed) {
  scratch dir;
  service s{dir, {.providers = kept(dir / "kept")}};
  auto second =
    write_config(dir, {.node = "n1", .providers = kept(dir / "kept"), .node_more = require_all});
  expect_one_line(
    serve(second), 1, "process " + std::to_string(s.process().pid()) + " (millrace) has it open");
  BOOST_TEST(s.command({"status"}).code == 0);
}

BOOST_AUTO_TEST_CASE(a_socket_where_others_could_replace_it_is_refused_in_one_line) {
  scratch dir;
  fs::permissions(dir.path, fs::perms::all);
  expect_one_line(serve(write_config(dir, {})), 1, "other users can replace files");
}

BOOST_AUTO_TEST_CASE(a_read_only_directory_is_refused_in_one_line) {
  scratch dir;
  if (geteuid() != 0) {
    fs::create_directory(dir / "kept");
    fs::permissions(dir / "kept", fs::perms::owner_read | fs::perms::owner_exec);
    expect_one_line(
      serve(write_config(dir, {.providers = kept(dir / "kept"), .node_more = require_all})), 1,
      dir / "kept");
    return;
  }
  // Nothing is read-only to root, so another user starts the service.
  constexpr uid_t nobody = 65534;
  if (auto why = why_not_as(nobody, MILLRACE_PROGRAM); !why.empty())
    return millrace::testing::skipped("a read-only directory: " + why);
  fs::create_directory(dir / "kept");
  auto config = write_config(dir, {.providers = kept(dir / "kept"), .node_more = require_all});
  // The socket lies here, too, so no one else may write to it.
  BOOST_REQUIRE(::chown(dir.path.c_str(), nobody, nobody) == 0);
  expect_one_line(run_millrace({"serve", "-c", config}, nobody), 1, dir / "kept");
}

BOOST_AUTO_TEST_SUITE_END()
