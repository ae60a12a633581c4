// Kills jobs of 1 to 8 ranks in lockstep, whole or one rank alone, with or without their service.
// When every rank has seen `durable` for a step, that step or a later one is restored.
#include "crash_rounds.hpp"
#include "lockstep_board.hpp"
#include "small_checkpoints.hpp"

#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/service.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <sstream>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::uint64_t pool_mib = 64;
constexpr auto model = "lockstep";

/// A rank in a process of its own, and what it has said.
class rank_process {
public:
  rank_process(const service& at, std::uint32_t rank, std::uint32_t world_size, std::string board)
    : process_(
        {LOCKSTEP_RANK, at.address(), model, std::to_string(rank), std::to_string(world_size),
         std::move(board)}) {}

  void kill() {
    process_.signal(SIGKILL);
    process_.wait();
  }
  bool ended() { return process_.ended(); }

  /// Reads on. `least`: what it must restore.
  void hear(std::uint64_t least, const std::string& when) {
    auto text = process_.out();
    for (auto end = text.find('\n', read_); end != text.npos; end = text.find('\n', read_)) {
      auto line = text.substr(read_, end - read_);
      read_ = end + 1;
      std::istringstream words{line};
      std::string what, how;
      std::uint64_t step = 0;
      words >> what;
      if (what == "restored") {
        words >> step >> how;
        BOOST_TEST(step >= least, when << ": " << line << ", all ranks had saved " << least);
        BOOST_TEST(how == "same", when << ": " << line);
        durable_.clear(); // the job saves later steps anew, in another run
      } else if (what == "durable") {
        std::uint64_t slot_us = 0;
        words >> step >> slot_us;
        durable_.insert(step);
        waited_us_ += slot_us;
      } else if (what == "broke") {
        BOOST_ERROR(when << ": " << line);
      }
    }
  }

  std::string last_words() const {
    auto text = process_.out() + process_.err();
    return text.substr(text.size() - std::min<std::size_t>(text.size(), 500));
  }
  const std::set<std::uint64_t>& durable() const { return durable_; }
  std::uint64_t waited_us() const { return waited_us_; }

private:
  child_process process_;
  std::size_t read_ = 0;
  std::set<std::uint64_t> durable_;
  std::uint64_t waited_us_ = 0;
};

class lockstep_run {
public:
  lockstep_run(const std::string& parent, std::uint32_t world_size)
    : pool_directory_(parent), world_size_(world_size), board_(dir_ / "board"),
      service_(dir_, options()) {}

  void run(int rounds, std::mt19937_64& random) {
    start_job();
    for (auto round = 0; round < rounds; ++round) {
      when_ = fmt::format("{} ranks, round {}", world_size_, round);
      await_steps(1 + random() % 6);
      std::this_thread::sleep_for(std::chrono::microseconds{random() % 20'000});
      switch (random() % 4) {
      case 0: // a rank; its job goes back and comes again
        ranks_[random() % world_size_]->kill();
        std::this_thread::sleep_for(std::chrono::microseconds{random() % 20'000});
        kill_job();
        start_job();
        break;
      case 3: { // a rank, which is replaced; the others live, and go back with it
        auto rank = static_cast<std::uint32_t>(random() % world_size_);
        ranks_[rank]->kill();
        std::this_thread::sleep_for(std::chrono::microseconds{random() % 20'000});
        hear();
        board_.begin_round();
        waited_us_ += ranks_[rank]->waited_us();
        start_rank(rank);
        break;
      }
      case 1: // the service; the job goes on when it is back
        service_.kill();
        verify();
        service_.start();
        break;
      default: // all
        service_.kill();
        kill_job();
        verify();
        service_.start();
        start_job();
      }
    }
    await_steps(1);
    kill_job();
    service_.kill();
    verify();
    BOOST_TEST_MESSAGE(fmt::format(
      "{} ranks: {} steps, waited {} us for each other", world_size_, least_, waited_us_));
  }

private:
  std::string pool_path() const { return pool_directory_.path() + "/pool"; }

  service_options options() const {
    service_options o;
    o.providers = fmt::format(
      "[{{ name: pool, bucket: pmem, path: {}, capacity: {}MiB }}]", pool_path(), pool_mib);
    o.more = "checkpoints: { staging_piece: 1MiB, staging_pieces: 4, slot_wait: 500ms }\n"
             "client: { reconnect_backoff_min: 5ms, reconnect_backoff_max: 50ms }\n";
    return o;
  }

  void start_job() {
    board_.begin_round();
    ranks_.clear();
    ranks_.resize(world_size_);
    for (std::uint32_t rank = 0; rank < world_size_; ++rank)
      start_rank(rank);
  }

  void start_rank(std::uint32_t rank) {
    ranks_[rank].emplace(service_, rank, world_size_, dir_ / "board");
  }

  void kill_job() {
    for (auto& rank : ranks_)
      rank->kill();
    hear();
    for (auto& rank : ranks_)
      waited_us_ += rank->waited_us();
  }

  /// Learns which step all ranks have saved.
  void hear() {
    // A rank that restores does so before any rank of its job saves.
    auto least = least_;
    for (auto& rank : ranks_)
      rank->hear(least, when_);
    auto& first = ranks_.front()->durable();
    for (auto at = first.rbegin(); at != first.rend(); ++at)
      if (std::ranges::all_of(ranks_, [&](auto& r) { return r->durable().contains(*at); })) {
        least_ = std::max(least_, *at);
        return;
      }
  }

  /// Waits until all ranks have saved so many more steps.
  void await_steps(std::uint64_t more) {
    auto until = least_ + more;
    auto over = eventually([&] {
      hear();
      auto ended = std::ranges::any_of(ranks_, [](auto& r) { return r->ended(); });
      return ended || least_ >= until;
    });
    BOOST_TEST_REQUIRE((over && least_ >= until), when_ << ": the job does not go on: " << said());
  }

  std::string said() {
    std::string text;
    for (auto& rank : ranks_)
      text += fmt::format("\n{}{}", rank->ended() ? "(ended) " : "", rank->last_words());
    return text;
  }

  /// Looks into the pool, which no process has open.
  void verify() {
    hear();
    auto pool = storage::open_pool(small_pool(pool_path(), pool_mib << 20));
    BOOST_REQUIRE_MESSAGE(pool, when_ << ": " << why(pool));
    auto at = (*pool)->checkpoints();
    for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
      auto newest = newest_step(*at, model, rank).value_or(0);
      BOOST_TEST(
        newest >= least_,
        when_ << ": rank " << rank << " restores " << newest << ", all ranks had saved " << least_);
    }
    auto all = check_all_versions(*at);
    BOOST_CHECK_MESSAGE(all.ok(), when_ << ": " << all.to_string());
    BOOST_TEST(at->close(30'000).ok());
  }

  scratch dir_;
  scratch_directory pool_directory_;
  const std::uint32_t world_size_;
  lockstep_board board_;
  service service_;
  std::deque<std::optional<rank_process>> ranks_;
  std::string when_;
  std::uint64_t least_ = 0; // the newest step that all ranks have seen `durable` for
  std::uint64_t waited_us_ = 0;
};

void kill_jobs_in_lockstep(const std::string& parent, int usual_rounds) {
  auto rounds = crash_rounds(usual_rounds);
  auto seed = std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937_64 random{seed};
  for (std::uint32_t world_size = 1; world_size <= lockstep_board::ranks_max; ++world_size)
    lockstep_run{parent, world_size}.run(rounds, random);
}

} // namespace

BOOST_AUTO_TEST_SUITE(lockstep_crash)

BOOST_AUTO_TEST_CASE(a_step_that_all_ranks_have_saved_is_restored_whatever_dies) {
  kill_jobs_in_lockstep("/dev/shm", 4);
}

BOOST_AUTO_TEST_CASE(a_step_that_all_ranks_have_saved_is_restored_whatever_dies_on_a_disk) {
  kill_jobs_in_lockstep(std::filesystem::temp_directory_path().string(), 8);
}

BOOST_AUTO_TEST_SUITE_END()
