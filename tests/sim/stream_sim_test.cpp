// Streams of a data server with several producers and readers, while these die and are cut off,
// the data server stands still and dies, and the stream is removed: each sample that was appended
// comes once, or as its policy says, with its bytes; nobody waits for ever.
#include <millrace/tests/sim/cluster.hpp>
#include <millrace/tests/sim/planted.hpp>
#include <millrace/tests/sim/stream_parts.hpp>

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

constexpr auto data_lines = "data: { capacity: 4MiB, region_size: 1MiB }\n"
                            "reading: { staging: 4MiB, inflight_max: 4MiB }\n";

class run {
public:
  explicit run(std::uint64_t seed) : c_(seed, {}, data_lines) {
    for (auto count = c_.random.between(1, 2); job_.nodes.size() < count;)
      job_.nodes.push_back({std::string(1, static_cast<char>('a' + job_.nodes.size()))});
    c_.net->latency_max = nanoseconds{c_.random.between(20'000, 1'000'000)};
    draw_job();
    start_nodes();
    operator_.emplace(job_);
    create();
    for (auto count = c_.random.between(1, 3); readers_.size() < count;)
      start_reader();
    for (std::uint64_t i = 0; i < producer_count_; ++i)
      producers_.push_back(start_producer(i, 0));
  }

  std::uint64_t operator()() {
    for (int round = 0; round < 4; ++round) {
      await_batches(c_.random.between(1, 12));
      c_.in.run_for(nanoseconds{c_.random.below(20'000'000)});
      happen();
    }
    end_in_order();
    return c_.in.trace();
  }

private:
  using producer_ptr = std::unique_ptr<producing_process>;

  void draw_job() {
    auto& random = c_.random;
    constexpr stream_policy policies[] = {
      stream_policy::fifo, stream_policy::firo, stream_policy::reservoir};
    auto& of = job_.options;
    of.capacity = random.between(1, 40);
    of.policy = policies[random.below(3)];
    of.when_full = random.percent(60) ? full_policy::block : full_policy::drop_oldest;
    of.threshold =
      of.policy != stream_policy::fifo && random.percent(50) ? random.below(of.capacity + 1) : 0;
    producer_count_ = random.between(1, 3);
    of.producers = random.percent(70) ? producer_count_ : 0;
    of.seed = random.next();
    job_.sample_bytes = random.between(1, 3000);
    of.fields = {{"label", dtype::u64, {2}}, {"x", dtype::u8, {job_.sample_bytes}}};
    job_.samples = random.between(1, 60);
    job_.gives_up = random.percent(50);
    job_.elsewhere = random.percent(50);
    job_.step_ns_max = random.between(1, 10) * 1'000'000;
  }

  stream_ledger& present() { return job_.life_of(job_.present); }

  void start_nodes() {
    for (auto& one : job_.nodes) {
      auto bad = c_.start(job_.nodes, one.rests);
      demand(bad.ok(), "node on-" + one.rests + " starts: " + bad.to_string());
    }
  }

  producer_ptr start_producer(std::uint64_t number, std::uint64_t made) {
    auto out = std::make_unique<producing_process>(job_, number, made);
    out->begin();
    return out;
  }

  void start_reader() {
    readers_.push_back(std::make_unique<reading_process>(job_, ++reader_count_));
    readers_.back()->begin();
  }

  void happen() {
    job_.disturbed = true;
    switch (c_.random.below(8)) {
    case 0:
    case 1:
      return restart_producer();
    case 2:
      return restart_reader();
    case 3:
    case 4:
      return cut_off();
    case 5:
      return stand_still();
    case 6:
      return lose_stream();
    default:
      return start_reader();
    }
  }

  void restart_producer() {
    auto& one = c_.random.one_of(producers_);
    auto number = static_cast<std::uint64_t>(&one - producers_.data());
    auto made = one->made();
    one->die();
    c_.in.run_for(nanoseconds{c_.random.below(20'000'000)});
    one.reset();
    one = start_producer(number, made);
  }

  void restart_reader() {
    auto& one = c_.random.one_of(readers_);
    one->lose();
    c_.in.run_for(nanoseconds{c_.random.below(20'000'000)});
    std::erase(readers_, one);
    start_reader();
  }

  void cut_off() {
    auto reads = c_.random.percent(50);
    auto& cut = reads ? c_.random.one_of(readers_)->in() : c_.random.one_of(producers_)->in();
    c_.in.say(cut.name + " is cut off");
    for (auto& one : job_.nodes)
      c_.net->cut(cut, c_.process_of(one.rests));
    c_.in.run_for(nanoseconds{c_.random.below(20'000'000'000)});
    c_.net->heal_all();
  }

  void stand_still() {
    c_.in.say("the nodes stand still");
    for (auto& one : job_.nodes)
      c_.net->stand_still(c_.process_of(one.rests));
    c_.in.run_for(nanoseconds{c_.random.below(20'000'000'000)});
    c_.net->heal_all();
  }

  template <class F>
  void each_user(F f) {
    for (auto& one : producers_)
      f(*one);
    for (auto& one : readers_)
      f(*one);
  }

  // The stream is removed, or its node dies. Everyone who uses it hears of that; then it is made
  // again, and all use it again.
  void lose_stream() {
    std::vector<std::uint64_t> before;
    each_user([&](auto& one) { before.push_back(one.failures()); });
    auto dies = c_.random.percent(50);
    c_.in.say(dies ? "the nodes die" : "the stream is removed");
    if (dies) {
      for (auto& one : job_.nodes)
        c_.crash(one.rests);
    } else {
      operator_->begin_remove();
      await_operator();
    }
    c_.in.run_for(70s);
    auto failed_before = before.begin();
    each_user([&](auto& one) {
      one.check();
      auto heard = one.failures() > *failed_before++;
      demand(heard || one.done(), one.in().name + " hears that the stream is gone");
    });
    if (dies)
      start_nodes();
    create();
    each_user([](auto& one) { one.begin(); });
  }

  void create() {
    operator_->begin_create();
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
      each_user([](auto& one) { one.check(); });
      demand(c_.in.now() < until, promise);
    }
  }

  bool producers_done() {
    return std::ranges::all_of(producers_, [](auto& one) { return one->done(); });
  }
  void await_batches(std::uint64_t more) {
    auto until = present().batches() + more;
    await(
      [&] { return present().batches() >= until || producers_done(); }, 600s,
      "readers of the stream end, or get more");
  }

  void end_in_order() {
    await([&] { return producers_done(); }, 600s, "producers of the stream end");
    if (!present().is_ending()) {
      operator_->begin_end();
      await_operator();
    }
    await(
      [&] { return std::ranges::all_of(readers_, [](auto& one) { return one->done(); }); }, 600s,
      "readers of the stream end");
    c_.in.run_for(1s);
    operator_->begin_look();
    await_operator();
    auto& counts = operator_->counts();
    c_.in.say(fmt::format(
      "appended {}, given {}, repeated {}, dropped {}, replaced {}", counts.appended, counts.given,
      counts.repeated, counts.dropped, counts.replaced));
    present().check_end(counts);
    operator_->begin_remove();
    await_operator();
    producers_.clear();
    readers_.clear();
    operator_.reset();
    c_.demand_rest();
  }

  cluster c_;
  stream_job job_{c_};
  std::uint64_t producer_count_ = 1;
  std::uint64_t reader_count_ = 0;
  std::optional<stream_operator> operator_;
  std::vector<producer_ptr> producers_;
  std::vector<std::unique_ptr<reading_process>> readers_;
};

} // namespace

BOOST_AUTO_TEST_SUITE(sim)

BOOST_AUTO_TEST_CASE(samples_of_streams_come_once) {
  run_seeds(60, [](std::uint64_t seed) {
    auto once = [&] { return run{seed}(); };
    auto did = once();
    if (seed % 16 == 0)
      demand(once() == did, "a seed repeats");
  });
}

// Proves that the simulator finds defects of these kinds.
BOOST_DATA_TEST_CASE(
  a_planted_defect_of_streams_is_found,
  boost::unit_test::data::make({defect::stream_place_kept, defect::late_samples_lost}), planted) {
  find_planted(planted, [](std::uint64_t seed) { run{seed}(); });
}

BOOST_AUTO_TEST_SUITE_END()
