// Tests loaders: what ranks get, when they go on elsewhere, and what is in the memory of a batch.
#include <millrace/tests/runtime/data_node.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

using ids_type = std::vector<std::uint64_t>;

set_reader reader_of(data_node& at, std::uint64_t samples, bool over_socket = true) {
  auto set = at.by(over_socket).working_set("digits");
  set.preload({at.file("a.npy", samples)}).get();
  return set.open().get();
}

void check_bytes(const batch& b) {
  auto x = b.field(0);
  BOOST_TEST_REQUIRE((x.desc.shape == ids_type{b.rows(), 10, 100}));
  for (std::size_t i = 0; i < b.ids().size(); ++i)
    BOOST_TEST_REQUIRE(
      is_sample({x.data + i * data_node::sample_bytes, data_node::sample_bytes}, b.ids()[i]));
}

// The samples of a rank's next batches, to the end of the epoch.
ids_type rest_of_epoch(const loader& from, std::uint64_t& batches) {
  ids_type out;
  for (batches = 0;; ++batches) {
    auto got = from.next().get();
    if (!got)
      return out;
    check_bytes(*got);
    out.insert(out.end(), got->ids().begin(), got->ids().end());
  }
}

ids_type order_of(const set_reader& reader, std::uint64_t seed, std::uint64_t epoch) {
  auto order = reader.order(seed, epoch);
  ids_type out(order.size());
  for (std::uint64_t i = 0; i < out.size(); ++i)
    out[i] = order.at(i);
  return out;
}

errc code_of(const status& s) { return s.code(); }

} // namespace

BOOST_AUTO_TEST_SUITE(loaders)

BOOST_AUTO_TEST_CASE(a_loader_gives_every_epoch_in_its_order) {
  for (bool over_socket : {false, true})
    for (std::uint32_t prefetch : {1, 4}) {
      data_node at;
      auto reader = reader_of(at, 1003, over_socket);
      loader_options options;
      options.batch_size = 64;
      options.seed = 7;
      options.epoch = 2;
      options.prefetch = prefetch;
      auto from = reader.load_batches(options).value();
      BOOST_TEST(from.batches_per_epoch() == 16u);
      for (std::uint64_t epoch : {2, 3, 4}) {
        BOOST_TEST(from.state().epoch == epoch);
        BOOST_TEST(from.batches_left() == 16u);
        std::uint64_t batches = 0;
        BOOST_TEST(rest_of_epoch(from, batches) == order_of(reader, 7, epoch));
        BOOST_TEST(batches == 16u);
      }
      auto counts = from.counts();
      BOOST_TEST(counts.batches == 48u);
      BOOST_TEST(counts.samples == 3009u);
      BOOST_TEST(counts.bytes == 3'009'000u);
      BOOST_TEST(counts.held == 0u);
    }
}

BOOST_AUTO_TEST_CASE(ranks_share_an_epoch_and_have_as_many_batches) {
  data_node at;
  auto reader = reader_of(at, 203);
  auto whole = order_of(reader, 1, 0);
  for (auto remainder : {remainder_kind::shorter, remainder_kind::pad, remainder_kind::drop})
    for (std::uint64_t world : {1, 2, 3, 7}) {
      std::vector<loader> ranks;
      for (std::uint64_t rank = 0; rank < world; ++rank)
        ranks.push_back(reader
                          .load_batches({
                            .batch_size = 8,
                            .rank = rank,
                            .world_size = world,
                            .seed = 1,
                            .remainder = remainder,
                          })
                          .value());
      ids_type seen;
      for (bool ended = false; !ended;) {
        std::size_t ends = 0;
        for (auto& rank : ranks) {
          auto got = rank.next().get();
          ends += !got;
          if (!got)
            continue;
          check_bytes(*got);
          seen.insert(seen.end(), got->ids().begin(), got->ids().end());
          BOOST_TEST((remainder == remainder_kind::shorter || got->rows() == 8u));
        }
        ended = ends > 0;
        BOOST_TEST_REQUIRE((!ended || ends == world));
      }
      auto left = remainder == remainder_kind::drop ? 203 % (8 * world) : 0;
      BOOST_TEST(seen == ids_type(whole.begin(), whole.end() - static_cast<long>(left)));
    }
}

BOOST_AUTO_TEST_CASE(padding_is_marked_and_zero) {
  data_node at;
  auto reader = reader_of(at, 10);
  auto from = reader.load_batches({.batch_size = 8, .remainder = remainder_kind::pad}).value();
  for (int epoch = 0; epoch < 3; ++epoch) {
    BOOST_TEST(from.next().get()->ids().size() == 8u);
    auto last = from.next().get().value();
    BOOST_TEST(last.rows() == 8u);
    BOOST_TEST(last.ids().size() == 2u);
    auto mask = last.mask();
    for (std::size_t i = 0; i < 8; ++i)
      BOOST_TEST(std::to_integer<int>(mask.data[i]) == (i < 2 ? 1 : 0));
    std::span padding{
      last.field(0).data + 2 * data_node::sample_bytes, 6 * data_node::sample_bytes};
    BOOST_TEST(std::ranges::all_of(padding, [](auto b) { return b == std::byte{0}; }));
    BOOST_TEST(!from.next().get());
  }
}

BOOST_AUTO_TEST_CASE(a_state_goes_on_exactly_with_other_ranks_and_batches) {
  data_node at;
  auto reader = reader_of(at, 500);
  auto whole = order_of(reader, 5, 3);
  auto first = reader.load_batches({.batch_size = 16, .seed = 5, .epoch = 3}).value();
  for (int i = 0; i < 7; ++i)
    first.next().get();
  auto text = first.state().to_json();
  auto state = loader_state::parse(text).value();
  BOOST_TEST((state == first.state()));
  BOOST_TEST(state.position == 112u);
  for (std::uint64_t world : {1, 3}) {
    std::vector<loader> ranks;
    for (std::uint64_t rank = 0; rank < world; ++rank) {
      ranks.push_back(
        reader.load_batches({.batch_size = 5, .rank = rank, .world_size = world}).value());
      BOOST_TEST(ranks.back().seek(state).ok());
    }
    ids_type seen;
    while (ranks.front().batches_left() > 0)
      for (auto& rank : ranks) {
        auto got = rank.next().get().value();
        seen.insert(seen.end(), got.ids().begin(), got.ids().end());
      }
    BOOST_TEST(seen == ids_type(whole.begin() + 112, whole.end()));
    BOOST_TEST(!ranks.front().next().get());
    BOOST_TEST(ranks.front().state().epoch == 4u);
  }
}

BOOST_AUTO_TEST_CASE(states_that_do_not_fit_are_refused) {
  data_node at;
  auto from = reader_of(at, 50).load_batches({.batch_size = 5}).value();
  auto other_set = from.state(), beyond = from.state();
  other_set.set ^= 1;
  beyond.position = 51;
  BOOST_TEST((code_of(from.seek(other_set)) == errc::invalid_argument));
  BOOST_TEST((code_of(from.seek(beyond)) == errc::invalid_argument));
  auto good = from.state().to_json();
  for (std::string bad :
       {std::string{}, std::string{"[]"}, std::string{"{}"}, std::string(5000, ' '),
        std::string{good}.replace(good.find("\"version\":1"), 11, "\"version\":2"),
        std::string{good}.replace(good.find("\"seed\":0"), 8, "\"seed\":-1"),
        std::string{good}.replace(good.find("full"), 4, "most")})
    BOOST_TEST((loader_state::parse(bad).error().code() == errc::invalid_argument), bad);
}

BOOST_AUTO_TEST_CASE(wrong_options_are_refused) {
  data_node at;
  auto reader = reader_of(at, 50);
  auto code = [&](const loader_options& o) { return reader.load_batches(o).error().code(); };
  BOOST_TEST((code({.batch_size = 0}) == errc::invalid_argument));
  BOOST_TEST((code({.rank = 1}) == errc::invalid_argument));
  BOOST_TEST((code({.world_size = 0}) == errc::invalid_argument));
  BOOST_TEST((code({.fields = {"y"}}) == errc::invalid_argument));
  BOOST_TEST((code({.prefetch = 0}) == errc::invalid_argument));
  BOOST_TEST((code({.prefetch = 65}) == errc::invalid_argument));
  BOOST_TEST((code({.batch_size = std::uint64_t{1} << 31, .prefetch = 64}) != errc::ok));
}

BOOST_AUTO_TEST_CASE(a_held_batch_is_not_written_again) {
  data_node at;
  auto reader = reader_of(at, 1000);
  auto from = reader.load_batches({.batch_size = 10, .seed = 3, .prefetch = 2}).value();
  std::mt19937 random{1};
  std::vector<batch> held;
  for (int i = 0; i < 300; ++i) {
    auto got = from.next().get();
    if (!got)
      continue;
    held.push_back(*got);
    if (held.size() == 3)
      held.erase(held.begin() + random() % 3);
    for (auto& one : held)
      check_bytes(one);
  }
}

BOOST_AUTO_TEST_CASE(who_holds_all_places_is_told) {
  data_node at;
  auto from = reader_of(at, 1000).load_batches({.batch_size = 10, .prefetch = 2}).value();
  std::vector<batch> held;
  for (int i = 0; i < 4; ++i)
    held.push_back(from.next().get().value());
  BOOST_TEST((from.next().result().error().code() == errc::no_space));
  BOOST_TEST(from.counts().held == 4u);
  auto state = from.state();
  held.erase(held.begin());
  auto next = from.next().get().value();
  BOOST_TEST(next.position() == state.position);
  check_bytes(next);
  for (auto& one : held)
    check_bytes(one);
}

BOOST_AUTO_TEST_CASE(batches_outlive_the_loader_and_the_client) {
  std::optional<batch> held;
  data_node at;
  {
    auto c = at.connect();
    c.working_set("digits").preload({at.file("a.npy", 100)}).get();
    auto from = c.working_set("digits").open().get().load_batches({.batch_size = 10}).value();
    held = from.next().get();
    auto late = from.next(); // nobody waits for it
  }
  at.stop();
  check_bytes(*held);
}

BOOST_AUTO_TEST_CASE(a_cancelled_call_takes_no_batch) {
  data_node at;
  auto reader = reader_of(at, 3000);
  auto from = reader.load_batches({.batch_size = 200, .seed = 1, .prefetch = 1}).value();
  auto whole = order_of(reader, 1, 0);
  std::mt19937 random{2};
  ids_type seen;
  while (seen.size() < whole.size()) {
    auto call = from.next();
    if (random() % 2 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds{random() % 300});
    call.cancel();
    if (call.result() && *call.result()) {
      auto ids = (*call.result())->ids();
      seen.insert(seen.end(), ids.begin(), ids.end());
    } else {
      auto got = from.next().get();
      seen.insert(seen.end(), got->ids().begin(), got->ids().end());
    }
  }
  BOOST_TEST(seen == whole);
}

// The program's code may use the loader wherever it runs.
BOOST_AUTO_TEST_CASE(a_cancelled_call_may_use_the_loader) {
  data_node at;
  auto from = reader_of(at, 3000).load_batches({.batch_size = 500, .prefetch = 1}).value();
  for (int round = 0; round < 20; ++round) {
    auto first = from.next(), second = from.next();
    std::atomic<int> told = 0;
    second.then([&](const result<std::optional<batch>>&) {
      from.state();
      from.counts();
      static_cast<void>(from.next());
      ++told;
    });
    second.cancel();
    // If the batch came before the cancel, the thread that brought it tells.
    auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (told == 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    BOOST_TEST(told == 1);
    BOOST_TEST(first.result().has_value());
  }
}

// As a coroutine does that awaits one batch after the other.
BOOST_AUTO_TEST_CASE(a_chain_of_calls_needs_no_stack) {
  data_node at;
  auto from = reader_of(at, 1000).load_batches({.batch_size = 10, .prefetch = 4}).value();
  constexpr int calls = 50'000;
  std::atomic<int> taken = 0;
  promise<void> done;
  auto fails = [&](const result<std::optional<batch>>& got) {
    if (!got)
      done.set(fail(got.error()));
    return !got;
  };
  std::function<void()> go_on = [&] {
    while (++taken < calls) {
      auto next = from.next();
      if (!next.ready())
        return next.then([&](const result<std::optional<batch>>& got) {
          if (!fails(got))
            go_on();
        });
      if (fails(next.result()))
        return;
    }
    done.set({});
  };
  go_on();
  BOOST_TEST((code_of(done.get_future()) == errc::ok));
  BOOST_TEST(taken == calls);
}

BOOST_AUTO_TEST_CASE(a_batch_that_was_dropped_is_not_held_by_the_program) {
  data_node at;
  auto from = reader_of(at, 4000).load_batches({.batch_size = 400, .prefetch = 1}).value();
  for (std::uint64_t round = 0; round < 200; ++round) {
    auto first = from.next().get(), second = from.next().get();
    BOOST_TEST(from.set_epoch(round).ok());
    BOOST_TEST_REQUIRE((code_of(from.next()) == errc::ok));
    BOOST_TEST(from.set_epoch(round).ok());
  }
}

BOOST_AUTO_TEST_CASE(calls_are_answered_in_their_order) {
  data_node at;
  auto reader = reader_of(at, 1000);
  auto from = reader.load_batches({.batch_size = 100, .seed = 1, .prefetch = 2}).value();
  for (int round = 0; round < 20; ++round) {
    std::vector<future<std::optional<batch>>> calls;
    for (int i = 0; i < 3; ++i)
      calls.push_back(from.next());
    for (std::size_t i = 0; i + 1 < calls.size(); ++i) {
      auto& a = calls[i].result().value();
      auto& b = calls[i + 1].result().value();
      if (a && b)
        BOOST_TEST(a->position() + 100 == b->position());
    }
  }
}

BOOST_AUTO_TEST_CASE(going_elsewhere_in_the_middle_gives_no_old_batch) {
  data_node at;
  auto reader = reader_of(at, 1000);
  auto from = reader.load_batches({.batch_size = 100, .seed = 1, .prefetch = 4}).value();
  std::mt19937 random{3};
  for (int round = 0; round < 200; ++round) {
    auto epoch = random() % 5;
    BOOST_TEST(from.set_epoch(epoch).ok());
    auto order = reader.order(1, epoch);
    for (std::uint64_t i = 0, n = random() % 4; i < n; ++i) {
      auto got = from.next().get().value();
      BOOST_TEST_REQUIRE(got.epoch() == epoch);
      BOOST_TEST_REQUIRE(got.position() == i * 100);
      BOOST_TEST_REQUIRE(got.ids()[0] == order.at(i * 100));
      check_bytes(got);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_error_is_given_once_and_the_loader_stays) {
  data_node at{4 * mib};
  auto c = at.connect();
  c.working_set("s").preload({at.file("a.npy", 3000)}).get();
  auto reader = c.working_set("s").open().get();
  auto from = reader.load_batches({.batch_size = 300, .prefetch = 1}).value();
  from.next().get();
  at.direct->working_set("s").unload().get();
  at.cut_connections();
  BOOST_TEST(at.frees_all_but(0));
  at.direct->working_set("t").preload({at.file("b.npy", 3000, 2)}).get();
  BOOST_TEST(from.next().result().has_value()); // was read before
  auto state = from.state();
  for (int i = 0; i < 3; ++i) {
    auto first = from.next(), second = from.next();
    BOOST_TEST((code_of(first) == errc::not_found));
    BOOST_TEST((code_of(second) == errc::not_found));
    BOOST_TEST((from.state() == state));
  }
}

BOOST_AUTO_TEST_CASE(a_set_without_samples_has_empty_epochs) {
  data_node at;
  auto from = reader_of(at, 0).load_batches({.batch_size = 3}).value();
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    BOOST_TEST(from.state().epoch == epoch);
    BOOST_TEST(!from.next().get());
  }
}

BOOST_AUTO_TEST_CASE(samples_that_vary_lie_one_after_the_other) {
  data_node at;
  std::vector<std::string> files;
  std::vector<std::vector<std::byte>> contents;
  for (std::uint64_t i = 0; i < 50; ++i) {
    contents.push_back(pattern(i * i * 7, i));
    files.push_back(fmt::format("{}/{:02}.bin", at.dir.path(), i));
    std::ofstream{files.back(), std::ios::binary}.write(
      reinterpret_cast<const char*>(contents[i].data()),
      static_cast<std::streamsize>(contents[i].size()));
  }
  auto set = at.connect().working_set("files");
  set.preload(files).get();
  auto from = set.open()
                .get()
                .load_batches(
                  {.batch_size = 8,
                   .seed = 2,
                   .remainder = remainder_kind::pad,
                   .fields = {"x"},
                   .prefetch = 2})
                .value();
  for (int epoch = 0; epoch < 3; ++epoch)
    while (auto got = from.next().get()) {
      auto x = got->field(0);
      auto offsets = got->offsets(0);
      BOOST_TEST_REQUIRE(offsets.size() == 9u);
      BOOST_TEST((x.desc.shape == ids_type{offsets.back()}));
      for (std::size_t i = 0; i < got->ids().size(); ++i) {
        std::span found{x.data + offsets[i], offsets[i + 1] - offsets[i]};
        BOOST_TEST_REQUIRE(std::ranges::equal(found, contents[got->ids()[i]]));
      }
      for (auto i = got->ids().size(); i < 8; ++i)
        BOOST_TEST(offsets[i + 1] == offsets[i]);
    }
  BOOST_TEST(from.counts().samples == 150u);
  BOOST_TEST(from.counts().ring_bytes > 0u);
}

BOOST_AUTO_TEST_CASE(several_threads_share_a_loader) {
  data_node at;
  auto reader = reader_of(at, 2000);
  auto from = reader.load_batches({.batch_size = 20, .seed = 4, .prefetch = 8}).value();
  std::mutex mutex;
  ids_type seen;
  std::atomic<int> ends = 0;
  auto take = [&] {
    while (ends == 0) {
      auto got = from.next().get();
      if (!got) {
        ++ends;
        return;
      }
      if (got->epoch() > 0)
        return;
      check_bytes(*got);
      std::lock_guard guard{mutex};
      seen.insert(seen.end(), got->ids().begin(), got->ids().end());
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back(take);
  for (auto& t : threads)
    t.join();
  std::ranges::sort(seen);
  ids_type all(2000);
  std::iota(all.begin(), all.end(), 0);
  BOOST_TEST(seen == all);
}

BOOST_AUTO_TEST_SUITE_END()
