// Tests which samples a window keeps: by a model that is simple and slow, over many seeds, and by
// hand where one answer is right.
#include <millrace/actors/loader/window_buffer.hpp>
#include <millrace/core/sample_order.hpp>
#include <millrace/tests/support/dice.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <vector>

using namespace millrace;
using namespace millrace::actors;
using millrace::testing::dice;

namespace {

constexpr std::uint64_t unit = window_buffer::alignment;

bool keep(
  window_buffer& buffer, std::uint64_t sample, std::uint64_t needed_in,
  std::uint64_t bytes = unit) {
  auto place = buffer.begin_write({0, sample}, bytes, needed_in);
  if (place)
    buffer.commit({0, sample}, 100 + sample);
  return place.has_value();
}

// Reads a value, and has it no longer.
bool read(
  window_buffer& buffer, std::uint64_t sample, std::uint64_t needed_in,
  std::uint64_t bytes = unit) {
  auto place = buffer.take({0, sample}, bytes, needed_in);
  if (place)
    buffer.release({0, sample});
  return place.has_value();
}

// Values in a list, which is searched.
class model {
public:
  explicit model(std::uint64_t seed) : random_(seed), buffer_(places * unit, samples) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      step();
      check();
    }
  }

private:
  static constexpr std::uint64_t places = 16;
  static constexpr std::uint64_t samples = 60;

  struct value {
    std::uint64_t sample = 0, address = 0, bytes = 0, needed_at = 0, readers = 0;
    bool writing = true, dropped = false;

    std::uint64_t end() const { return address + bytes; }
    bool idle() const { return !writing && readers == 0; }
  };

  value* find(std::uint64_t sample) {
    auto found = std::ranges::find(values_, sample, &value::sample);
    return found == values_.end() ? nullptr : &*found;
  }
  void erase(std::uint64_t sample) {
    std::erase_if(values_, [&](auto& v) { return v.sample == sample; });
  }

  void step() {
    auto sample = random_.below(samples);
    auto needed_in = random_.below(2 * samples);
    auto* one = find(sample);
    switch (random_.below(6)) {
    case 0:
      buffer_.pass(1);
      ++now_;
      break;
    case 1:
      if (one && one->readers > 0)
        end_reading(*one);
      break;
    case 2:
      if (one && one->writing)
        end_writing(*one);
      break;
    case 3:
      take(sample, needed_in);
      break;
    default:
      begin_write(sample, needed_in);
    }
  }

  void take(std::uint64_t sample, std::uint64_t needed_in) {
    auto* one = find(sample);
    auto there = one && !one->writing && !one->dropped;
    auto got = buffer_.take({0, sample}, unit, needed_in);
    BOOST_TEST_REQUIRE(got.has_value() == there);
    if (!got)
      return;
    BOOST_TEST(got->address == one->address);
    BOOST_TEST(got->digest == 100 + sample);
    ++one->readers;
    one->needed_at = now_ + needed_in;
  }

  void end_reading(value& one) {
    --one.readers;
    auto damaged = random_.percent(20);
    damaged ? buffer_.drop({0, one.sample}) : buffer_.release({0, one.sample});
    one.dropped = one.dropped || damaged;
    if (one.dropped && one.readers == 0)
      erase(one.sample);
  }

  void end_writing(value& one) {
    one.writing = false;
    if (random_.percent(80))
      return buffer_.commit({0, one.sample}, 100 + one.sample);
    buffer_.abandon({0, one.sample});
    erase(one.sample);
  }

  // Whether a value may make room for another one.
  bool may_go(const value& one, std::uint64_t needed_at) const {
    return one.idle() && (one.needed_at > needed_at || one.needed_at + samples < now_);
  }

  void begin_write(std::uint64_t sample, std::uint64_t needed_in) {
    value next{sample, 0, unit, now_ + needed_in};
    auto known = find(sample) != nullptr;
    auto may = std::ranges::any_of(values_, [&](auto& v) { return may_go(v, next.needed_at); });
    auto gone = known || values_.size() < places ? 0 : victim(next.needed_at);
    auto place = buffer_.begin_write({0, sample}, next.bytes, needed_in);
    BOOST_TEST_REQUIRE(place.has_value() == (!known && (values_.size() < places || may)));
    if (!place)
      return;
    next.address = *place;
    BOOST_TEST_REQUIRE(next.end() <= places * unit);
    std::erase_if(values_, [&](auto& old) {
      auto overlaps = old.address < next.end() && next.address < old.end();
      BOOST_TEST_REQUIRE((!overlaps || may_go(old, next.needed_at)));
      BOOST_TEST_REQUIRE((!overlaps || old.sample == gone));
      return overlaps;
    });
    values_.push_back(next);
  }

  // Of equal sizes: the one that must go.
  std::uint64_t victim(std::uint64_t needed_at) {
    const value *first = nullptr, *last = nullptr;
    for (auto& one : values_) {
      if (!one.idle())
        continue;
      auto key = [](auto& v) { return std::pair{v.needed_at, v.sample}; };
      first = !first || key(one) < key(*first) ? &one : first;
      last = !last || key(one) > key(*last) ? &one : last;
    }
    if (!first)
      return samples;
    return first->needed_at + samples < now_ ? first->sample
      : last->needed_at > needed_at          ? last->sample
                                             : samples;
  }

  void check() {
    auto counts = buffer_.counts();
    BOOST_TEST(counts.kept_bytes <= places * unit);
    auto kept = std::ranges::count_if(values_, [](auto& v) { return !v.writing && !v.dropped; });
    BOOST_TEST(counts.kept == static_cast<std::uint64_t>(kept));
  }

  dice random_;
  window_buffer buffer_;
  std::uint64_t now_ = 0;
  std::vector<value> values_;
};

// Returns how many samples of the second and later epochs were kept.
std::uint64_t given_in(std::uint64_t samples, std::uint64_t places, std::uint64_t epochs) {
  window_buffer buffer{places * unit, samples};
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    sample_order now{samples, {1, 7, epoch}}, next{samples, {1, 7, epoch + 1}};
    for (std::uint64_t i = 0; i < samples; ++i) {
      auto sample = now.at(i);
      auto needed_in = samples - i + next.position_of(sample);
      if (!read(buffer, sample, needed_in))
        keep(buffer, sample, needed_in);
      buffer.pass(1);
    }
  }
  return buffer.counts().given;
}

} // namespace

BOOST_AUTO_TEST_SUITE(window_buffers)

BOOST_AUTO_TEST_CASE(values_of_one_size_are_kept_as_the_model_keeps_them) {
  for (std::uint64_t seed = 0; seed < 200; ++seed)
    model{seed}.run(1000);
}

BOOST_AUTO_TEST_CASE(what_is_needed_last_makes_room) {
  window_buffer buffer{3 * unit, 100};
  BOOST_TEST(keep(buffer, 1, 10));
  BOOST_TEST(keep(buffer, 2, 30));
  BOOST_TEST(keep(buffer, 3, 20));
  BOOST_TEST(!keep(buffer, 4, 40));
  BOOST_TEST(keep(buffer, 5, 15));
  BOOST_TEST(!read(buffer, 2, 50));
  BOOST_TEST(read(buffer, 3, 50));
  BOOST_TEST(keep(buffer, 4, 40));
  BOOST_TEST(!read(buffer, 3, 50));
  auto counts = buffer.counts();
  BOOST_TEST(counts.refused == 1u);
  BOOST_TEST(counts.evicted == 2u);
  BOOST_TEST(counts.kept_bytes == 3 * unit);
}

BOOST_AUTO_TEST_CASE(a_value_that_is_not_kept_makes_nothing_go) {
  window_buffer buffer{4 * unit, 100};
  BOOST_TEST(keep(buffer, 1, 10)); // lies between those that are needed later
  BOOST_TEST(buffer.begin_write({0, 9}, unit, 0).has_value());
  BOOST_TEST(keep(buffer, 2, 80));
  BOOST_TEST(keep(buffer, 3, 90));
  buffer.abandon({0, 9});
  // Three places are free or needed later, and no three lie beside each other without sample 1.
  BOOST_TEST(!keep(buffer, 4, 5, 5 * unit));
  BOOST_TEST(!keep(buffer, 5, 20, 4 * unit));
  BOOST_TEST(buffer.counts().evicted == 0u);
  BOOST_TEST(buffer.counts().kept == 3u);
  for (std::uint64_t sample : {1, 2, 3})
    BOOST_TEST(read(buffer, sample, 100 - sample));
  // Of those that are needed later, only what lies in the way goes.
  BOOST_TEST(keep(buffer, 6, 20, 2 * unit));
  BOOST_TEST(buffer.counts().evicted == 1u);
}

BOOST_AUTO_TEST_CASE(a_value_as_large_as_the_window_is_kept) {
  window_buffer buffer{4 * unit, 100};
  for (std::uint64_t sample : {1, 2, 3, 4})
    BOOST_TEST(keep(buffer, sample, 50));
  BOOST_TEST(keep(buffer, 5, 10, 4 * unit));
  BOOST_TEST(buffer.counts().evicted == 4u);
  BOOST_TEST(read(buffer, 5, 10, 4 * unit));
}

BOOST_AUTO_TEST_CASE(what_is_read_or_written_does_not_make_room) {
  window_buffer buffer{2 * unit, 100};
  BOOST_TEST(keep(buffer, 1, 50));
  BOOST_TEST(buffer.take({0, 1}, unit, 50).has_value());
  BOOST_TEST(buffer.begin_write({0, 2}, unit, 60).has_value());
  BOOST_TEST(!buffer.begin_write({0, 2}, unit, 0).has_value());
  BOOST_TEST(!keep(buffer, 3, 0));
  BOOST_TEST(!read(buffer, 2, 0));
  buffer.release({0, 1});
  BOOST_TEST(keep(buffer, 3, 0));
  buffer.abandon({0, 2});
  BOOST_TEST(keep(buffer, 4, 90));
}

BOOST_AUTO_TEST_CASE(a_damaged_value_is_given_to_nobody) {
  window_buffer buffer{2 * unit, 100};
  BOOST_TEST(keep(buffer, 1, 5));
  BOOST_TEST(buffer.take({0, 1}, unit, 5).has_value());
  BOOST_TEST(buffer.take({0, 1}, unit, 5).has_value());
  buffer.drop({0, 1});
  BOOST_TEST(!read(buffer, 1, 5));
  BOOST_TEST(!keep(buffer, 1, 5)); // the other reader has its place
  buffer.release({0, 1});
  BOOST_TEST(keep(buffer, 1, 5));
  BOOST_TEST(buffer.counts().damaged == 1u);
}

BOOST_AUTO_TEST_CASE(a_value_that_nobody_asks_for_any_more_goes_first) {
  window_buffer buffer{2 * unit, 10};
  BOOST_TEST(keep(buffer, 1, 3));
  BOOST_TEST(keep(buffer, 2, 30));
  for (int i = 0; i < 2; ++i)
    buffer.pass(7);
  BOOST_TEST(keep(buffer, 3, 20));
  BOOST_TEST(!read(buffer, 1, 0));
  BOOST_TEST(read(buffer, 2, 30));
}

// As a peer may say them that is of another version, or hostile.
BOOST_AUTO_TEST_CASE(numbers_without_bounds_do_no_harm) {
  constexpr auto most = ~std::uint64_t{0};
  window_buffer buffer{2 * unit, 10};
  BOOST_TEST(keep(buffer, 1, most)); // counts as 20
  BOOST_TEST(keep(buffer, 2, 21));   // too
  buffer.pass(most);                 // counts as 10
  BOOST_TEST(!keep(buffer, 3, 11));  // at 21: later than both
  BOOST_TEST(keep(buffer, 3, 9));
  BOOST_TEST(!read(buffer, 2, 0));
  BOOST_TEST(read(buffer, 1, most - 1));
  BOOST_TEST(read(buffer, 3, 3));
}

// The clock stands then.
BOOST_AUTO_TEST_CASE(a_window_is_used_on_at_the_end_of_its_clock) {
  constexpr auto most = ~std::uint64_t{0};
  for (auto samples : {most, most / 3}) {
    window_buffer buffer{2 * unit, samples};
    for (int i = 0; i < 5; ++i)
      buffer.pass(most);
    for (std::uint64_t sample = 1; sample < 5; ++sample)
      BOOST_TEST(keep(buffer, sample, 7) == (sample < 3));
    BOOST_TEST(read(buffer, 1, most));
    BOOST_TEST(buffer.take({0, 2}, unit, most).has_value());
    buffer.drop({0, 2});
    BOOST_TEST(keep(buffer, 4, 0));
    BOOST_TEST(buffer.counts().kept == 2u);
  }
}

BOOST_AUTO_TEST_CASE(values_of_different_sizes_never_lie_on_each_other) {
  dice random{3};
  window_buffer buffer{64 * unit, 1000};
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> held; // address → end, sample
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    auto sample = random.below(1000);
    auto bytes = sample * 97 % (9 * unit);
    buffer.pass(1);
    if (auto place = buffer.take({0, sample}, bytes, random.below(2000))) {
      held.emplace(place->address, std::pair{place->address + bytes, sample});
    } else if (auto address = buffer.begin_write({0, sample}, bytes, random.below(2000))) {
      auto end = *address + bytes;
      BOOST_TEST_REQUIRE(end <= 64 * unit);
      for (auto& [begin, other] : held)
        BOOST_TEST_REQUIRE((end <= begin || other.first <= *address));
      buffer.commit({0, sample}, 1);
    }
    if (held.size() > 3) {
      buffer.release({0, held.begin()->second.second});
      held.erase(held.begin());
    }
  }
  BOOST_TEST(buffer.counts().evicted > 1000u);
  BOOST_TEST(buffer.counts().given > 100u);
}

BOOST_AUTO_TEST_CASE(a_window_gives_the_part_of_each_epoch_that_it_keeps) {
  BOOST_TEST(given_in(1000, 1000, 3) == 2000u);
  // A quarter of the set, in each epoch after the first one.
  BOOST_TEST(given_in(1000, 250, 5) == 1000u);
}

BOOST_AUTO_TEST_SUITE_END()
