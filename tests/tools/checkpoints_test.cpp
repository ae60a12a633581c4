// Tests the commands for pools and checkpoints, on a pool that no service has open.
#include "run.hpp"

#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/archive/sidecar.hpp>
#include <millrace/storage/flush/version_flusher.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pool_place.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/tensors_in_memory.hpp>
#include <millrace/tools/checkpoints/version_name.hpp>
#include <millrace/tools/progress_line.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using nlohmann::json;

namespace {

/// A pool and a directory for files.
struct place {
  pool_place medium{pool_way::mapped_file};
  scratch_directory dir;
  std::string pool = medium.path();

  place() {
    auto made = run({"pool", "create", pool, "--size", "64MiB"});
    BOOST_TEST_REQUIRE(made.code == 0, made.err);
  }

  outcome checkpoints(std::vector<std::string> words) const {
    words.insert(words.begin(), "checkpoints");
    words.insert(words.end(), {"--pool", pool});
    return run(std::move(words));
  }
  json parsed(std::vector<std::string> words) const {
    words.emplace_back("--json");
    auto o = checkpoints(std::move(words));
    BOOST_TEST_REQUIRE(o.code == 0, o.err);
    return json::parse(o.out);
  }
  std::string file(const std::string& name) const { return dir.path() + "/" + name; }
};

tensors_in_memory content(std::uint64_t seed) {
  tensors_in_memory all;
  all.add({"layer.weight", dtype::bf16, {300, 1000}}, seed);
  all.add({"layer.bias", dtype::f32, {1000}}, seed);
  all.add({"truth", dtype::boolean, {7}}, seed);
  all.add({"none", dtype::i64, {0, 3}}, seed);
  all.say("run", "seven");
  return all;
}

std::string file_with(const place& p, const std::string& name, std::uint64_t seed) {
  auto source = content(seed);
  auto path = p.file(name);
  BOOST_TEST_REQUIRE(
    storage::archive::write_archive(storage::archive::archive_format::safetensors, path, source)
      .ok());
  return path;
}

void load(const place& p, std::uint64_t step, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {
    "load",    file_with(p, "in-" + std::to_string(step) + ".safetensors", step),
    "--model", "resnet",
    "--step",  std::to_string(step)};
  words.insert(words.end(), more.begin(), more.end());
  auto o = p.checkpoints(words);
  BOOST_TEST_REQUIRE(o.code == 0, o.err);
  std::filesystem::remove(words[1]);
}

std::string difference_of(const std::string& path, std::uint64_t seed) {
  auto found = storage::archive::open_archive(path);
  if (!found)
    return found.error().to_string();
  auto expected = content(seed);
  auto& tensors = expected.tensors().tensors;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    if ((*found)->tensors().tensors.at(i) != tensors[i])
      return tensors[i].name;
    if (read_tensor(**found, i) != expected.bytes(i))
      return "the bytes of " + tensors[i].name;
  }
  return {};
}

// The weight's bytes are somewhere in the pool's file: one of them changes.
void spoil(const place& p, const tensors_in_memory& all) {
  std::string weight(reinterpret_cast<const char*>(all.bytes(0).data()), all.bytes(0).size());
  auto at = contents_of(p.pool).find(weight);
  BOOST_TEST_REQUIRE(at != std::string::npos);
  std::fstream file{p.pool, std::ios::in | std::ios::out | std::ios::binary};
  file.seekp(static_cast<std::streamoff>(at + 1000));
  file.put(static_cast<char>(~weight[1000]));
}

} // namespace

BOOST_AUTO_TEST_SUITE(pools_at_rest)

BOOST_AUTO_TEST_CASE(a_pool_is_made_once_and_described) {
  place p;
  auto info = run({"pool", "info", p.pool, "--json"});
  BOOST_TEST_REQUIRE(info.code == 0, info.err);
  auto told = json::parse(info.out);
  BOOST_TEST(told.at("size_bytes") == 64u << 20);
  BOOST_TEST(told.at("models") == 0);
  BOOST_TEST(run({"pool", "info", p.pool}).out.find("64 MiB") != std::string::npos);
  auto again = run({"pool", "create", p.pool, "--size", "64MiB"});
  BOOST_TEST(again.code == 1);
  BOOST_TEST(again.err.starts_with("millrace: pool create: "), again.err);
  BOOST_TEST(run({"pool", "create", p.file("x"), "--size", "lots"}).code == 2);
  BOOST_TEST(run({"pool", "create", p.file("x"), "--size", "64MiB", "--medium", "tape"}).code == 2);
  BOOST_TEST(run({"pool", "info", p.file("absent")}).code == 1);
  auto checked = run({"pool", "check", p.pool});
  BOOST_TEST(checked.code == 0, checked.err);
  BOOST_TEST(checked.out.find(": ok, 0 versions") != std::string::npos, checked.out);
}

BOOST_AUTO_TEST_CASE(what_is_loaded_is_listed_viewed_verified_and_dumped) {
  place p;
  load(p, 10);
  load(p, 20);
  auto all = p.parsed({"ls"}).at("checkpoints");
  BOOST_TEST_REQUIRE(all.size() == 1u);
  BOOST_TEST(all[0].at("model") == "resnet");
  BOOST_TEST((all[0].at("complete_steps") == json{10, 20}));
  BOOST_TEST(all[0].at("newest_step") == 20);
  BOOST_TEST(p.checkpoints({"ls"}).out.find("10 20") != std::string::npos);
  BOOST_TEST(p.parsed({"ls", "vgg"}).at("checkpoints").empty());

  auto seen = p.parsed({"view", "resnet"});
  BOOST_TEST(seen.at("layouts").at(0).at("tensors").size() == 4u);
  BOOST_TEST(seen.at("layouts").at(0).at("metadata").at("run") == "seven");
  BOOST_TEST(p.checkpoints({"view", "resnet"}).out.find("layer.bias") != std::string::npos);
  BOOST_TEST(p.checkpoints({"view", "resnet", "--rank", "1"}).code == 1);

  auto verified = p.parsed({"verify"});
  BOOST_TEST(verified.at("verified").size() == 2u);
  BOOST_TEST(p.checkpoints({"verify", "resnet@10"}).code == 0);
  BOOST_TEST(p.checkpoints({"verify", "resnet@11"}).code == 1);
  for (auto* verb : {"view", "verify", "rm"})
    BOOST_TEST(
      p.checkpoints({verb, "resnet@abc"}).err.find("'abc' is no step") != std::string::npos, verb);

  for (std::string name : {"a.safetensors", "a.npz", "a.h5", "a.pt"}) {
    auto dumped = p.checkpoints({"dump", "resnet", p.file(name)});
    BOOST_TEST(dumped.code == 0, dumped.err);
    BOOST_TEST(difference_of(p.file(name), 20) == "", name);
  }
  auto old = p.parsed({"dump", "resnet@10", p.file("old"), "--format", "npz"});
  BOOST_TEST(old.at("step") == 10);
  BOOST_TEST(difference_of(p.file("old"), 10) == "");
}

BOOST_AUTO_TEST_CASE(dumping_says_what_it_lacks) {
  place p;
  load(p, 10);
  BOOST_TEST(p.checkpoints({"dump", "resnet", p.file("a")}).code == 2);
  BOOST_TEST(p.checkpoints({"dump", "resnet", p.file("a"), "--format", "zip"}).code == 2);
  BOOST_TEST(p.checkpoints({"dump", "vgg", p.file("a.npz")}).code == 1);
  BOOST_TEST(p.checkpoints({"dump", "resnet@11", p.file("a.npz")}).code == 1);
  BOOST_TEST(p.checkpoints({"dump", "resnet", p.file("a.npz"), "--rank", "1"}).code == 2);
  BOOST_TEST(p.checkpoints({"dump", "resnet", p.file("a.npz")}).code == 0);
  auto there = p.checkpoints({"dump", "resnet", p.file("a.npz")});
  BOOST_TEST(there.code == 1);
  BOOST_TEST(there.err.find("--force") != std::string::npos, there.err);
  BOOST_TEST(p.checkpoints({"dump", "resnet", p.file("a.npz"), "--force"}).code == 0);
}

BOOST_AUTO_TEST_CASE(what_is_wrong_with_the_place_of_a_dump_is_said) {
  place p;
  load(p, 10);
  std::ofstream{p.file("plain")} << "x";
  std::filesystem::create_directory(p.file("a.npz"));
  for (auto& [name, why] : std::vector<std::pair<std::string, std::string>>{
         {"none/a.npz", "there is no directory"},
         {"plain/a.npz", "Not a directory"},
         {"a.npz", "is no regular file"},
         {std::string(300, 'a') + ".npz", "File name too long"}}) {
    auto o = p.checkpoints({"dump", "resnet", p.file(name), "--force"});
    BOOST_TEST(o.code == 1);
    BOOST_TEST(o.err.find(why) != std::string::npos, o.err);
  }
}

BOOST_AUTO_TEST_CASE(a_dumped_file_tells_where_it_came_from) {
  place p, other;
  load(p, 10);
  BOOST_TEST_REQUIRE(p.checkpoints({"dump", "resnet", p.file("a.pt")}).code == 0);
  auto back = other.parsed({"load", p.file("a.pt")});
  BOOST_TEST(back.at("loaded").at(0).at("model") == "resnet");
  BOOST_TEST(back.at("loaded").at(0).at("step") == 10);
  auto metadata = other.parsed({"view", "resnet"}).at("layouts").at(0).at("metadata");
  BOOST_TEST((metadata == json{{"run", "seven"}}));
  auto nameless = file_with(p, "plain.safetensors", 1);
  auto refused = p.checkpoints({"load", nameless});
  BOOST_TEST(refused.code == 2);
  BOOST_TEST(refused.err.find("--model") != std::string::npos, refused.err);
}

BOOST_AUTO_TEST_CASE(ranks_go_to_files_of_their_own) {
  place p;
  for (std::uint32_t rank : {0u, 1u})
    load(p, 10, {"--rank", std::to_string(rank), "--world-size", "2"});
  BOOST_TEST((p.parsed({"ls"}).at("checkpoints").at(0).at("complete_steps") == json{10}));
  auto together = p.checkpoints({"dump", "resnet", p.file("a.npz")});
  BOOST_TEST(together.code == 2);
  BOOST_TEST(together.err.find("{rank}") != std::string::npos, together.err);
  BOOST_TEST(p.parsed({"dump", "resnet", p.file("a-{rank}.npz")}).at("files").size() == 2u);
  BOOST_TEST(difference_of(p.file("a-0.npz"), 10) == "");
  BOOST_TEST(difference_of(p.file("a-1.npz"), 10) == "");
  place other;
  auto back = other.parsed({"load", p.file("a-{rank}.npz"), "--world-size", "2"});
  BOOST_TEST(back.at("loaded").size() == 2u);
  BOOST_TEST((other.parsed({"ls"}).at("checkpoints").at(0).at("complete_steps") == json{10}));
}

BOOST_AUTO_TEST_CASE(a_known_shard_keeps_its_slots_its_axes_and_its_words) {
  place p;
  auto file = [&](const std::string& run, const std::string& axis) {
    auto source = content(7);
    if (!run.empty())
      source.say("again", run);
    source.say("millrace.axis.tensor", axis);
    auto path = p.file("with-" + run + ".safetensors");
    BOOST_TEST_REQUIRE(
      storage::archive::write_archive(storage::archive::archive_format::safetensors, path, source)
        .ok());
    return path;
  };
  auto first = file("", "1/4"), later = file("changed", "2/4");
  auto load_as = [&](const std::string& path, std::uint64_t step, std::vector<std::string> more) {
    std::vector<std::string> words = {"load",   path,     "--model",
                                      "resnet", "--step", std::to_string(step)};
    words.insert(words.end(), more.begin(), more.end());
    return p.parsed(words).at("loaded").at(0).at("metadata_left_out");
  };
  BOOST_TEST(load_as(first, 1, {"--keep", "5"}) == false);
  BOOST_TEST(load_as(first, 1, {}) == false);
  for (std::uint64_t step = 2; step <= 5; ++step)
    BOOST_TEST(load_as(later, step, {}) == true);
  auto steps = [&] { return p.parsed({"ls"}).at("checkpoints").at(0).at("complete_steps"); };
  BOOST_TEST((steps() == json{1, 2, 3, 4, 5}));
  auto layout = p.parsed({"view", "resnet"}).at("layouts").at(0);
  BOOST_TEST(layout.at("keep") == 5);
  BOOST_TEST((layout.at("axes") == json{{"tensor", "1/4"}}));
  BOOST_TEST((layout.at("metadata") == json{{"run", "seven"}}));
  // A smaller number keeps fewer steps.
  load_as(later, 6, {"--keep", "2"});
  BOOST_TEST(steps().size() == 2u);
}

BOOST_AUTO_TEST_CASE(places_on_parallel_axes_are_shown_dumped_and_loaded) {
  place p, other;
  auto source = content(1);
  source.say("millrace.axis.tensor", "3/4");
  source.say("millrace.axis.pipeline", "0/2");
  auto path = p.file("in.safetensors");
  BOOST_TEST_REQUIRE(
    storage::archive::write_archive(storage::archive::archive_format::safetensors, path, source)
      .ok());
  auto o = p.checkpoints({"load", path, "--model", "gpt", "--step", "1"});
  BOOST_TEST_REQUIRE(o.code == 0, o.err);
  json axes = {{"tensor", "3/4"}, {"pipeline", "0/2"}};
  BOOST_TEST((p.parsed({"view", "gpt"}).at("layouts").at(0).at("axes") == axes));
  BOOST_TEST((p.parsed({"ls"}).at("checkpoints").at(0).at("shards").at(0).at("axes") == axes));
  auto shown = p.checkpoints({"view", "gpt"}).out;
  BOOST_TEST(shown.find("tensor") != std::string::npos, shown);
  BOOST_TEST(shown.find("3/4") != std::string::npos, shown);
  for (std::string name : {"a.safetensors", "a.npz", "a.h5", "a.pt"}) {
    BOOST_TEST_REQUIRE(p.checkpoints({"dump", "gpt", p.file(name)}).code == 0);
    BOOST_TEST_REQUIRE(other.checkpoints({"load", p.file(name), "--model", name}).code == 0);
    auto there = other.parsed({"view", name}).at("layouts").at(0);
    BOOST_TEST((there.at("axes") == axes), name);
    BOOST_TEST((there.at("metadata") == json{{"run", "seven"}}), name);
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_names_its_world_is_loaded_by_rank_alone) {
  place p, other;
  for (std::uint32_t rank : {0u, 1u, 2u})
    load(p, 10, {"--rank", std::to_string(rank), "--world-size", "3"});
  BOOST_TEST_REQUIRE(p.checkpoints({"dump", "resnet", p.file("a-{rank}.npz")}).code == 0);
  auto back = other.parsed({"load", p.file("a-{rank}.npz"), "--rank", "2"}).at("loaded").at(0);
  BOOST_TEST(back.at("rank") == 2);
  BOOST_TEST(back.at("world_size") == 3);
  auto beyond = other.checkpoints({"load", p.file("a-1.npz"), "--rank", "3"});
  BOOST_TEST(beyond.code == 2);
  BOOST_TEST(beyond.err.find("rank 3") != std::string::npos, beyond.err);
}

BOOST_AUTO_TEST_CASE(what_was_flushed_is_loaded_back_without_saying_what_it_is) {
  place p, other;
  scratch_directory flushed;
  load(p, 10, {"--rank", "0", "--world-size", "2"});
  load(p, 10, {"--rank", "1", "--world-size", "2"});
  {
    auto options = p.medium.options();
    options.create_if_missing = false;
    auto pool = storage::open_pool(options);
    BOOST_TEST_REQUIRE(pool.has_value(), why(pool));
    auto flusher = storage::flush::version_flusher::open({.directory = flushed.path()});
    BOOST_TEST_REQUIRE(flusher.has_value(), why(flusher));
    for (std::uint32_t rank : {0u, 1u}) {
      auto version = await<std::shared_ptr<storage::opened_model>>(
        [&](auto done) { (*pool)->checkpoints()->open("resnet", rank, {10}, std::move(done)); });
      BOOST_TEST_REQUIRE(version.has_value(), why(version));
      auto copied =
        flusher->flush({"resnet", rank, 2, {{"data", "0/1"}}, *version}, std::atomic<bool>{false});
      BOOST_TEST_REQUIRE(copied.has_value(), why(copied));
      BOOST_TEST_REQUIRE(other.checkpoints({"load", copied->file}).code == 0);
    }
  }
  auto back = other.parsed({"ls"}).at("checkpoints").at(0);
  BOOST_TEST((back.at("complete_steps") == json{10}));
  BOOST_TEST((back.at("shards").at(1).at("axes") == json{{"data", "0/1"}}));
  BOOST_TEST_REQUIRE(
    other.checkpoints({"dump", "resnet", p.file("b.npz"), "--rank", "1"}).code == 0);
  BOOST_TEST(difference_of(p.file("b.npz"), 10) == "");
}

BOOST_AUTO_TEST_CASE(bytes_of_the_user_are_dumped_beside_the_file_and_loaded_with_it) {
  place p, other;
  std::vector<std::byte> bytes(300'000);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 7 / 3);
  storage::archive::source_with_extra source{
    std::make_shared<tensors_in_memory>(content(3)), {}, bytes};
  auto in = p.file("in.safetensors"), out = p.file("out.pt"), again = p.file("again.npz");
  BOOST_TEST_REQUIRE(write_archive(storage::archive::archive_format::safetensors, in, source).ok());
  auto loaded = p.checkpoints({"load", in, "--model", "resnet", "--step", "3"});
  BOOST_TEST_REQUIRE(loaded.code == 0, loaded.err);
  BOOST_TEST(p.checkpoints({"verify", "resnet@3"}).code == 0);
  BOOST_TEST_REQUIRE(p.checkpoints({"dump", "resnet", out}).code == 0);
  BOOST_TEST(difference_of(out, 3) == "");
  BOOST_TEST((contents_of(out + ".extra") == contents_of(in + ".extra")));
  BOOST_TEST(std::filesystem::file_size(out + ".extra") == bytes.size());
  // The file tells all that another pool needs.
  BOOST_TEST_REQUIRE(other.checkpoints({"load", out}).code == 0);
  BOOST_TEST_REQUIRE(other.checkpoints({"dump", "resnet@3", again}).code == 0);
  BOOST_TEST((contents_of(again + ".extra") == contents_of(in + ".extra")));
  std::filesystem::remove(out + ".extra");
  auto refused = other.checkpoints({"load", out});
  BOOST_TEST(refused.code == 1);
  BOOST_TEST(refused.err.find("out.pt.extra") != std::string::npos, refused.err);
}

BOOST_AUTO_TEST_CASE(steps_and_models_are_removed_and_space_comes_back) {
  place p;
  load(p, 10);
  load(p, 20);
  auto repacked = p.parsed({"repack"}).at("repacked").at(0);
  BOOST_TEST(repacked.at("versions_freed") == 1);
  BOOST_TEST((p.parsed({"ls"}).at("checkpoints").at(0).at("complete_steps") == json{20}));
  BOOST_TEST(p.checkpoints({"rm", "resnet@20"}).code == 0);
  BOOST_TEST(p.parsed({"ls"}).at("checkpoints").at(0).at("complete_steps").empty());
  auto both = p.checkpoints({"rm", "vgg", "resnet", "--json"});
  BOOST_TEST(both.code == 1);
  BOOST_TEST((json::parse(both.out).at("removed") == json{"resnet"}));
  BOOST_TEST(p.parsed({"ls"}).at("checkpoints").empty());
}

BOOST_AUTO_TEST_CASE(damage_is_found_by_verify_and_check) {
  place p;
  load(p, 10);
  spoil(p, content(10));
  auto verified = p.checkpoints({"verify", "resnet", "--json"});
  BOOST_TEST(verified.code == 1);
  BOOST_TEST(
    (json::parse(verified.out).at("verified").at(0).at("corrupt") == json{"layer.weight"}));
  auto checked = run({"pool", "check", p.pool, "--json"});
  BOOST_TEST(checked.code == 1);
  BOOST_TEST(json::parse(checked.out).at("ok") == false);
  BOOST_TEST(p.checkpoints({"dump", "resnet", p.file("a.npz")}).code == 1);
  BOOST_TEST(!std::filesystem::exists(p.file("a.npz")));
}

// Loading again fills the other slot: both have the step.
BOOST_AUTO_TEST_CASE(damage_is_found_in_the_older_of_two_versions_of_a_step) {
  place p;
  load(p, 1);
  auto twice = file_with(p, "again.safetensors", 2);
  BOOST_TEST_REQUIRE(p.checkpoints({"load", twice, "--model", "resnet", "--step", "1"}).code == 0);
  auto all = p.parsed({"verify"}).at("verified");
  BOOST_TEST_REQUIRE(all.size() == 2u);
  BOOST_TEST(all.at(0).at("saved_at_ns") != all.at(1).at("saved_at_ns"));
  spoil(p, content(1));
  auto found = p.checkpoints({"verify", "--json"});
  BOOST_TEST(found.code == 1);
  std::map<std::uint64_t, std::size_t> damaged; // by time
  auto told = json::parse(found.out);
  for (auto& one : told.at("verified"))
    damaged[one.at("saved_at_ns")] = one.at("corrupt").size();
  BOOST_TEST_REQUIRE(damaged.size() == 2u);
  BOOST_TEST(damaged.begin()->second == 1u);
  BOOST_TEST(damaged.rbegin()->second == 0u);
}

BOOST_AUTO_TEST_CASE(a_pattern_loads_as_many_ranks_as_its_first_file_says) {
  place p;
  for (auto* rank : {"0", "1"})
    load(p, 4, {"--rank", rank, "--world-size", "2"});
  BOOST_TEST_REQUIRE(p.checkpoints({"dump", "resnet", p.file("r{rank}.npz")}).code == 0);
  place other;
  auto o = other.checkpoints({"load", p.file("r{rank}.npz")});
  BOOST_TEST(o.code == 0, o.err);
  BOOST_TEST(other.parsed({"view", "resnet"}).at("complete_steps") == json::array({4}));
  // One that says nothing of itself is not taken for the only one.
  file_with(p, "plain-0.safetensors", 1);
  o = other.checkpoints(
    {"load", p.file("plain-{rank}.safetensors"), "--model", "plain", "--step", "1"});
  BOOST_TEST(o.code == 2);
  BOOST_TEST(o.err.find("--world-size") != std::string::npos, o.err);
  // A file that is not there is no fault of the arguments' form, with or without `{rank}`.
  for (auto* name : {"gone-{rank}.npz", "gone.npz"})
    BOOST_TEST(other.checkpoints({"load", p.file(name)}).code == 1);
}

BOOST_AUTO_TEST_CASE(steps_are_whole_numbers_of_64_bits) {
  place p;
  auto file = file_with(p, "one.safetensors", 1);
  for (auto* step : {"-1", "18446744073709551616", "1.5", ""}) {
    auto o = p.checkpoints({"load", file, "--model", "m", "--step", step});
    BOOST_TEST(o.code == 2, step);
  }
  BOOST_TEST(p.parsed({"ls"}).at("checkpoints").empty());
  BOOST_TEST(
    p.checkpoints({"load", file, "--model", "m", "--step", "18446744073709551615"}).code == 0);
}

BOOST_AUTO_TEST_CASE(verifying_a_rank_that_is_not_there_says_so) {
  place p;
  load(p, 1);
  auto o = p.checkpoints({"verify", "resnet", "--rank", "7"});
  BOOST_TEST(o.code == 1);
  BOOST_TEST(o.err.find("rank 7") != std::string::npos, o.err);
}

BOOST_AUTO_TEST_CASE(long_names_are_not_repeated_whole) {
  place p;
  load(p, 1);
  std::string name(1 << 20, 'x');
  std::vector<std::vector<std::string>> all = {
    {"view", name},
    {"verify", name},
    {"rm", name},
    {"dump", name, p.file("out.npz")},
    {"dump", "resnet", p.file(name + ".npz")},
    {"load", p.file(name + ".npz"), "--model", "m"},
    {"load", file_with(p, "one.safetensors", 1), "--model", name}};
  for (auto& words : all) {
    auto o = p.checkpoints(words);
    BOOST_TEST(o.code != 0, words[0]);
    BOOST_TEST(o.err.size() < 4096u, words[0] << ": " << o.err.size());
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(names_of_versions)

BOOST_AUTO_TEST_CASE(a_step_follows_the_last_at_sign) {
  using tools::parse_version_name;
  BOOST_TEST(parse_version_name("a@12").model == "a");
  BOOST_TEST(parse_version_name("a@12").step.value() == 12u);
  BOOST_TEST(parse_version_name("me@home").model == "me@home");
  BOOST_TEST(!parse_version_name("me@home").step);
  BOOST_TEST(parse_version_name("me@home@3").model == "me@home");
  BOOST_TEST(parse_version_name("@3").model == "@3");
  BOOST_TEST(!parse_version_name("a@-1").step);
}

BOOST_AUTO_TEST_CASE(progress_is_one_line) {
  auto text = tools::progress_text("a.pt", 512 << 20, 1 << 30, std::chrono::milliseconds{1000});
  BOOST_TEST(text == "a.pt [############            ]  50%  512 MiB of 1 GiB  512 MiB/s, 1 s left");
  text = tools::progress_text("a.pt", 1 << 30, 1 << 30, std::chrono::milliseconds{1000});
  BOOST_TEST(text == "a.pt [########################] 100%  1 GiB of 1 GiB  1 GiB/s");
}

BOOST_AUTO_TEST_CASE(without_a_known_total_a_mark_moves) {
  using std::chrono::milliseconds;
  BOOST_TEST(
    tools::progress_text("repack", 0, 0, milliseconds{0}) ==
    "repack [#                       ] 0 s");
  BOOST_TEST(
    tools::progress_text("repack", 0, 0, milliseconds{2600}) ==
    "repack [  #                     ] 2 s");
}

BOOST_AUTO_TEST_CASE(salvage_writes_what_is_whole_and_names_what_is_not) {
  place p;
  load(p, 10);
  load(p, 20);
  spoil(p, content(20));
  auto salvaged = run({"pool", "salvage", p.pool, p.file("out"), "--json"});
  BOOST_TEST(salvaged.code == 1);
  auto report = json::parse(salvaged.out);
  BOOST_TEST_REQUIRE(report.at("saved").size() == 1u);
  auto file = report.at("saved").at(0).get<std::string>();
  BOOST_TEST(file == p.file("out") + "/resnet@10.rank-0-of-1.safetensors");
  BOOST_TEST(difference_of(file, 10) == "");
  BOOST_TEST(report.at("lost").at(0).get<std::string>().find("step 20") != std::string::npos);
  // It is what `load` reads, with the name and the step.
  place other;
  BOOST_TEST(other.checkpoints({"load", file}).code == 0);
  BOOST_TEST((other.parsed({"ls"}).at("checkpoints").at(0).at("complete_steps") == json{10}));
}

BOOST_AUTO_TEST_CASE(salvage_needs_neither_the_heap_nor_the_table_of_models) {
  place p;
  load(p, 10);
  load(p, 20);
  {
    auto table = contents_of(p.pool).rfind("MDLTABLE");
    BOOST_TEST_REQUIRE(table != std::string::npos);
    std::fstream file{p.pool, std::ios::in | std::ios::out | std::ios::binary};
    file.seekp(static_cast<std::streamoff>(table + 30)); // in its body
    file << "xx";
    file.seekp(8192 + 3072 * 1024 + 1024 + 64); // the header of the heap's first chunk
    file << "xxxx";
  }
  for (auto command : {"info", "check"}) {
    auto refused = run({"pool", command, p.pool});
    BOOST_TEST(refused.code == 1);
    BOOST_TEST(refused.err.find("damaged") != std::string::npos, refused.err);
    BOOST_TEST(refused.err.find("millrace pool salvage") != std::string::npos, refused.err);
  }
  auto salvaged = run({"pool", "salvage", p.pool, p.file("out")});
  BOOST_TEST(salvaged.code == 1);
  BOOST_TEST(salvaged.out.find("table of models") != std::string::npos, salvaged.out);
  for (auto step : {10u, 20u})
    BOOST_TEST(
      difference_of(
        p.file("out") + "/resnet@" + std::to_string(step) + ".rank-0-of-1.safetensors", step) ==
      "");
  BOOST_TEST(run({"pool", "salvage", p.file("absent"), p.file("out")}).code == 1);
  BOOST_TEST(run({"pool", "salvage", p.pool, p.file("out"), "--format", "x"}).code == 2);
  BOOST_TEST(run({"models", "salvage", p.dir.path(), p.file("out")}).code == 1);
}

BOOST_AUTO_TEST_SUITE_END()
