// Tests which samples a stream gives and drops: by a model that knows what is allowed, over many
// seeds, and by hand where one answer is right.
#include <millrace/actors/loader/stream_buffer.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

using namespace millrace;
using namespace millrace::actors;

namespace {

using numbers = std::vector<std::uint64_t>;

stream_options some(
  stream_policy policy, std::uint64_t capacity, full_policy when_full = full_policy::block,
  std::uint64_t threshold = 0, std::uint64_t seed = 1) {
  stream_options out;
  out.policy = policy;
  out.capacity = capacity;
  out.when_full = when_full;
  out.threshold = threshold;
  out.seed = seed;
  return out;
}

bool append(stream_buffer& buffer) {
  auto place = buffer.begin_write();
  if (place)
    buffer.commit(*place, 100 + *place);
  return place.has_value();
}

numbers numbers_of(const std::vector<given_sample>& some) {
  numbers out;
  for (auto& one : some)
    out.push_back(one.number);
  return out;
}

// Takes samples, and has them no longer.
numbers read(stream_buffer& buffer, std::uint64_t count) {
  auto got = buffer.take(count);
  for (auto& one : got)
    buffer.release(one.place);
  return numbers_of(got);
}

// What may happen, in sets of numbers.
class model {
public:
  explicit model(const stream_options& o) : options_(o), buffer_(o), random_(o.seed) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      step();
      check();
    }
    buffer_.end();
    while (!writing_.empty())
      abandon();
    drain();
  }

private:
  struct sample {
    std::uint64_t times = 0;
    int readers = 0;
    bool present = true;
  };

  void step() {
    switch (random_() % 8) {
    case 0:
    case 1:
      return begin();
    case 2:
    case 3:
      return commit();
    case 4:
      return random_() % 4 == 0 ? abandon() : commit();
    case 5:
      return take(1 + random_() % options_.capacity);
    default:
      return give_back(random_() % 4 == 0);
    }
  }

  std::vector<std::uint64_t> those(auto is) const {
    std::vector<std::uint64_t> out;
    for (auto& [number, one] : samples_)
      if (is(one))
        out.push_back(number);
    return out;
  }
  std::uint64_t present() const {
    return those([](auto& one) { return one.present; }).size();
  }
  // Places that samples have.
  std::uint64_t held() const {
    return those([](auto& one) { return one.present || one.readers > 0; }).size();
  }

  void begin() {
    auto full = writing_.size() + held() == options_.capacity;
    auto idle = those([](auto& one) { return one.present && one.readers == 0; });
    auto given = those([](auto& one) { return one.present && one.readers == 0 && one.times > 0; });
    auto dropped = buffer_.counts().dropped, replaced = buffer_.counts().replaced;
    auto place = buffer_.begin_write();
    auto reservoir = options_.policy == stream_policy::reservoir;
    auto drops = options_.when_full == full_policy::drop_oldest;
    auto can = !full || (reservoir && !given.empty()) || (drops && !idle.empty());
    BOOST_TEST_REQUIRE(place.has_value() == can);
    if (!place)
      return;
    BOOST_TEST_REQUIRE(writing_.insert(*place).second);
    if (!full)
      return;
    if (reservoir && !given.empty()) {
      BOOST_TEST_REQUIRE(buffer_.counts().replaced == replaced + 1);
      forget(*place, given);
    } else {
      BOOST_TEST_REQUIRE(buffer_.counts().dropped == dropped + 1);
      forget(*place, {idle.front()});
    }
  }

  // The sample whose place was lent is one of these.
  void forget(std::uint32_t place, const numbers& among) {
    auto number = number_at_.at(place);
    BOOST_TEST_REQUIRE(std::ranges::count(among, number) == 1);
    samples_.erase(number);
  }

  void commit() {
    if (writing_.empty())
      return;
    auto place = *writing_.begin();
    writing_.erase(place);
    auto number = buffer_.commit(place, 7 * next_);
    BOOST_TEST_REQUIRE(number == next_++);
    number_at_[place] = number;
    samples_[number] = {};
  }

  void abandon() {
    if (writing_.empty())
      return;
    buffer_.abandon(*writing_.begin());
    writing_.erase(writing_.begin());
  }

  void take(std::uint64_t count) {
    auto before = those([](auto& one) { return one.present; });
    auto got = buffer_.take(count);
    if (buffer_.has_ended())
      BOOST_TEST_REQUIRE(got.size() == std::min<std::uint64_t>(count, before.size()));
    else
      BOOST_TEST_REQUIRE(
        got.size() == (before.size() < std::max(count, options_.threshold) ? 0 : count));
    auto found = numbers_of(got);
    if (options_.policy == stream_policy::fifo)
      BOOST_TEST_REQUIRE(std::equal(found.begin(), found.end(), before.begin()));
    BOOST_TEST_REQUIRE((std::set(found.begin(), found.end()).size() == found.size()));
    for (auto& one : got) {
      auto& sample = samples_.at(one.number);
      BOOST_TEST_REQUIRE(sample.present);
      BOOST_TEST_REQUIRE(number_at_.at(one.place) == one.number);
      BOOST_TEST_REQUIRE(one.digest == 7 * one.number);
      ++sample.times;
      ++sample.readers;
      sample.present = options_.policy == stream_policy::reservoir && !buffer_.has_ended();
      reading_.push_back(one);
    }
  }

  void give_back(bool unused) {
    if (reading_.empty())
      return;
    auto which = reading_.begin() + static_cast<std::ptrdiff_t>(random_() % reading_.size());
    auto one = *which;
    reading_.erase(which);
    unused ? buffer_.put_back(one.place) : buffer_.release(one.place);
    auto& sample = samples_.at(one.number);
    --sample.readers;
    if (unused && --sample.times == 0)
      sample.present = true;
    if (!sample.present && sample.readers == 0)
      samples_.erase(one.number);
  }

  void check() {
    auto now = buffer_.counts();
    BOOST_TEST_REQUIRE(now.present == present());
    BOOST_TEST_REQUIRE(now.writing == writing_.size());
    BOOST_TEST_REQUIRE(now.reading == those([](auto& one) { return one.readers > 0; }).size());
    BOOST_TEST_REQUIRE(now.appended == next_);
    BOOST_TEST_REQUIRE(now.present + now.writing <= options_.capacity);
  }

  // After the end everything that is there comes once.
  void drain() {
    while (!reading_.empty())
      give_back(random_() % 2 == 0);
    auto left = those([](auto& one) { return one.present; });
    numbers got;
    while (!buffer_.is_over()) {
      auto some = read(buffer_, 3);
      BOOST_TEST_REQUIRE(!some.empty());
      got.insert(got.end(), some.begin(), some.end());
    }
    std::ranges::sort(got);
    BOOST_TEST_REQUIRE((got == left));
    BOOST_TEST_REQUIRE(buffer_.take(1).empty());
    auto counts = buffer_.counts();
    BOOST_TEST_REQUIRE(counts.present + counts.writing + counts.reading == 0u);
    if (options_.policy != stream_policy::reservoir) {
      BOOST_TEST_REQUIRE(counts.repeated == 0u);
      BOOST_TEST_REQUIRE(counts.given + counts.dropped == counts.appended);
    }
  }

  const stream_options options_;
  stream_buffer buffer_;
  std::mt19937_64 random_;
  std::uint64_t next_ = 0;
  std::set<std::uint32_t> writing_;
  std::map<std::uint64_t, sample> samples_;
  std::map<std::uint32_t, std::uint64_t> number_at_;
  std::vector<given_sample> reading_;
};

} // namespace

BOOST_AUTO_TEST_SUITE(stream_buffers)

BOOST_AUTO_TEST_CASE(every_policy_does_what_the_model_allows) {
  for (auto policy : {stream_policy::fifo, stream_policy::firo, stream_policy::reservoir})
    for (auto when_full : {full_policy::block, full_policy::drop_oldest})
      for (std::uint64_t capacity : {1, 2, 5, 16})
        for (std::uint64_t threshold : {std::uint64_t{0}, capacity / 2, capacity})
          for (std::uint64_t seed = 0; seed < 20; ++seed)
            model{
              some(
                policy, capacity, when_full, policy == stream_policy::fifo ? 0 : threshold, seed)}
              .run(300);
}

BOOST_AUTO_TEST_CASE(fifo_gives_each_sample_once_and_the_oldest_first) {
  stream_buffer buffer{some(stream_policy::fifo, 4)};
  for (int i = 0; i < 4; ++i)
    BOOST_TEST(append(buffer));
  BOOST_TEST(!append(buffer));
  BOOST_TEST((read(buffer, 2) == numbers{0, 1}));
  BOOST_TEST(append(buffer));
  BOOST_TEST(read(buffer, 4).empty()); // there are three
  BOOST_TEST(!buffer.is_over());
  buffer.end();
  BOOST_TEST((read(buffer, 4) == numbers{2, 3, 4}));
  BOOST_TEST(buffer.is_over());
}

BOOST_AUTO_TEST_CASE(a_place_is_lent_again_only_when_its_reader_has_released_it) {
  stream_buffer buffer{some(stream_policy::fifo, 1, full_policy::drop_oldest)};
  BOOST_TEST(append(buffer));
  auto got = buffer.take(1);
  BOOST_TEST(!append(buffer));
  buffer.release(got[0].place);
  BOOST_TEST(append(buffer));
  BOOST_TEST(append(buffer)); // drops
  BOOST_TEST(buffer.counts().dropped == 1u);
  BOOST_TEST((read(buffer, 1) == numbers{2}));
}

BOOST_AUTO_TEST_CASE(what_is_put_back_comes_again_in_its_turn) {
  stream_buffer buffer{some(stream_policy::fifo, 4)};
  for (int i = 0; i < 3; ++i)
    append(buffer);
  auto got = buffer.take(2);
  buffer.end();
  buffer.put_back(got[0].place);
  BOOST_TEST(!buffer.is_over());
  buffer.release(got[1].place);
  BOOST_TEST(buffer.counts().given == 1u);
  BOOST_TEST((read(buffer, 2) == numbers{0, 2}));
}

BOOST_AUTO_TEST_CASE(firo_waits_for_the_threshold_and_then_takes_any) {
  std::set<numbers> orders;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    stream_buffer buffer{some(stream_policy::firo, 8, full_policy::block, 3, seed)};
    append(buffer);
    append(buffer);
    BOOST_TEST(read(buffer, 1).empty());
    append(buffer);
    numbers order = read(buffer, 1);
    BOOST_TEST_REQUIRE(order.size() == 1u);
    BOOST_TEST(read(buffer, 1).empty()); // two are left
    buffer.end();
    auto rest = read(buffer, 2);
    order.insert(order.end(), rest.begin(), rest.end());
    orders.insert(order);
  }
  BOOST_TEST(orders.size() == 6u);
}

BOOST_AUTO_TEST_CASE(a_reservoir_repeats_samples_and_replaces_only_those_that_were_given) {
  stream_buffer buffer{some(stream_policy::reservoir, 2)};
  append(buffer);
  append(buffer);
  BOOST_TEST(!append(buffer)); // none was given
  auto first = read(buffer, 1);
  BOOST_TEST(append(buffer));
  BOOST_TEST(buffer.counts().replaced == 1u);
  BOOST_TEST(buffer.counts().dropped == 0u);
  auto now = read(buffer, 2);
  BOOST_TEST(std::ranges::count(now, first[0]) == 0);
  for (int i = 0; i < 10; ++i)
    BOOST_TEST(read(buffer, 2).size() == 2u);
  BOOST_TEST(buffer.counts().repeated == 20u);
  buffer.end();
  BOOST_TEST(read(buffer, 5).size() == 2u);
  BOOST_TEST(buffer.is_over());
}

BOOST_AUTO_TEST_CASE(a_reservoir_that_drops_prefers_samples_that_were_given) {
  stream_buffer buffer{some(stream_policy::reservoir, 2, full_policy::drop_oldest)};
  for (int i = 0; i < 3; ++i)
    BOOST_TEST(append(buffer));
  BOOST_TEST(buffer.counts().dropped == 1u);
  auto given = read(buffer, 1);
  BOOST_TEST(append(buffer));
  BOOST_TEST(buffer.counts().dropped == 1u);
  BOOST_TEST(buffer.counts().replaced == 1u);
}

BOOST_AUTO_TEST_CASE(equal_seeds_choose_equally) {
  auto run = [](std::uint64_t seed) {
    stream_buffer buffer{some(stream_policy::reservoir, 8, full_policy::block, 0, seed)};
    numbers out;
    for (int i = 0; i < 100; ++i) {
      append(buffer);
      if (auto some = read(buffer, 2); !some.empty())
        out.insert(out.end(), some.begin(), some.end());
    }
    return out;
  };
  BOOST_TEST((run(5) == run(5)));
  BOOST_TEST((run(5) != run(6)));
}

BOOST_AUTO_TEST_CASE(options_out_of_bounds_are_refused_by_name) {
  auto why = [](const stream_options& o) { return validate(o).detail(); };
  BOOST_TEST(validate(some(stream_policy::firo, 4, full_policy::block, 4)).ok());
  BOOST_TEST(why(some(stream_policy::fifo, 0)).starts_with("capacity 0"));
  BOOST_TEST(why(some(stream_policy::fifo, stream_capacity_max + 1)).starts_with("capacity"));
  BOOST_TEST(why(some(stream_policy::firo, 4, full_policy::block, 5)).starts_with("threshold 5"));
  BOOST_TEST(why(some(stream_policy::fifo, 4, full_policy::block, 1)).starts_with("threshold 1"));
  BOOST_TEST(why(some(stream_policy{3}, 4)).starts_with("policy 3"));
  BOOST_TEST(why(some(stream_policy::fifo, 4, full_policy{2})).starts_with("when_full 2"));
  BOOST_TEST((parse_stream_policy("reservoir").value() == stream_policy::reservoir));
  BOOST_TEST((parse_full_policy("drop_oldest").value() == full_policy::drop_oldest));
  BOOST_TEST(!parse_stream_policy("lifo").has_value());
  BOOST_TEST(!parse_full_policy("").has_value());
}

BOOST_AUTO_TEST_SUITE_END()
