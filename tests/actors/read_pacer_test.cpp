// Tests when reads of batches are asked for, and what that spares a switch: servers that answer one
// reader at once, in simulated time.
#include <millrace/actors/loader/read_pacer.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;
using actors::read_options;
using actors::read_pacer;
using actors::read_stage;

namespace {

constexpr std::uint64_t kib = 1024;

read_options bounded(std::uint64_t least, std::uint64_t most) {
  read_options o;
  o.inflight_bytes_min = least;
  o.inflight_bytes_max = most;
  return o;
}

struct fixture {
  time_point now{};
  std::vector<std::uint64_t> waiting;

  // Takes the next stage off those that wait.
  std::optional<read_stage> take(read_pacer& p) {
    auto stage = p.next(waiting, now);
    if (stage)
      waiting.erase(
        waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(stage->requests));
    return stage;
  }
  // Takes the next stage, which ends after some time.
  void run_one(read_pacer& p, std::uint64_t bytes, time_point::duration took, bool moved = true) {
    waiting = {bytes};
    auto stage = take(p);
    BOOST_TEST_REQUIRE(stage.has_value());
    p.ended(stage->number, now += took, moved);
  }
  std::vector<read_stage> take_all(read_pacer& p) {
    std::vector<read_stage> out;
    while (auto stage = take(p))
      out.push_back(*stage);
    return out;
  }
};

// A switch with one bounded buffer before the reader's link. What does not fit is dropped, and the
// server sends it again later.
class incast {
public:
  static constexpr std::size_t servers = 8;
  static constexpr std::uint64_t sample_bytes = 50 * kib;
  static constexpr std::uint64_t packet_bytes = 4 * kib;
  static constexpr std::uint64_t buffer_bytes = 512 * kib;
  static constexpr double bytes_per_s = 1.25e9; // of every link
  static constexpr auto way = 50us;             // from a server to the switch, or back
  static constexpr auto resend = 1ms;           // after which a server sends a lost packet again

  explicit incast(const read_options& options) : pacer_(options) {}

  // Reads batches of samples, each from some server. Returns the part of the packets that was lost.
  double read(int batches, std::size_t batch_size) {
    for (int b = 0; b < batches; ++b) {
      waiting_.assign(batch_size, sample_bytes);
      ask();
      while (!events_.empty() || !waiting_.empty())
        step();
    }
    return static_cast<double>(lost_) / static_cast<double>(sent_);
  }
  double seconds() const { return std::chrono::duration<double>(now_.time_since_epoch()).count(); }

private:
  struct event {
    time_point at;
    std::uint64_t order;
    std::uint64_t stage;
    bool arrived; // at the reader, else at the switch
    bool operator>(const event& o) const { return std::tie(at, order) > std::tie(o.at, o.order); }
  };

  void ask() {
    while (auto stage = pacer_.next(waiting_, now_)) {
      waiting_.erase(
        waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(stage->requests));
      for (std::size_t i = 0; i < stage->requests; ++i)
        answer(stage->number, (next_server_++ * 5) % servers);
    }
  }

  // A server's own link keeps its packets apart; several servers send at the same time.
  void answer(std::uint64_t stage, std::size_t server) {
    auto& link = free_at_[server];
    link = std::max(link, now_ + way);
    for (std::uint64_t at = 0; at < sample_bytes; at += packet_bytes) {
      link += on_wire();
      packets_[stage]++;
      add(link + way, stage, false);
    }
  }

  void step() {
    BOOST_TEST_REQUIRE(!events_.empty());
    auto e = events_.top();
    events_.pop();
    now_ = e.at;
    if (e.arrived)
      return arrive(e.stage);
    ++sent_;
    auto queued = std::chrono::duration<double>(reader_free_at_ - now_).count() * bytes_per_s;
    if (queued + packet_bytes > buffer_bytes) {
      ++lost_;
      return add(now_ + resend, e.stage, false);
    }
    reader_free_at_ = std::max(reader_free_at_, now_) + on_wire();
    add(reader_free_at_ + way, e.stage, true);
  }

  void arrive(std::uint64_t stage) {
    if (--packets_[stage] > 0)
      return;
    pacer_.ended(stage, now_, true);
    ask();
  }

  void add(time_point at, std::uint64_t stage, bool arrived) {
    events_.push({at, ++order_, stage, arrived});
  }
  static time_point::duration on_wire() {
    return std::chrono::duration_cast<time_point::duration>(
      std::chrono::duration<double>(packet_bytes / bytes_per_s));
  }

  read_pacer pacer_;
  time_point now_{};
  std::vector<std::uint64_t> waiting_;
  std::size_t next_server_ = 0;
  time_point free_at_[servers]{};
  time_point reader_free_at_{};
  std::map<std::uint64_t, std::uint64_t> packets_; // of a stage, not arrived
  std::priority_queue<event, std::vector<event>, std::greater<>> events_;
  std::uint64_t order_ = 0, sent_ = 0, lost_ = 0;
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(read_pacing, fixture)

BOOST_AUTO_TEST_CASE(the_bytes_in_flight_never_exceed_the_limit) {
  read_pacer p{bounded(400, 400)};
  waiting.assign(20, 30);
  auto first = take_all(p);
  BOOST_TEST(first.size() == 4u); // three requests each
  BOOST_TEST(p.inflight_bytes() == 360u);
  BOOST_TEST(!take(p).has_value());
  p.ended(first[0].number, now += 1ms, true);
  BOOST_TEST(take(p)->requests == 3u);
  BOOST_TEST(p.inflight_bytes() <= 400u);
}

BOOST_AUTO_TEST_CASE(every_request_goes_out_once_and_in_order) {
  read_pacer p{bounded(1000, 1000)};
  std::vector<std::uint64_t> sizes(101);
  std::iota(sizes.begin(), sizes.end(), 1);
  waiting = sizes;
  std::size_t requests = 0;
  std::uint64_t bytes = 0;
  std::deque<read_stage> running;
  while (!waiting.empty() || !running.empty()) {
    for (auto& stage : take_all(p)) {
      running.push_back(stage);
      requests += stage.requests;
      bytes += stage.bytes;
    }
    BOOST_TEST_REQUIRE(!running.empty());
    p.ended(running.front().number, now += 10us, true);
    running.pop_front();
  }
  BOOST_TEST(requests == sizes.size());
  BOOST_TEST(bytes == std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}));
  BOOST_TEST(p.inflight_bytes() == 0u);
}

BOOST_AUTO_TEST_CASE(a_request_larger_than_the_limit_goes_out_alone) {
  read_pacer p{bounded(100, 100)};
  waiting = {1000, 10};
  auto large = take(p);
  BOOST_TEST_REQUIRE(large.has_value());
  BOOST_TEST(large->requests == 1u);
  BOOST_TEST(!take(p).has_value());
  p.ended(large->number, now += 1ms, true);
  BOOST_TEST(take(p)->bytes == 10u);
}

BOOST_AUTO_TEST_CASE(a_configured_bandwidth_is_shared_by_the_processes) {
  auto o = bounded(1, 1u << 30);
  o.bandwidth_bytes_per_s = 1'000'000'000;
  o.processes = 4;
  read_pacer p{o};
  run_one(p, 1, 1ms);
  run_one(p, 100'000, 1ms); // 100 MB/s: the byte took no time of it
  BOOST_TEST(p.limit_bytes() > 249'900u);
  BOOST_TEST(p.limit_bytes() <= 250'000u);
  BOOST_TEST(p.stage_bytes() == p.limit_bytes() / 4);
}

BOOST_AUTO_TEST_CASE(the_limit_follows_what_is_measured) {
  read_pacer p{bounded(4 * kib, 1u << 30)};
  // A network of 1 GB/s and 1 ms, which a limit of 4 KiB would leave idle.
  std::deque<std::pair<time_point, std::uint64_t>> arrivals;
  time_point free_at{};
  for (int i = 0; i < 3000; ++i) {
    waiting.assign(8192, kib);
    for (auto& stage : take_all(p)) {
      free_at = std::max(free_at, now) + std::chrono::nanoseconds{stage.bytes};
      arrivals.emplace_back(free_at + 1ms, stage.number);
    }
    now = arrivals.front().first;
    p.ended(arrivals.front().second, now, true);
    arrivals.pop_front();
  }
  BOOST_TEST(p.limit_bytes() > 1'000'000u);
  BOOST_TEST(p.limit_bytes() < 4'000'000u);
}

BOOST_AUTO_TEST_CASE(stages_that_wait_in_a_queue_make_the_limit_smaller) {
  auto o = bounded(1, 1u << 20);
  read_pacer p{o};
  run_one(p, 1, 100us);
  run_one(p, 100'000, 200us);
  auto before = p.limit_bytes();
  run_one(p, 100'000, 100ms);
  BOOST_TEST(p.limit_bytes() < before * 6 / 10);
  for (int i = 0; i < 40; ++i)
    run_one(p, 100'000, 200us);
  BOOST_TEST(p.limit_bytes() >= before);
}

BOOST_AUTO_TEST_CASE(one_server_alone_is_not_paced) {
  auto one = random_id<peer_id>(), other = random_id<peer_id>();
  read_pacer p{bounded(1000, 1u << 20)};
  p.wants_from(one, now);
  BOOST_TEST(p.limit_bytes() == 1u << 20);
  run_one(p, 1000, 1ms);
  BOOST_TEST(p.limit_bytes() == 1u << 20);
  p.wants_from(other, now);
  BOOST_TEST(p.limit_bytes() < 10'000u);
  p.wants_from(one, now += 5s);
  BOOST_TEST(p.limit_bytes() < 10'000u);
  p.wants_from(one, now += 6s); // nothing has come from the other one for so long
  BOOST_TEST(p.limit_bytes() == 1u << 20);
}

BOOST_AUTO_TEST_CASE(a_configured_bandwidth_also_holds_for_one_server) {
  auto o = bounded(1000, 1u << 20);
  o.bandwidth_bytes_per_s = 1'000'000;
  read_pacer p{o};
  p.wants_from(random_id<peer_id>(), now);
  BOOST_TEST(p.limit_bytes() == 1000u);
}

BOOST_AUTO_TEST_CASE(what_failed_is_not_measured) {
  read_pacer p{bounded(1000, 1u << 20)};
  run_one(p, 1000, 1us, false);
  BOOST_TEST(p.limit_bytes() == 1000u);
  BOOST_TEST(p.inflight_bytes() == 0u);
  p.ended(77, now, true); // nobody has begun it
  BOOST_TEST(p.inflight_bytes() == 0u);
}

// Source: the loading paper, section 4.4: incast.
BOOST_AUTO_TEST_CASE(eight_servers_lose_less_than_half_when_the_reader_paces) {
  constexpr auto all = std::uint64_t{1} << 40;
  incast unpaced{bounded(all, all)};
  incast paced{read_options{}};
  auto without = unpaced.read(50, 64);
  auto with = paced.read(50, 64);
  BOOST_TEST_MESSAGE(
    "lost: " << without << " in " << unpaced.seconds() << " s, paced " << with << " in "
             << paced.seconds() << " s");
  BOOST_TEST(without > 0.1);
  BOOST_TEST(with < without / 2);
  BOOST_TEST(paced.seconds() < unpaced.seconds());
}

BOOST_AUTO_TEST_SUITE_END()
