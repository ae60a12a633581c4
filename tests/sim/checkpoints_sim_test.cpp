// Jobs of 1 to 8 ranks that save, cancel saves and go back, while ranks and their node die and are
// cut off: when every rank has seen `durable` for a step, that step or a later one is restored.
#include <millrace/storage/flush/flushed_step.hpp>
#include <millrace/tests/sim/cluster.hpp>
#include <millrace/tests/sim/job.hpp>
#include <millrace/tests/sim/planted.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace millrace;
using namespace millrace::sim;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

// A job is kept by one node, and looks at the others.
std::vector<std::string> buckets_of(std::uint64_t seed) {
  return buckets_of_each_cluster(dice{seed ^ 0x2d}.percent(30) ? 2 : 1);
}

/// What a node has flushed: it was reported, so it stays.
class flushed_steps {
public:
  flushed_steps(cluster& c, const board& job, std::string rests)
    : c_(c), job_(job), rests_(std::move(rests)) {}

  /// Looks at the newest step. The node may not have reported it yet.
  void look() {
    seen_at_ns_ = newest_at_ns();
    counted_ = counters().steps;
  }
  /// Steps are copied one at a time: after another one, or the last, what was seen is reported.
  void ask() {
    auto now = counters();
    if (now.waiting == 0 || now.steps > counted_)
      reported_at_ns_ = std::max(reported_at_ns_, seen_at_ns_);
  }
  /// `latest` names a whole step, with its bytes.
  void check() const {
    auto opened = storage::flush::open_flushed(c_.flush_directory(rests_), job_model);
    if (!opened)
      return demand(
        opened.error().code() == errc::not_found && reported_at_ns_ == 0,
        "what was flushed is there: " + opened.error().to_string());
    demand(opened->manifest().saved_at_ns >= reported_at_ns_, "`latest` is what was reported");
    auto verified = opened->verify();
    demand(verified.ok(), "what was flushed is whole: " + verified.to_string());
    for (auto& shard : opened->manifest().shards)
      check(*opened, shard.rank);
  }
  /// Everything was copied.
  void check_all(std::uint64_t durable) const {
    auto now = counters();
    demand(now.waiting == 0, "flushing ends");
    check();
    if (now.steps == 0) // the job is kept by another node
      return;
    auto opened = storage::flush::open_flushed(c_.flush_directory(rests_), job_model);
    demand(opened->manifest().step >= durable, "the last step is flushed");
  }

private:
  flush_counters counters() const {
    return c_.status_of(rests_).providers.at(0).checkpoints.flushed;
  }
  std::uint64_t newest_at_ns() const {
    auto opened = storage::flush::open_flushed(c_.flush_directory(rests_), job_model);
    return opened ? opened->manifest().saved_at_ns : 0;
  }
  void check(const storage::flush::flushed_step& step, std::uint32_t rank) const {
    auto shard = step.open_shard(rank).value();
    auto expected = job_.content(step.manifest().step, rank);
    auto& tensors = shard->tensors().tensors;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      std::vector<std::uint64_t> copy(tensors[i].shape.at(0));
      auto read = shard->read(i, 0, std::as_writable_bytes(std::span{copy}));
      demand(read.ok(), "what was flushed can be read: " + read.to_string());
      demand(
        std::ranges::count(copy, expected) == std::ssize(copy),
        fmt::format("rank {} was flushed with the bytes of its step", rank));
    }
  }

  cluster& c_;
  const board& job_;
  const std::string rests_;
  std::uint64_t seen_at_ns_ = 0, counted_ = 0;
  std::uint64_t reported_at_ns_ = 0;
};

class run {
public:
  explicit run(std::uint64_t seed, bool cancels = false)
    : buckets_(buckets_of(seed)), c_(seed, all_in_pools(seed)) {
    c_.net->latency_max = nanoseconds{c_.random.between(20'000, 1'000'000)};
    all_.world_size = static_cast<std::uint32_t>(c_.random.between(1, 8));
    all_.lockstep = c_.random.percent(50);
    all_.cancels = cancels && c_.random.percent(50);
    c_.net->stalls_per_mille = c_.random.percent(30) ? 3 : 0;
    all_.disturbed = c_.net->stalls_per_mille > 0;
    elements_ = c_.random.between(2, 4000);
    for (auto& rests : buckets_) {
      start_node(rests);
      if (c_.kind_of(rests) == "flushed pmem")
        flushed_.emplace_back(c_, all_, rests);
    }
    start_job();
  }

  std::uint64_t operator()() {
    for (int round = 0; round < 6; ++round) {
      for (auto& one : flushed_)
        one.look();
      await_steps(c_.random.between(1, 4));
      c_.in.run_for(nanoseconds{c_.random.below(20'000'000)});
      for (auto& one : flushed_)
        one.ask();
      happen();
    }
    await_steps(1);
    end_in_order();
    c_.demand_rest();
    return c_.in.trace();
  }

private:
  std::map<std::string, std::string> all_in_pools(std::uint64_t seed) const {
    dice random{seed ^ 0xf1u};
    std::map<std::string, std::string> kinds;
    for (auto& rests : buckets_)
      kinds[rests] = random.percent(50) ? "flushed pmem" : "pmem";
    return kinds;
  }

  void start_node(const std::string& rests) {
    auto bad = c_.start(file_, rests);
    demand(bad.ok(), "node on-" + rests + " starts: " + bad.to_string());
  }
  // Often twice, the second time before much was saved.
  void crash(const std::string& rests) {
    c_.crash(rests);
    if (c_.random.percent(30)) {
      start_node(rests);
      c_.in.run_for(nanoseconds{c_.random.below(20'000'000)});
      c_.crash(rests);
    }
    for (auto& one : flushed_)
      one.check();
  }
  void start_job() {
    all_.begin();
    for (std::uint32_t i = 0; i < all_.world_size; ++i)
      ranks_.push_back(std::make_unique<rank>(c_, file_, all_, i, elements_));
  }
  void end_job() { ranks_.clear(); }

  void happen() {
    auto& one = c_.random.one_of(ranks_);
    auto& rests = c_.random.one_of(buckets_);
    all_.disturbed = true;
    switch (c_.random.below(6)) {
    case 0: // a rank, then its job
      one->end();
      c_.in.run_for(nanoseconds{c_.random.below(20'000'000)});
      end_job();
      return start_job();
    case 1:
      crash(rests);
      c_.in.run_for(nanoseconds{c_.random.below(200'000'000)});
      return start_node(rests);
    case 2:
      c_.stop(rests);
      return start_node(rests);
    case 3:
      c_.net->cut(one->in(), c_.process_of(rests));
      c_.in.run_for(nanoseconds{c_.random.below(20'000'000'000)});
      return c_.net->heal_all();
    case 4:
      return all_.go_back();
    default:
      crash(rests);
      end_job();
      start_node(rests);
      start_job();
    }
  }

  void check() const {
    for (auto& one : ranks_)
      one->check();
  }

  void await_steps(std::uint64_t more) {
    // A rank may cancel many steps, and others wait `checkpoints.slot_wait` for each.
    auto time_max = c_.net->stalls_per_mille > 0 || all_.cancels ? 6000s : 600s;
    auto until = all_.least + more;
    auto since = c_.in.now();
    auto seen = all_.least;
    auto seen_at = since;
    while (all_.least < until) {
      c_.in.run_for(5ms);
      check();
      auto now = c_.in.now();
      if (std::exchange(seen, all_.least) != all_.least)
        seen_at = now;
      // A transfer that never ends keeps its slot until the connection of its rank ends.
      if (c_.net->stalls_per_mille > 0 && now - seen_at > 150s) {
        end_job();
        start_job();
        seen_at = now;
      }
      demand(now - since < time_max, "an undisturbed job goes on");
    }
  }

  void end_in_order() {
    for (auto& one : ranks_)
      one->stop();
    c_.in.run_for(all_.times(190s));
    check();
    for (auto& one : ranks_)
      demand(
        one->done() && !one->awaits_durable(), "a save ends by its deadline, and so does its wait");
    c_.demand_settled();
    c_.net->stalls_per_mille = 0;
    for (auto& one : flushed_)
      one.check_all(all_.least);
    end_job();
  }

  const std::vector<std::string> buckets_;
  const provider_list file_{buckets_.begin(), buckets_.end()};
  cluster c_;
  board all_;
  std::uint64_t elements_ = 0;
  std::vector<std::unique_ptr<rank>> ranks_;
  std::vector<flushed_steps> flushed_;
};

void run_seeds_of_jobs(bool cancels) {
  run_seeds(60, [=](std::uint64_t seed) {
    auto once = [&] { return run{seed, cancels}(); };
    auto did = once();
    if (seed % 16 == 0)
      demand(once() == did, "a seed repeats");
  });
}

} // namespace

BOOST_AUTO_TEST_SUITE(sim)

BOOST_AUTO_TEST_CASE(steps_that_all_ranks_saved_are_restored) { run_seeds_of_jobs(false); }

// Saves of several steps are under way at once, and some are cancelled.
BOOST_AUTO_TEST_CASE(steps_saved_beside_cancelled_ones_are_restored) { run_seeds_of_jobs(true); }

// Proves that the simulator finds defects of these kinds.
BOOST_DATA_TEST_CASE(
  a_planted_defect_of_checkpoints_is_found,
  boost::unit_test::data::make(
    {defect::awaited_step_overwritten, defect::slot_reused_while_read, defect::frames_reordered,
     defect::published_before_durable, defect::output_not_synced, defect::durable_before_published,
     defect::durable_never_answered, defect::staging_lease_kept, defect::slot_lease_kept}),
  planted) {
  find_planted(planted, [](std::uint64_t seed) { run{seed}(); });
}

BOOST_AUTO_TEST_SUITE_END()
