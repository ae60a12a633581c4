// Jobs of 1 to 8 ranks that save in lockstep, while ranks and their node die and are cut off: when
// every rank has seen `durable` for a step, that step or a later one is restored.
#include <millrace/storage/flush/flushed_step.hpp>
#include <millrace/tests/sim/cluster.hpp>
#include <millrace/tests/sim/planted.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>

using namespace millrace;
using namespace millrace::sim;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

constexpr auto model = "job";
// In which a request, registering at a provider, and `durable` of a save end.
constexpr nanoseconds request_time_max = 65s, attach_time_max = 140s, durable_time_max = 180s;

// A job is kept by one node, and looks at the others.
std::vector<std::string> buckets_of(std::uint64_t seed) {
  return buckets_of_each_cluster(dice{seed ^ 0x2d}.percent(30) ? 2 : 1);
}

/// What the ranks of a job know of each other, as collective calls of a real job would tell them.
struct board {
  std::uint32_t world_size = 1;
  bool lockstep = true;              // otherwise ranks run ahead, as far as their saves let them
  bool disturbed = false;            // something has happened, so that requests may fail
  std::vector<std::uint64_t> fences; // left by each rank
  std::map<std::uint64_t, std::set<std::uint32_t>> durable;
  std::uint64_t least = 0; // all ranks have seen `durable` for it

  void saw_durable(std::uint32_t rank, std::uint64_t step) {
    auto& by = durable[step];
    by.insert(rank);
    if (by.size() == world_size)
      least = std::max(least, step);
  }
  bool all_left(std::uint64_t fence) const {
    return std::ranges::all_of(fences, [&](auto count) { return count >= fence; });
  }
};

/// A rank of a job, in a process of its own.
class rank {
public:
  rank(
    cluster& c, const provider_list& file, board& all, std::uint32_t number, std::size_t elements)
    : c_(c), all_(all), number_(number),
      process_(c.in.start_process("rank-" + std::to_string(number))), memory_(elements),
      must_restore_(all.least) {
    c_.in.as(process_, [&] {
      client_.emplace(client::of(c_.settings(file)).value());
      flow_.push_back(train());
    });
  }
  ~rank() { end(); }

  /// Its process dies.
  void end() {
    if (!client_)
      return;
    over_ = true;
    c_.in.kill(process_);
    c_.in.as(process_, [&] {
      job_.reset();
      client_.reset();
    });
    c_.in.bury(process_);
  }

  /// Ends in order after the present step.
  void stop() { stopping_ = true; }
  bool done() const { return flow_.front().done(); }
  void check() const {
    flow_.front().check();
    for (auto& [step, since] : awaited_)
      in_time(fmt::format("`durable` of step {}", step), since, durable_time_max);
  }
  bool awaits_durable() const { return !awaited_.empty(); }
  process& in() { return process_; }

private:
  task train() {
    co_await attach();
    if (over_)
      co_return;
    co_await resume();
    while (!over_ && !stopping_) {
      if (all_.lockstep)
        co_await meet();
      co_await delay{c_.in, nanoseconds{c_.random.below(step_time_max_)}};
      if (!over_)
        co_await save();
      if (!over_ && c_.random.percent(20))
        co_await look_at(static_cast<std::uint32_t>(c_.random.below(all_.world_size)));
    }
  }

  // The provider may be away, or still know the job that has just died.
  task attach() {
    while (!over_) {
      auto since = c_.in.now();
      auto made = co_await client_->checkpointer(options(), views());
      if (over_)
        co_return;
      in_time("attaching", since, attach_time_max);
      c_.in.say(fmt::format("{} attaches: {}", process_.name, why(made)));
      if (made) {
        job_.emplace(*made);
        co_return;
      }
      demand_may_fail("attaching", made.error());
      co_await delay{c_.in, 50ms};
    }
  }

  task resume() {
    while (!over_) {
      auto since = c_.in.now();
      auto now = co_await job_->describe();
      if (over_)
        co_return;
      in_time("describing", since, request_time_max);
      if (now && now->complete_steps.empty()) {
        demand(must_restore_ == 0, fmt::format("step {} is there", must_restore_));
        co_return;
      }
      if (now) {
        since = c_.in.now();
        auto restored = co_await job_->restore();
        if (over_)
          co_return;
        in_time("restoring", since, request_time_max);
        c_.in.say(fmt::format("{} restores: {}", process_.name, why(restored)));
        if (restored) {
          take_over(restored->version);
          co_return;
        }
        now = fail(restored.error());
      }
      demand_may_fail("restoring", now.error());
      co_await delay{c_.in, 50ms};
    }
  }

  void take_over(std::uint64_t step) {
    step_ = step;
    demand(
      step >= must_restore_,
      fmt::format("{} restores {}, all ranks had saved {}", process_.name, step, must_restore_));
    auto right =
      static_cast<std::ptrdiff_t>(memory_.size()) == std::ranges::count(memory_, content(step));
    demand(right, fmt::format("{} has the bytes of step {}", process_.name, step));
  }

  task save() {
    ++step_;
    std::ranges::fill(memory_, content(step_));
    auto mode = c_.random.percent(20) ? save_mode::snapshot : save_mode::direct;
    auto at = c_.in.now();
    auto saving = job_->save(step_, mode);
    awaited_.emplace(step_, at);
    saving.durable.then([this, step = step_](const result<save_receipt>& r) {
      awaited_.erase(step);
      if (r && !over_)
        all_.saw_durable(number_, step);
    });
    auto staged = co_await saving.staged;
    if (over_)
      co_return;
    in_time("a save", at, 120s);
    c_.in.say(fmt::format("{} saves {}: {}", process_.name, step_, why(staged)));
    if (staged)
      co_return;
    demand_may_fail("saving", staged.error());
    static_cast<void>(job_->fence()); // nothing is in flight: takes the failure
    co_await delay{c_.in, 5ms};
  }

  // While that rank goes on saving. Sometimes it is any of the steps that were complete.
  task look_at(std::uint32_t other) {
    std::optional<std::uint64_t> wanted;
    if (c_.random.percent(30)) {
      auto now = co_await job_->describe();
      if (over_)
        co_return;
      if (now && !now->complete_steps.empty())
        wanted = c_.random.one_of(now->complete_steps);
    }
    std::vector<std::uint64_t> copy(memory_.size());
    auto into = views_of(copy);
    auto since = c_.in.now();
    auto restored = co_await job_->restore_shard(other, into, wanted);
    if (over_)
      co_return;
    in_time("reading a shard", since, request_time_max);
    if (!restored) {
      // The other may not have saved yet.
      if (restored.error().code() != errc::not_found)
        demand_may_fail("reading a shard", restored.error());
      co_return;
    }
    demand(
      restored->version == wanted.value_or(restored->version),
      fmt::format("step {} was asked for, not {}", wanted.value_or(0), restored->version));
    auto expected = restored->version * 100 + other;
    demand(
      std::ranges::count(copy, expected) == std::ssize(copy),
      fmt::format("rank {} has the bytes of step {}", other, restored->version));
  }

  // No rank trains on before all have left the same fence.
  task meet() {
    auto mine = ++all_.fences[number_];
    while (!over_ && !stopping_ && !all_.all_left(mine))
      co_await delay{c_.in, nanoseconds{c_.random.between(50'000, 300'000)}};
  }

  checkpoint_options options() const {
    checkpoint_options o;
    o.model = model;
    o.rank = number_;
    o.world_size = all_.world_size;
    return o;
  }
  std::vector<tensor_view> views() { return views_of(memory_); }
  static std::vector<tensor_view> views_of(std::vector<std::uint64_t>& memory) {
    std::vector<tensor_view> all;
    auto half = memory.size() / 2;
    auto first = std::span{memory}.first(half), second = std::span{memory}.subspan(half);
    all.push_back(tensor_view::dense("first", dtype::u64, {first.size()}, first));
    all.push_back(tensor_view::dense("second", dtype::u64, {second.size()}, second));
    return all;
  }
  std::uint64_t content(std::uint64_t step) const { return step * 100 + number_; }

  void in_time(const std::string& what, nanoseconds since, nanoseconds most) const {
    auto took = c_.in.now() - since;
    demand(
      took <= most,
      fmt::format(
        "{}: {} took {} s", process_.name, what, std::chrono::duration<double>(took).count()));
  }

  void demand_may_fail(const std::string& doing, const status& bad) const {
    auto code = bad.code();
    demand(all_.disturbed, doing + " failed undisturbed with " + bad.to_string());
    demand(
      code == errc::unavailable || code == errc::peer_lost || code == errc::not_found ||
        code == errc::busy || code == errc::deadline_exceeded,
      doing + " failed with " + bad.to_string());
  }
  template <class T>
  static std::string why(const result<T>& r) {
    return r ? "done" : r.error().to_string();
  }

  cluster& c_;
  board& all_;
  const std::uint32_t number_;
  process& process_;
  std::vector<std::uint64_t> memory_;
  const std::uint64_t must_restore_;
  const std::uint64_t step_time_max_ = c_.random.between(1, 10) * 1'000'000;
  std::optional<client> client_;
  std::optional<checkpointer> job_;
  std::vector<task> flow_;
  std::uint64_t step_ = 0;
  std::map<std::uint64_t, nanoseconds> awaited_; // steps whose `durable` has not come, since when
  bool over_ = false;
  bool stopping_ = false;
};

/// What a node has flushed: it was reported, so it stays.
class flushed_steps {
public:
  flushed_steps(cluster& c, std::string rests) : c_(c), rests_(std::move(rests)) {}

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
    auto opened = storage::flush::open_flushed(c_.flush_directory(rests_), model);
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
    auto opened = storage::flush::open_flushed(c_.flush_directory(rests_), model);
    demand(opened->manifest().step >= durable, "the last step is flushed");
  }

private:
  storage::flush::flush_counters counters() const {
    return c_.status_of(rests_).providers.at(0).checkpoints.flushed;
  }
  std::uint64_t newest_at_ns() const {
    auto opened = storage::flush::open_flushed(c_.flush_directory(rests_), model);
    return opened ? opened->manifest().saved_at_ns : 0;
  }
  static void check(const storage::flush::flushed_step& step, std::uint32_t rank) {
    auto shard = step.open_shard(rank).value();
    auto expected = step.manifest().step * 100 + rank;
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
  const std::string rests_;
  std::uint64_t seen_at_ns_ = 0, counted_ = 0;
  std::uint64_t reported_at_ns_ = 0;
};

class run {
public:
  explicit run(std::uint64_t seed) : buckets_(buckets_of(seed)), c_(seed, all_in_pools(seed)) {
    c_.net->latency_max = nanoseconds{c_.random.between(20'000, 1'000'000)};
    all_.world_size = static_cast<std::uint32_t>(c_.random.between(1, 8));
    all_.lockstep = c_.random.percent(50);
    elements_ = c_.random.between(2, 4000);
    for (auto& rests : buckets_) {
      start_node(rests);
      if (c_.kind_of(rests) == "flushed pmem")
        flushed_.emplace_back(c_, rests);
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
    all_.fences.assign(all_.world_size, 0);
    all_.durable.clear();
    for (std::uint32_t i = 0; i < all_.world_size; ++i)
      ranks_.push_back(std::make_unique<rank>(c_, file_, all_, i, elements_));
  }
  void end_job() { ranks_.clear(); }

  void happen() {
    auto& one = c_.random.one_of(ranks_);
    auto& rests = c_.random.one_of(buckets_);
    all_.disturbed = true;
    switch (c_.random.below(5)) {
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
    auto until = all_.least + more;
    auto since = c_.in.now();
    while (all_.least < until) {
      c_.in.run_for(5ms);
      check();
      demand(c_.in.now() - since < 600s, "an undisturbed job goes on");
    }
  }

  void end_in_order() {
    for (auto& one : ranks_)
      one->stop();
    c_.in.run_for(190s);
    check();
    for (auto& one : ranks_)
      demand(
        one->done() && !one->awaits_durable(), "a save ends by its deadline, and so does its wait");
    c_.demand_settled();
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

} // namespace

BOOST_AUTO_TEST_SUITE(sim)

BOOST_AUTO_TEST_CASE(steps_that_all_ranks_saved_are_restored) {
  run_seeds(60, [](std::uint64_t seed) {
    auto did = run{seed}();
    if (seed % 16 == 0)
      demand(run{seed}() == did, "a seed repeats");
  });
}

// Proves that the simulator finds defects of these kinds.
BOOST_DATA_TEST_CASE(
  a_planted_defect_of_checkpoints_is_found,
  boost::unit_test::data::make(
    {defect::awaited_step_overwritten, defect::slot_reused_while_read, defect::lost_withdrawal,
     defect::frames_reordered, defect::published_before_durable, defect::output_not_synced}),
  planted) {
  find_planted(planted, [](std::uint64_t seed) { run{seed}(); });
}

BOOST_AUTO_TEST_SUITE_END()
