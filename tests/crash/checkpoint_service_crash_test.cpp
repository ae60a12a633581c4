// Kills training jobs and the service that keeps their checkpoints, one by one or together.
// Afterwards the pool is sound, its newest complete step is the one acknowledged last or the one
// asked for, and both go on from there.
#include "crash_rounds.hpp"
#include "left_pool.hpp"

#include <millrace/storage/pmem/kill_points.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/service.hpp>

#include <boost/test/unit_test.hpp>
#include <signal.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::uint64_t pool_mib = 64;

/// What a model must be. It follows from what its jobs printed, outside of pool and service.
struct expectation {
  std::uint64_t acknowledged = 0;
  std::uint64_t pending = 0;
  bool maybe_gone = false; // being removed

  bool allows(std::uint64_t step) const { return step == acknowledged || step == pending; }
};

/// A job in a process of its own, and how far its parent has read what it printed.
class training_job {
public:
  training_job(const std::string& address, std::string model, const std::string& steps)
    : model_(std::move(model)), process_(command(address, model_, steps)) {}

  const std::string& model() const { return model_; }
  child_process& process() { return process_; }

  /// Reads on; every step it restores must be one that is expected, and the same bytes.
  void hear(expectation& e, const std::string& when) {
    auto text = process_.out();
    for (auto end = text.find('\n', read_); end != text.npos; end = text.find('\n', read_)) {
      std::istringstream words{text.substr(read_, end - read_)};
      read_ = end + 1;
      std::string what, how;
      std::uint64_t step = 0;
      words >> what >> step >> how;
      if (what == "pending") {
        e.pending = step;
      } else if (what == "durable") {
        e.acknowledged = e.pending = step;
        ++durable_;
      } else if (what == "restored") {
        BOOST_TEST(e.allows(step), when << ": restored " << step << " of " << model_);
        BOOST_TEST(how == "same", when << ": step " << step << " of " << model_ << " is " << how);
        e.acknowledged = e.pending = step;
        ++restored_;
      } else if (what == "failed") {
        BOOST_ERROR(when << ": " << process_.out());
      }
    }
  }

  std::uint64_t durable() const { return durable_; }
  std::uint64_t restored() const { return restored_; }

private:
  static std::vector<std::string> command(
    const std::string& address, const std::string& model, const std::string& steps) {
    std::vector<std::string> words = {CHECKPOINT_SAVER, address, model};
    if (steps == "stay")
      words.insert(words.end(), {"0", "stay"});
    else
      words.push_back(steps);
    return words;
  }

  std::string model_;
  child_process process_;
  std::size_t read_ = 0;
  std::uint64_t durable_ = 0;
  std::uint64_t restored_ = 0;
};

/// One pool, the service over it, and what is known of the pool.
class crash_run {
public:
  explicit crash_run(const std::string& parent) : pool_directory_(parent) {
    service_options o;
    o.providers = "[{ name: pool, bucket: pmem, path: " + pool_path() +
      ", capacity: " + std::to_string(pool_mib) + "MiB }]";
    o.more = "checkpoints: { staging_piece: 1MiB, staging_pieces: 4 }\n"
             "client: { reconnect_backoff_min: 5ms, reconnect_backoff_max: 50ms }\n";
    config_ = write_config(dir_, o);
    address_ = "unix:" + (dir_ / (o.node + ".sock"));
  }

  /// False when it died before it was ready.
  bool start_service(const std::string& kill_point = {}) {
    if (!kill_point.empty())
      ::setenv("MILLRACE_KILL_POINT", kill_point.c_str(), 1);
    service_.emplace(std::vector<std::string>{MILLRACE_PROGRAM, "serve", "-c", config_});
    ::unsetenv("MILLRACE_KILL_POINT");
    bool said = eventually([&] { return service_->ended() || !service_->out().empty(); });
    BOOST_TEST_REQUIRE(said, "the service is silent");
    return !service_->ended();
  }
  bool service_lives() { return service_ && !service_->ended(); }
  void kill_service() {
    service_->signal(SIGKILL);
    service_->wait();
  }

  void start_job(const std::string& kill_point = {}) {
    if (!kill_point.empty())
      ::setenv("MILLRACE_KILL_POINT", kill_point.c_str(), 1);
    job_.emplace(address_, "pair", "stay");
    ::unsetenv("MILLRACE_KILL_POINT");
    durable_at_rest_ = 0;
  }
  /// Waits until the job that was started with a kill point has come to it.
  void await_end_of_job(const std::string& when) {
    bool over = eventually([&] { return job_->process().ended(); });
    BOOST_TEST_REQUIRE(over, when << ": the job lives on");
    hear(*job_, when);
    BOOST_TEST(job_->process().wait() == 128 + SIGKILL, when << ": " << job_->process().err());
  }
  void kill_job() {
    job_->process().signal(SIGKILL);
    job_->process().wait();
    hear(*job_, "killed");
  }
  /// Waits until the job knows from where it goes on, and has saved so many steps since it or the
  /// service began.
  void await_progress(std::uint64_t steps, const std::string& when) {
    bool over = eventually([&] {
      auto ended = job_->process().ended();
      hear(*job_, when);
      return ended || (job_->restored() > 0 && job_->durable() >= durable_at_rest_ + steps);
    });
    BOOST_TEST_REQUIRE(
      (over && !job_->process().ended()),
      when << ": the job does not go on: " << job_->process().out() << job_->process().err());
  }

  /// A job of some steps to its end, or to the end of the service. False when that died.
  bool run_job(const std::string& model, std::uint64_t more, const std::string& when) {
    auto& e = models_[model];
    training_job job{address_, model, std::to_string(e.acknowledged + more)};
    bool over = eventually([&] { return job.process().ended() || !service_lives(); });
    BOOST_TEST_REQUIRE(over, when << ": a job hangs: " << job.process().out());
    if (!service_lives()) {
      job.process().signal(SIGKILL);
      job.process().wait();
      job.hear(e, when);
      return false;
    }
    job.hear(e, when);
    BOOST_TEST(
      job.process().wait() == 0, when << ": " << job.process().out() << job.process().err());
    return true;
  }

  /// A command for the service. False when that died.
  bool command(std::vector<std::string> words, const std::string& when) {
    words.insert(words.end(), {"--address", address_});
    auto o = run_millrace(words);
    // The client of a service that was killed may hear of it before the parent does.
    if (o.code != 0)
      service_ended_soon();
    if (!service_lives())
      return false;
    BOOST_TEST(o.code == 0, when << ": " << o.err);
    return true;
  }
  bool remove(const std::string& model, const std::string& when) {
    models_[model].maybe_gone = true;
    if (!command({"checkpoints", "rm", model}, when))
      return false;
    models_.erase(model);
    return true;
  }

  /// The newest step; the one before it is there, too.
  bool remove_step(const std::string& model, const std::string& when) {
    auto& e = models_[model];
    e.pending = e.acknowledged - 1;
    auto newest = model + "@" + std::to_string(e.acknowledged);
    if (!command({"checkpoints", "rm", newest}, when))
      return false;
    e.acknowledged = e.pending;
    return true;
  }

  /// A command that is not waited for, so that a kill may find it at work.
  void begin_command(std::vector<std::string> words) {
    words.insert(words.begin(), MILLRACE_PROGRAM);
    words.insert(words.end(), {"--address", address_});
    command_.emplace(std::move(words));
  }
  void begin_removal(const std::string& model) {
    models_[model].maybe_gone = true;
    begin_command({"checkpoints", "rm", model});
  }
  void await_command() {
    if (command_)
      command_->wait();
    command_.reset();
  }

  /// Looks into the pool, which no process has open.
  void verify(const std::string& when) {
    BOOST_TEST_REQUIRE(!service_lives());
    if (job_) {
      hear(*job_, when);
      durable_at_rest_ = job_->durable();
    }
    if (!std::filesystem::exists(pool_path()))
      return; // killed before there was a pool
    auto pool = open_sound(small_pool(pool_path(), pool_mib << 20), when);
    auto at = pool->checkpoints();
    for (auto i = models_.begin(); i != models_.end();)
      i = settle(*at, i, when) ? std::next(i) : models_.erase(i);
    BOOST_TEST(at->close(30'000).ok());
    ++verified_;
  }

  int verified() const { return verified_; }

private:
  using models = std::map<std::string, expectation>;

  std::string pool_path() const { return pool_directory_.path() + "/pool"; }

  void hear(training_job& job, const std::string& when) { job.hear(models_[job.model()], when); }

  void service_ended_soon() {
    for (auto tries = 0; tries < 100 && service_lives(); ++tries)
      pause_between_polls();
  }

  /// False when the model is gone, as it may be.
  bool settle(storage::checkpoint_store& at, models::iterator i, const std::string& when) {
    auto& [name, e] = *i;
    auto newest = newest_step(at, name, 0);
    auto step = newest ? *newest : 0;
    if (step == 0 && e.maybe_gone)
      return false;
    BOOST_TEST(
      e.allows(step),
      when << ": the newest complete step of " << name << " is " << step << ", not "
           << e.acknowledged << " or " << e.pending);
    e.maybe_gone = false;
    return true;
  }

  scratch dir_;
  scratch_directory pool_directory_;
  std::string config_, address_;
  models models_;
  std::uint64_t durable_at_rest_ = 0;
  int verified_ = 0;
  std::optional<child_process> service_;
  std::optional<training_job> job_;
  std::optional<child_process> command_; // goes on by itself
};

/// Does everything that passes the kill points of a pool: jobs begin and end, space is freed,
/// versions move into it, models are removed. Returns false when the service died.
bool a_life(crash_run& run, const std::string& when) {
  if (!run.run_job("large hole", 1, when) || !run.run_job("large pair", 3, when))
    return false;
  if (!run.remove("large hole", when) || !run.command({"checkpoints", "repack"}, when))
    return false;
  // Its second version comes back first.
  return run.run_job("large pair", 2, when) && run.remove_step("large pair", when) &&
    run.remove("large pair", when);
}

// Returns the kill points that checkpoints pass. pmem_crash kills at those that models of a
// repository pass, and those that removals of a version pass while it is read.
std::vector<std::string> points_of_the_service() {
  std::vector<std::string> all = {"save.begun", "save.filled", "save.published"};
  for (auto point : storage::pmem::kill_points)
    if (std::ranges::none_of(
          std::array{"pmem.store.", "pmem.pin.", "pmem.mark."},
          [&](auto* others) { return point.starts_with(others); }))
      all.emplace_back(point);
  return all;
}

void kill_at_every_point(const std::string& parent, const std::set<std::string>& not_passed) {
  for (auto& point : points_of_the_service()) {
    crash_run run{parent};
    bool reached = false;
    for (auto count : {1, 4}) {
      auto when = point + ":" + std::to_string(count);
      auto died = !run.start_service(when) || !a_life(run, when);
      reached = reached || died;
      if (run.service_lives())
        run.kill_service();
      run.verify(when);
    }
    // Another life goes on from what is left.
    BOOST_TEST_REQUIRE(run.start_service());
    BOOST_TEST(a_life(run, "after " + point));
    run.kill_service();
    run.verify("after " + point);
    BOOST_TEST(
      reached != not_passed.contains(point), point << (reached ? "" : " not") << " passed");
  }
}

void kill_at_random(const std::string& parent, int usual_rounds) {
  auto rounds = crash_rounds(usual_rounds);
  auto seed = std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937_64 random{seed};
  crash_run run{parent};
  BOOST_TEST_REQUIRE(run.start_service());
  run.start_job();
  for (auto round = 0; round < rounds; ++round) {
    auto victim = random() % 3;
    auto when = "round " + std::to_string(round) + " of seed " + std::to_string(seed) +
      (victim == 0     ? ", trainer"
         : victim == 1 ? ", service"
                       : ", both");
    run.await_progress(2, when);
    // Meanwhile another job has come, registering again what was left of it, and gone; now its
    // place is cared for.
    auto care = random() % 3;
    if (care > 0)
      BOOST_TEST(run.run_job("large other", 1 + random() % 3, when));
    if (care == 1)
      run.begin_command({"checkpoints", "repack"});
    if (care == 2)
      run.begin_removal("large other");
    std::this_thread::sleep_for(std::chrono::microseconds{random() % (care > 0 ? 60'000 : 20'000)});
    if (victim != 1)
      run.kill_job();
    if (victim == 0) {
      // Its registration goes with it: the next one finds the place free.
      run.start_job();
      run.await_progress(0, when + ": the next trainer");
    }
    run.kill_service();
    run.await_command();
    run.verify(when);
    BOOST_TEST_REQUIRE(run.start_service());
    if (victim == 2)
      run.start_job();
  }
  BOOST_TEST(run.verified() == rounds);
}

void kill_trainer_that_has_asked(const std::string& parent) {
  crash_run run{parent};
  for (auto count : {1, 2, 5}) {
    auto when = "checkpointer.save_sent:" + std::to_string(count);
    BOOST_TEST_REQUIRE(run.start_service());
    run.start_job(when);
    run.await_end_of_job(when);
    // Its place is free for the next one, which goes on from whatever was done.
    run.start_job();
    run.await_progress(1, "after " + when);
    run.kill_job();
    run.kill_service();
    run.verify(when);
  }
}

} // namespace

BOOST_AUTO_TEST_SUITE(checkpoint_service_crash)

BOOST_AUTO_TEST_CASE(a_service_killed_at_a_named_point_leaves_the_newest_step_or_the_next) {
  kill_at_every_point(in_memory, {"pmem.commit.before_write"});
}

BOOST_AUTO_TEST_CASE(
  a_service_killed_at_a_named_point_leaves_the_newest_step_or_the_next_on_a_disk) {
  kill_at_every_point(on_disk, {});
}

BOOST_AUTO_TEST_CASE(
  a_trainer_killed_when_it_has_asked_for_a_save_leaves_the_step_or_the_one_before) {
  kill_trainer_that_has_asked(in_memory);
}

BOOST_AUTO_TEST_CASE(
  trainer_or_service_or_both_killed_at_any_instant_lose_at_most_the_step_under_way) {
  kill_at_random(in_memory, 180);
}

BOOST_AUTO_TEST_CASE(
  trainer_or_service_or_both_killed_at_any_instant_lose_at_most_the_step_under_way_on_a_disk) {
  kill_at_random(on_disk, 120);
}

BOOST_AUTO_TEST_SUITE_END()
