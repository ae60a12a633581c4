// Tests checkpoints of a running service from the command line. Files are saved, listed, verified,
// and written again.
#include <millrace/runtime/client/client.hpp>
#include <millrace/storage/archive/archive.hpp>
#include <millrace/tests/support/service.hpp>
#include <millrace/tests/support/tensors_in_memory.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <future>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using nlohmann::json;

namespace {

std::string with_pool(
  const scratch& dir, const std::string& capacity = "128MiB", const std::string& more = "") {
  return "[{ name: ckpt, bucket: pmem, capacity: " + capacity + ", path: " + (dir / "pool") + more +
    " }]";
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

outcome load(
  const service& s, const scratch& dir, std::uint64_t step, const std::string& model,
  const std::vector<std::string>& more = {}) {
  auto source = content(step);
  auto file = dir / ("in-" + std::to_string(step) + ".npz");
  std::filesystem::remove(file);
  BOOST_TEST_REQUIRE(
    storage::archive::write_archive(storage::archive::archive_format::npz, file, source).ok());
  std::vector<std::string> words = {"checkpoints",       "load", file, "--model", model, "--step",
                                    std::to_string(step)};
  words.insert(words.end(), more.begin(), more.end());
  return s.command(std::move(words));
}

void load(const service& s, const scratch& dir, std::uint64_t step) {
  auto o = load(s, dir, step, "bert");
  BOOST_TEST_REQUIRE(o.code == 0, o.err);
}

/// All that a command prints where it has a terminal.
std::string on_a_terminal(std::vector<std::string> words) {
  words.insert(words.begin(), MILLRACE_PROGRAM);
  std::vector<char*> arguments;
  for (auto& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int terminal = -1;
  auto child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  BOOST_TEST_REQUIRE(child >= 0);
  if (child == 0) {
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  std::string shown;
  char buffer[4096];
  // The end of the last process at a terminal is an error there.
  for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof buffer)) > 0;)
    shown.append(buffer, static_cast<std::size_t>(got));
  ::close(terminal);
  int ended = 0;
  ::waitpid(child, &ended, 0);
  BOOST_TEST((WIFEXITED(ended) && WEXITSTATUS(ended) == 0), shown);
  return shown;
}

bool holds(const std::string& file, std::uint64_t seed) {
  auto found = storage::archive::open_archive(file);
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

BOOST_AUTO_TEST_CASE(ranks_that_are_loaded_one_by_one_make_whole_steps) {
  scratch dir;
  service s{dir, {.providers = with_pool(dir)}};
  for (std::string rank : {"0", "1"})
    for (std::uint64_t step : {10, 20}) {
      auto o = load(s, dir, step, "pair", {"--rank", rank, "--world-size", "2"});
      BOOST_TEST_REQUIRE(o.code == 0, o.err);
    }
  auto all = parsed(s.command({"checkpoints", "ls", "--json"})).at("checkpoints");
  BOOST_TEST_REQUIRE(all.size() == 1u);
  BOOST_TEST((all[0].at("complete_steps") == json{10, 20}));
  // A job that goes on from there saves steps of its own.
  auto again = load(s, dir, 20, "pair", {"--rank", "1", "--world-size", "2"});
  BOOST_TEST_REQUIRE(again.code == 0, again.err);
  all = parsed(s.command({"checkpoints", "ls", "--json"})).at("checkpoints");
  BOOST_TEST(all[0].at("newest_step") == 20);
  BOOST_TEST(s.command({"checkpoints", "dump", "pair", dir / "{rank}.npz"}).code == 0);
  for (std::string rank : {"0", "1"})
    BOOST_TEST(holds(dir / (rank + ".npz"), 20), rank);
}

// Every version lives for two saves only, far shorter than a command takes.
BOOST_AUTO_TEST_CASE(versions_of_a_job_that_saves_on_are_dumped_whole_and_verified) {
  scratch dir;
  service s{dir, {.providers = with_pool(dir)}};
  std::promise<void> first_saved;
  std::jthread job{[&](const std::stop_token& stop) {
    std::vector<std::uint64_t> numbers(100'000);
    auto bytes = std::as_writable_bytes(std::span{numbers});
    auto saver =
      client::connect(s.address())
        .checkpointer(
          {.model = "live"}, {tensor_view::dense("step", dtype::u64, {numbers.size()}, bytes)})
        .get();
    for (std::uint64_t step = 1; !stop.stop_requested(); ++step) {
      std::ranges::fill(numbers, step);
      saver.save(step).durable.get();
      if (step == 2)
        first_saved.set_value();
    }
  }};
  BOOST_TEST_REQUIRE(
    (first_saved.get_future().wait_for(std::chrono::minutes{1}) == std::future_status::ready));
  for (int i = 0; i < 5; ++i) {
    auto dumped =
      parsed(s.command({"checkpoints", "dump", "live", dir / "live.npz", "--force", "--json"}));
    auto file = storage::archive::open_archive(dir / "live.npz");
    BOOST_TEST_REQUIRE(file.has_value());
    auto bytes = read_tensor(**file, 0).value();
    std::vector<std::uint64_t> numbers(bytes.size() / 8);
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    auto step = dumped.at("step").get<std::uint64_t>();
    BOOST_TEST(std::ranges::count(numbers, step) == 100'000);
    auto verified = parsed(s.command({"checkpoints", "verify", "live", "--json"}));
    BOOST_TEST(verified.at("failed").empty());
    BOOST_TEST(verified.at("verified").size() + verified.at("replaced").size() >= 1u);
  }
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

BOOST_AUTO_TEST_CASE(steps_that_are_copied_on_show_in_the_status) {
  scratch dir;
  service s{dir, {.providers = with_pool(dir, "128MiB", ", flush_to: " + (dir / "flushed"))}};
  load(s, dir, 10);
  BOOST_TEST(eventually([&] {
    auto nodes = parsed(s.command({"status", "--json"})).at("nodes");
    auto flushed = nodes.at(0).at("providers").at(0).at("flush");
    return flushed.at("steps") == 1 && flushed.at("waiting") == 0 && flushed.at("failures") == 0;
  }));
  BOOST_TEST(s.command({"status"}).out.find("flushed on") != std::string::npos);
  BOOST_TEST(holds(dir / "flushed/bert/step-10/rank-0-of-1.safetensors", 10));
}

BOOST_AUTO_TEST_CASE(a_full_pool_refuses_reclaims_or_repacks_as_configured) {
  // Four versions of the one model leave no room for two of the other.
  for (auto& [how, fits] : std::vector<std::pair<std::string, bool>>{
         {"", false}, {", low_space: reclaim", true}, {", repack: when_low", true}}) {
    BOOST_TEST_CONTEXT(how) {
      scratch dir;
      service s{dir, {.providers = with_pool(dir, "24MiB", how)}};
      for (std::uint64_t step : {1, 2, 3, 4})
        BOOST_TEST(load(s, dir, step, "bert", {"--keep", "4"}).code == 0);
      auto other = load(s, dir, 5, "gpt");
      BOOST_TEST((other.code == 0) == fits, other.err);
      if (!fits)
        BOOST_TEST(other.err.find("bytes, free are") != std::string::npos, other.err);
      auto all = parsed(s.command({"checkpoints", "ls", "bert", "--json"})).at("checkpoints").at(0);
      BOOST_TEST(all.at("newest_step") == 4);
      BOOST_TEST((all.at("complete_steps").size() == 4u) == !fits);
      BOOST_TEST(s.command({"checkpoints", "dump", "bert", dir / "a.pt"}).code == 0);
      BOOST_TEST(holds(dir / "a.pt", 4));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_pool_that_is_low_is_repacked_when_a_job_has_ended) {
  scratch dir;
  service s{
    dir,
    {.providers = with_pool(dir, "128MiB", ", repack: when_low"),
     .more = "checkpoints: { repack_below: 100 }\n"}};
  load(s, dir, 10);
  load(s, dir, 20);
  BOOST_TEST(eventually([&] {
    auto all = parsed(s.command({"checkpoints", "ls", "--json"})).at("checkpoints").at(0);
    return all.at("complete_steps") == json{20};
  }));
}

BOOST_AUTO_TEST_CASE(a_bar_is_drawn_on_a_terminal_and_nowhere_else) {
  scratch dir;
  service s{dir, {.providers = with_pool(dir)}};
  load(s, dir, 10);
  s.kill();
  std::vector<std::string> verify = {"checkpoints", "verify", "--pool", dir / "pool"};
  auto piped = run_millrace(verify);
  BOOST_TEST_REQUIRE(piped.code == 0, piped.err);
  BOOST_TEST(piped.err == "");
  auto shown = on_a_terminal(verify);
  BOOST_TEST(shown.find("\rbert@10 rank 0 [") != std::string::npos, shown);
  BOOST_TEST(shown.find("%") != std::string::npos, shown);
  // In the end only the table is left.
  BOOST_TEST(shown.find("\r\x1b[K") != std::string::npos, shown);
}

BOOST_AUTO_TEST_SUITE_END()
