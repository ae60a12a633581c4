// Kills `millrace checkpoints dump` at any instant, also while the file system is full. The older
// file or the new one is there whole, and the next dump removes what was left.
#include "crash_rounds.hpp"

#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/archive/output_file.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/tests/support/small_disk.hpp>
#include <millrace/tests/support/tensors_in_memory.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <signal.h>

#include <array>
#include <random>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using storage::archive::archive_format;

namespace {

constexpr std::uint64_t file_bytes = 3u << 20;
constexpr std::array<std::uint64_t, 2> steps{1, 2};

/// A pool with two steps of one model, and what each of them is as a file.
class dumped_pool {
public:
  dumped_pool() {
    run({"pool", "create", place_ / "pool", "--size", "32MiB"});
    for (auto step : steps) {
      auto file = place_ / "in.safetensors";
      tensors_in_memory content;
      content.add({"a", dtype::u8, {file_bytes}}, step);
      auto bad =
        storage::archive::write_archive(archive_format::safetensors, file, content, {true, {}});
      BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
      run(
        {"checkpoints", "load", file, "--pool", place_ / "pool", "--model", "m", "--step",
         std::to_string(step)});
      run(dump(step, place_ / "out.safetensors"));
      expected_.push_back(contents_of(place_ / "out.safetensors"));
    }
    BOOST_TEST_REQUIRE((expected_[0] != expected_[1]));
  }

  std::vector<std::string> dump(std::uint64_t step, const std::string& file) const {
    return {"checkpoints", "dump",         "m@" + std::to_string(step), file, "--force",
            "--pool",      place_ / "pool"};
  }

  /// Returns which of the two steps the file is; 0: neither.
  std::uint64_t step_in(const std::string& file) const {
    auto bytes = contents_of(file);
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (bytes == expected_[i])
        return steps[i];
    return 0;
  }

  static void run(std::vector<std::string> words) {
    words.insert(words.begin(), MILLRACE_PROGRAM);
    auto ran = run_program(words);
    BOOST_TEST_REQUIRE(ran.code == 0, ran.out << ran.err);
  }

private:
  scratch place_;
  std::vector<std::string> expected_;
};

/// The names in a directory that tell of unfinished files.
std::size_t unfinished(const std::string& directory) {
  std::size_t found = 0;
  for (auto& entry : std::filesystem::directory_iterator{directory})
    found += entry.path().filename().string().starts_with(storage::archive::output_file_prefix);
  return found;
}

} // namespace

BOOST_AUTO_TEST_SUITE(dump_crashes)

BOOST_DATA_TEST_CASE(
  the_older_or_the_new_file_is_there_after_a_kill_at,
  boost::unit_test::data::make({"archive.synced", "archive.renamed"}), point) {
  dumped_pool pool;
  scratch out;
  auto file = out / "m.safetensors";
  pool.run(pool.dump(1, file));
  auto command = pool.dump(2, file);
  command.insert(
    command.begin(),
    {"/usr/bin/env", "MILLRACE_KILL_POINT=" + std::string{point} + ":1", MILLRACE_PROGRAM});
  BOOST_TEST(run_program(command).code == 128 + SIGKILL);
  BOOST_TEST(pool.step_in(file) == (std::string{point} == "archive.renamed" ? 2u : 1u));
  BOOST_TEST(unfinished(out.path) == 1u);
  pool.run(pool.dump(2, file));
  BOOST_TEST(pool.step_in(file) == 2u);
  BOOST_TEST(unfinished(out.path) == 0u);
}

// Sometimes the new file fits beside the older one, and sometimes it does not.
BOOST_DATA_TEST_CASE(
  the_older_or_the_new_file_is_there_after_kills_while_the_file_system_is_full,
  boost::unit_test::data::make(all_disk_kinds), kind) {
  small_disk disk{8u << 20, kind};
  if (!disk.mounted())
    return skipped(small_disk::missing(kind));
  dumped_pool pool;
  auto file = disk.path() + "/m.safetensors";
  pool.run(pool.dump(1, file));
  std::uint64_t there = 1;
  std::mt19937_64 random{13};
  int killed = 0, refused = 0, written = 0;
  for (int round = 0; round < crash_rounds(60); ++round) {
    // What a killed dump left takes space, too, until the next one removes it.
    storage::archive::remove_unfinished(disk.path());
    disk.fill(random() % (2 * file_bytes));
    auto wanted = steps[random() % 2];
    auto command = pool.dump(wanted, file);
    command.insert(command.begin(), MILLRACE_PROGRAM);
    child_process child{command};
    // Some come to their end.
    if (round % 3 != 0) {
      std::this_thread::sleep_for(std::chrono::microseconds{random() % 100'000});
      child.signal(SIGKILL);
    }
    auto code = child.wait();
    auto found = pool.step_in(file);
    BOOST_TEST((found == there || found == wanted), "round " << round << ": " << found);
    if (code == 0)
      BOOST_TEST(found == wanted);
    if (code == 1) {
      BOOST_TEST(found == there);
      BOOST_TEST(child.err().find("no room") != std::string::npos, child.err());
    }
    killed += code == 128 + SIGKILL;
    refused += code == 1;
    written += code == 0;
    there = found;
    disk.free();
  }
  BOOST_TEST(killed > 5);
  BOOST_TEST(refused > 5);
  BOOST_TEST(written > 5);
  pool.run(pool.dump(1, file));
  BOOST_TEST(pool.step_in(file) == 1u);
  BOOST_TEST(unfinished(disk.path()) == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
