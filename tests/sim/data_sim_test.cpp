// Jobs of 1 to 7 ranks that read a working set of 1 to 7 data servers, to which samples may have
// been appended, or one through a window, while ranks, preloads, appends and data servers die and
// are cut off: each sample comes once in an epoch, in one order, with its bytes.
#include <millrace/tests/sim/cluster.hpp>
#include <millrace/tests/sim/data_rank.hpp>
#include <millrace/tests/sim/planted.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace millrace;
using namespace millrace::sim;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t mib = 1 << 20;

provider_list nodes_of(std::uint64_t seed) {
  provider_list all;
  for (auto count = dice{seed ^ 0xda7a}.between(1, 7); all.size() < count;)
    all.push_back({std::string(1, static_cast<char>('a' + all.size()))});
  return all;
}

enum class memory_of { all_samples, a_window };

// The samples of a window of one region are a little less or more.
sample_files files_of(std::uint64_t seed, std::uint64_t salt, memory_of what) {
  dice random{seed ^ salt << 32};
  sample_files out;
  out.salt = salt;
  out.varies = random.percent(40);
  out.bytes_max = random.between(1, 1000);
  out.samples = random.between(1, out.varies || random.percent(80) ? 120 : 2500);
  if (what == memory_of::a_window && salt == 1) {
    out.bytes_max = random.between(4'000, 20'000);
    out.samples = random.between(50, 2 * mib / out.bytes_max);
  }
  if (what == memory_of::all_samples && random.percent(50))
    out.appended = random.below(out.samples);
  return out;
}

// All samples, twice, and another small set.
std::string data_lines(std::uint64_t seed, memory_of what) {
  auto files = files_of(seed, 1, what);
  auto each = files.bytes_max + 24 + 64 + (files.varies ? 24 + 64 + 64 : 0);
  auto regions = 2 * (files.samples * each / mib + 1 + (files.appended > 0)) + 3;
  return fmt::format(
    "data: {{ capacity: {}MiB, region_size: 1MiB }}\nreading: {{ retry: 2s, staging: 4MiB, "
    "inflight_max: 4MiB }}\n",
    regions);
}

class run {
public:
  explicit run(std::uint64_t seed, memory_of what = memory_of::all_samples)
    : c_(seed, {}, data_lines(seed, what)), files_(files_of(seed, 1, what)),
      others_(files_of(seed, 2, what)) {
    files_.write(c_.directory() + "/files");
    others_.samples = std::min<std::uint64_t>(others_.samples, 120);
    others_.appended = std::min(others_.appended, others_.samples - 1);
    others_.write(c_.directory() + "/others");
    job_.nodes = nodes_of(seed);
    job_.files = files_;
    c_.net->latency_max = nanoseconds{c_.random.between(20'000, 1'000'000)};
    draw_job();
    if (what == memory_of::a_window)
      draw_window();
    for (auto& one : job_.nodes)
      start_node(one.rests);
    operator_.emplace(job_);
    if (!job_.ranks_preload)
      preload("job", files_);
    auto since = c_.in.now();
    preload("others", others_);
    preload_takes_ = c_.in.now() - since;
    unload("others");
    start_job({});
  }

  std::uint64_t operator()() {
    for (int round = 0; round < 5; ++round) {
      await_batches(c_.random.between(1, 6));
      c_.in.run_for(nanoseconds{c_.random.below(20'000'000)});
      happen();
    }
    await_batches(c_.random.between(1, 30));
    end_in_order();
    return c_.in.trace();
  }

  // Returns how many samples came from a window.
  std::uint64_t from_window() const { return job_.from_window; }

private:
  // One data server keeps it. Its readers have the files.
  void draw_window() {
    job_.how.servers = 1;
    job_.how.window_bytes = mib;
    job_.has_files = true;
    job_.opens_with_files = !job_.ranks_preload || c_.random.percent(50);
  }

  void draw_job() {
    auto& random = c_.random;
    auto count = job_.nodes.size();
    job_.how.servers = static_cast<std::uint32_t>(random.below(count + 1));
    job_.ranks_preload = job_.how.while_used = random.percent(25);
    job_.has_files = job_.opens_with_files = random.percent(50);
    job_.elsewhere = random.percent(70);
    job_.step_ns_max = random.between(1, 20) * 1'000'000;
    job_.reading.seed = random.next();
    job_.reading.prefetch = static_cast<std::uint32_t>(random.between(1, 4));
    job_.reading.fields = {"x"};
    constexpr std::uint64_t blocks[] = {0, 0, 1, 7};
    job_.reading.shuffle = {blocks[random.below(4)]};
    constexpr remainder_kind kinds[] = {
      remainder_kind::shorter, remainder_kind::pad, remainder_kind::drop};
    job_.reading.remainder = kinds[random.below(3)];
    job_.ledger.emplace(
      files_.samples, job_.reading.remainder, job_.reading.seed, job_.reading.shuffle);
  }

  // Where what is left of an epoch is dropped, at least one batch of all ranks is not.
  void draw_shape() {
    auto& reading = job_.reading;
    auto drops = reading.remainder == remainder_kind::drop;
    reading.world_size =
      c_.random.between(1, drops ? std::min<std::uint64_t>(7, files_.samples) : 7);
    auto most = drops ? files_.samples / reading.world_size : files_.samples + 3;
    auto bound = job_.is_windowed() ? 8 : 64; // its samples are large
    reading.batch_size = c_.random.between(1, std::min<std::uint64_t>(most, bound));
  }

  void start_node(const std::string& rests) {
    auto bad = c_.start(job_.nodes, rests);
    demand(bad.ok(), "node on-" + rests + " starts: " + bad.to_string());
  }

  void start_job(const std::optional<loader_state>& at) {
    draw_shape();
    c_.in.say(fmt::format(
      "a job of {} ranks, batches of {}, at {}", job_.reading.world_size, job_.reading.batch_size,
      at ? at->to_json() : "the beginning"));
    job_.ledger->begin({job_.reading.batch_size, job_.reading.world_size}, at);
    for (std::uint32_t i = 0; i < job_.reading.world_size; ++i)
      ranks_.push_back(std::make_unique<data_rank>(job_, i, at));
  }

  // A job keeps the state of a step with its checkpoint.
  void restart_job() {
    auto& reached = job_.ledger->reached();
    std::optional<loader_state> at;
    if (!reached.empty())
      at = c_.random.one_of(reached);
    ranks_.clear();
    start_job(at);
  }

  void restart_rank() {
    auto& one = c_.random.one_of(ranks_);
    auto number = static_cast<std::uint32_t>(&one - ranks_.data());
    auto at = one->state();
    one->die();
    c_.in.run_for(nanoseconds{c_.random.below(20'000'000)});
    one.reset();
    one = std::make_unique<data_rank>(job_, number, at);
  }

  void happen() {
    job_.disturbed = true;
    switch (c_.random.below(8)) {
    case 0:
      return restart_rank();
    case 1:
      return restart_job();
    case 2:
    case 3:
      return lose_servers();
    case 4: {
      auto& one = c_.random.one_of(ranks_);
      c_.net->cut(one->in(), c_.process_of(c_.random.one_of(job_.nodes).rests));
      c_.in.run_for(nanoseconds{c_.random.below(20'000'000'000)});
      return c_.net->heal_all();
    }
    case 5:
      return kill_a_preload();
    case 6:
      return stand_still();
    default:
      return job_.ranks_preload ? restart_job() : replace();
    }
  }

  // A node answers nothing for a while, and its connections stay.
  void stand_still() {
    auto& node = c_.process_of(c_.random.one_of(job_.nodes).rests);
    c_.net->stand_still(node);
    c_.in.run_for(nanoseconds{c_.random.below(20'000'000'000)});
    c_.net->go_on(node);
  }

  // Another set may get the memory, while ranks that lost their leases have it mapped.
  void replace() {
    if (c_.random.percent(50)) {
      for (auto& one : job_.nodes)
        c_.net->cut(ranks_.front()->in(), c_.process_of(one.rests));
      c_.in.run_for(2 * simulated_network::silence_max);
      c_.net->heal_all();
    }
    unload("job");
    c_.in.run_for(nanoseconds{c_.random.below(20'000'000)});
    auto others = c_.random.percent(50);
    if (others)
      preload("others", others_);
    preload("job", files_);
    if (others)
      unload("others");
  }

  // With files reading goes on meanwhile.
  void lose_servers() {
    std::vector<std::string> lost{c_.random.one_of(job_.nodes).rests};
    for (auto& one : job_.nodes)
      if (one.rests != lost.front() && c_.random.percent(20))
        lost.push_back(one.rests);
    for (auto& rests : lost)
      c_.random.percent(70) ? c_.crash(rests) : c_.stop(rests);
    c_.in.run_for(nanoseconds{c_.random.below(5'000'000'000)});
    auto all_read = std::ranges::all_of(ranks_, [](auto& one) { return one->reads(); });
    if (job_.has_files && all_read)
      await_batches(c_.random.between(1, 6));
    for (auto& rests : lost)
      start_node(rests);
    if (!job_.ranks_preload)
      preload("job", files_);
  }

  // At any time, between the publications of two parts, too. Another one may share its reading.
  void kill_a_preload() {
    data_operator killed{job_};
    auto shares = c_.random.percent(50) && !job_.is_windowed(); // of a window nothing is read
    auto leads = c_.random.percent(50);
    if (shares && leads)
      operator_->begin_preload("others", others_);
    killed.begin_preload("others", others_);
    if (shares && !leads)
      operator_->begin_preload("others", others_);
    // Parts are published in its second half.
    auto takes = static_cast<std::uint64_t>(preload_takes_.count());
    auto at = c_.random.between(c_.random.percent(60) ? takes / 2 : 0, takes);
    c_.in.after(c_.in.current(), nanoseconds{at}, [&] { killed.die(); });
    await([&] { return killed.dead(); }, 600s, "a preload is killed");
    c_.in.run_for(nanoseconds{c_.random.below(5'000'000)});
    if (shares)
      return verify_others();
    operator_->begin_look("others", others_);
    await_operator();
    if (c_.random.percent(50))
      preload("others", others_);
    unload("others");
  }

  // What the killed preload has not written, the other one has.
  void verify_others() {
    await_operator();
    operator_->begin_verify("others");
    await_operator();
    unload("others");
  }

  void preload(const std::string& name, const sample_files& files) {
    operator_->begin_preload(name, files);
    await_operator();
  }
  void unload(const std::string& name) {
    operator_->begin_unload(name);
    await_operator();
  }
  void await_operator() {
    await([&] { return operator_->done(); }, 600s, "the operator's requests end");
  }

  template <class Holds>
  void await(Holds holds, nanoseconds time_max, const char* promise) {
    for (auto until = c_.in.now() + time_max; !holds();) {
      c_.in.run_for(1ms);
      operator_->check();
      for (auto& one : ranks_)
        one->check();
      demand(c_.in.now() < until, promise);
    }
  }
  void await_batches(std::uint64_t more) {
    auto until = job_.ledger->batches() + more;
    await([&] { return job_.ledger->batches() >= until; }, 900s, "an undisturbed job goes on");
  }

  void end_in_order() {
    for (auto& one : ranks_)
      one->stop();
    await(
      [&] { return std::ranges::all_of(ranks_, [](auto& one) { return one->done(); }); }, 600s,
      "ranks end");
    if (!job_.ranks_preload)
      unload("job");
    ranks_.clear();
    operator_.reset();
    c_.demand_rest();
  }

  cluster c_;
  sample_files files_, others_;
  data_job job_{c_};
  std::optional<data_operator> operator_;
  std::vector<std::unique_ptr<data_rank>> ranks_;
  nanoseconds preload_takes_{};
};

} // namespace

BOOST_AUTO_TEST_SUITE(sim)

BOOST_AUTO_TEST_CASE(samples_come_once_in_one_order) {
  run_seeds(60, [](std::uint64_t seed) {
    auto once = [&] { return run{seed}(); };
    auto did = once();
    if (seed % 16 == 0)
      demand(once() == did, "a seed repeats");
  });
}

BOOST_AUTO_TEST_CASE(samples_come_once_in_one_order_through_a_window) {
  std::uint64_t from_window = 0;
  run_seeds(30, [&](std::uint64_t seed) {
    auto once = [&] {
      run all{seed, memory_of::a_window};
      auto did = all();
      from_window += all.from_window();
      return did;
    };
    auto did = once();
    if (seed % 16 == 0)
      demand(once() == did, "a seed repeats");
  });
  BOOST_TEST((is_single_seed() || from_window > 0));
}

BOOST_AUTO_TEST_CASE(a_planted_defect_of_windows_is_found) {
  find_planted(defect::window_read_ended_early, [](std::uint64_t seed) {
    run{seed, memory_of::a_window}();
  });
}

// Proves that the simulator finds defects of these kinds.
BOOST_DATA_TEST_CASE(
  a_planted_defect_of_working_sets_is_found,
  boost::unit_test::data::make({defect::resumed_behind_reads, defect::set_lease_kept}), planted) {
  find_planted(planted, [](std::uint64_t seed) { run{seed}(); });
}

// These take tens of seeds, and so minutes.
BOOST_DATA_TEST_CASE(
  a_rare_planted_defect_of_working_sets_is_found,
  boost::unit_test::data::make({defect::home_published_first, defect::lost_part_misplaced}),
  planted) {
  find_planted(planted, [](std::uint64_t seed) { run{seed}(); });
}

BOOST_AUTO_TEST_SUITE_END()
