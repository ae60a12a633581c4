// Tests saves in the order of the streams of a device: by a library that stands in for NVIDIA's,
// and, as a program of its own, with a GPU.
#include "one_pool.hpp"

#include <millrace/tests/support/cuda_program.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <string>

using namespace millrace;
using namespace std::chrono_literals;
using testing::cuda_words;
using testing::make_stream;
using testing::unfinished_work;

namespace {

constexpr std::size_t words = 1 << 18;

// MILLRACE_STREAM_ROUNDS: saves of the test that repeats them.
unsigned int rounds() {
  auto* given = std::getenv("MILLRACE_STREAM_ROUNDS");
  return given ? static_cast<unsigned int>(std::strtoul(given, nullptr, 10)) : 20;
}

// A trainer in this process whose tensor lies on a device.
struct trainer {
  explicit trainer(const std::string& model = "job", std::chrono::milliseconds timeout = 30s) {
    testing::cuda_program::here().enter();
    checkpoint_options options;
    options.model = model;
    options.timeout = timeout;
    ck.emplace(pool.direct->checkpointer(options, views()).get());
  }

  std::vector<tensor_view> views() const {
    return {{{"weight", dtype::u32, {words}}, weight.data(), {}}};
  }

  // Returns the word that fills the tensor in this step; a torn tensor fails the test.
  unsigned int stored(std::uint64_t step) {
    std::vector<unsigned int> got(words, 77);
    auto into = tensor_view::dense("weight", dtype::u32, {words}, std::span{got});
    ck->restore_shard(0, {into}, step).get();
    auto torn = std::ranges::find_if(got, [&](auto w) { return w != got[0]; });
    if (torn != got.end())
      BOOST_TEST(false, "step " << step << ": " << got[0] << " and " << *torn);
    return got[0];
  }

  cuda_words weight{words};
  CUstream stream = make_stream();
  testing::one_pool pool;
  std::optional<checkpointer> ck;
};

errc code_of(const future<save_receipt>& f) {
  return f.result() ? errc::ok : f.result().error().code();
}

} // namespace

BOOST_AUTO_TEST_SUITE(streams)

BOOST_AUTO_TEST_CASE(a_save_reads_what_the_stream_computes_and_no_more) {
  trainer t;
  for (unsigned int i = 1; i <= rounds(); ++i) {
    // Many fills: the device is behind the thread that gives it work.
    for (unsigned int k = 0; k < 16; ++k)
      t.weight.fill(1'000'000 + k, t.stream);
    t.weight.fill(i, t.stream);
    auto saving = t.ck->save(i, save_mode::direct, {}, device_stream{t.stream});
    BOOST_TEST(t.ck->fence(device_stream{t.stream}).ok());
    t.weight.fill(2'000'000 + i, t.stream);
    BOOST_TEST_REQUIRE(saving.durable.get().step == i);
    BOOST_TEST_REQUIRE(t.stored(i) == i);
  }
  CUDA_CALL(cuStreamSynchronize, t.stream);
}

// What goes wrong without the stream, so that the test above can see it.
BOOST_AUTO_TEST_CASE(a_save_without_the_stream_reads_what_is_there) {
  trainer t;
  t.weight.fill(1, t.stream);
  CUDA_CALL(cuStreamSynchronize, t.stream);
  unfinished_work before{t.stream};
  t.weight.fill(2, t.stream);
  t.ck->save(1).durable.get();
  BOOST_TEST(t.stored(1) == 1u);
}

BOOST_AUTO_TEST_CASE(neither_call_waits_for_the_device) {
  trainer t;
  unfinished_work before{t.stream};
  t.weight.fill(5, t.stream);
  auto saving = t.ck->save(1, save_mode::direct, {}, device_stream{t.stream});
  BOOST_TEST(t.ck->fence(device_stream{t.stream}).ok());
  t.weight.fill(6, t.stream);
  BOOST_TEST(!saving.staged.wait_for(50ms));
  before.finish();
  saving.durable.get();
  BOOST_TEST(t.stored(1) == 5u);
  // The gate is open.
  CUDA_CALL(cuStreamSynchronize, t.stream);
  t.ck->save(2, save_mode::direct, {}, device_stream{t.stream}).durable.get();
  BOOST_TEST(t.stored(2) == 6u);
}

BOOST_AUTO_TEST_CASE(a_later_save_does_not_overtake_one_that_waits) {
  trainer t;
  unfinished_work before{t.stream};
  t.weight.fill(5, t.stream);
  auto first = t.ck->save(1, save_mode::snapshot, {}, device_stream{t.stream});
  auto second = t.ck->save(2, save_mode::snapshot);
  BOOST_TEST(!second.staged.wait_for(50ms));
  before.finish();
  BOOST_TEST(first.durable.get().step == 1u);
  BOOST_TEST(second.durable.get().step == 2u);
}

BOOST_AUTO_TEST_CASE(the_default_stream_is_one_too) {
  trainer t;
  t.weight.fill(9, nullptr);
  auto saving = t.ck->save(1, save_mode::direct, {}, device_stream{});
  BOOST_TEST(t.ck->fence(device_stream{}).ok());
  t.weight.fill(10, nullptr);
  saving.durable.get();
  BOOST_TEST(t.stored(1) == 9u);
  CUDA_CALL(cuStreamSynchronize, nullptr);
}

BOOST_AUTO_TEST_CASE(a_stream_that_does_not_come_ends_the_save_by_its_deadline) {
  trainer t{"late", 300ms};
  unfinished_work before{t.stream};
  auto saving = t.ck->save(1, save_mode::direct, {}, device_stream{t.stream});
  BOOST_TEST(t.ck->fence(device_stream{t.stream}).ok());
  BOOST_TEST_REQUIRE(saving.durable.wait_for(30s));
  BOOST_TEST((code_of(saving.durable) == errc::deadline_exceeded));
  BOOST_TEST((code_of(saving.staged) == errc::deadline_exceeded));
  BOOST_TEST((t.ck->fence().code() == errc::deadline_exceeded)); // reported once
  BOOST_TEST(t.ck->fence().ok());
  before.finish();
  CUDA_CALL(cuStreamSynchronize, t.stream); // the gate is open
  t.weight.fill(3, t.stream);
  t.ck->save(2, save_mode::direct, {}, device_stream{t.stream}).durable.get();
  BOOST_TEST(t.stored(2) == 3u);
  BOOST_TEST(t.ck->describe().get().complete_steps == std::vector<std::uint64_t>{2});
}

BOOST_AUTO_TEST_CASE(a_cancelled_save_is_not_begun_when_the_stream_comes) {
  trainer t;
  unfinished_work before{t.stream};
  t.weight.fill(5, t.stream);
  auto saving = t.ck->save(1, save_mode::direct, {}, device_stream{t.stream});
  saving.staged.cancel();
  BOOST_TEST((code_of(saving.durable) == errc::cancelled));
  before.finish();
  CUDA_CALL(cuStreamSynchronize, t.stream);
  BOOST_TEST((t.ck->fence().code() == errc::cancelled));
  t.ck->save(2).durable.get();
  BOOST_TEST(t.ck->describe().get().complete_steps == std::vector<std::uint64_t>{2});
}

BOOST_AUTO_TEST_CASE(streams_that_cannot_be_used_are_refused) {
  trainer t;
  auto refused = [&](device_stream stream, errc why, const char* word) {
    auto saving = t.ck->save(1, save_mode::direct, {}, stream);
    BOOST_TEST_REQUIRE(saving.staged.wait_for(0ms));
    BOOST_TEST((code_of(saving.durable) == why));
    auto detail = saving.staged.result().error().detail();
    BOOST_TEST(detail.find(word) != std::string::npos, detail);
    BOOST_TEST((t.ck->fence().code() == why)); // reported once
  };
  refused({.handle = t.stream, .kind = "abacus"}, errc::unsupported, "cuda");
  CUDA_CALL(cuStreamBeginCapture, t.stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  refused({.handle = t.stream}, errc::invalid_argument, "captured");
  CUgraph graph = nullptr;
  CUDA_CALL(cuStreamEndCapture, t.stream, &graph);
  CUDA_CALL(cuCtxSetCurrent, nullptr);
  refused({}, errc::invalid_argument, "no current context");
  testing::cuda_program::here().enter();
  t.ck->save(1, save_mode::direct, {}, device_stream{t.stream}).durable.get();
}

// Equal lengths at equal distances: no command may go from one to the next.
BOOST_AUTO_TEST_CASE(tensors_of_many_allocations_are_saved_and_restored) {
  constexpr std::size_t few = 1 << 12;
  testing::cuda_program::here().enter();
  testing::one_pool pool;
  checkpoint_options options;
  options.model = "many";
  std::deque<testing::cuda_words> weights;
  std::vector<tensor_view> views;
  for (unsigned int i = 0; i < 12; ++i) {
    auto& w = weights.emplace_back(few);
    w.fill(i, nullptr);
    views.push_back({{std::to_string(i), dtype::u32, {few}}, w.data(), {}});
  }
  CUDA_CALL(cuStreamSynchronize, nullptr);
  auto ck = pool.direct->checkpointer(options, views).get();
  ck.save(1).durable.get();
  for (auto& w : weights)
    w.fill(77, nullptr);
  CUDA_CALL(cuStreamSynchronize, nullptr);
  ck.restore(1).get();
  ck.save(2).durable.get();
  for (unsigned int i = 0; i < weights.size(); ++i) {
    std::vector<unsigned int> got(few);
    auto into = tensor_view::dense(std::to_string(i), dtype::u32, {few}, std::span{got});
    ck.restore_shard(0, {into}, 2).get();
    BOOST_TEST(std::ranges::all_of(got, [&](auto w) { return w == i; }), i);
  }
}

// Each fence holds back another stream, until the thread has to wait itself.
BOOST_AUTO_TEST_CASE(more_streams_than_a_device_bears_are_waited_for) {
  trainer t;
  t.weight.fill(4, t.stream);
  std::vector<CUstream> streams(12);
  std::ranges::generate(streams, [] { return make_stream(); });
  unfinished_work before{t.stream};
  auto saving = t.ck->save(1, save_mode::direct, {}, device_stream{t.stream});
  std::thread device{[&] {
    std::this_thread::sleep_for(100ms);
    before.finish();
  }};
  for (auto stream : streams)
    BOOST_TEST(t.ck->fence(device_stream{stream}).ok());
  t.weight.fill(8, streams.front());
  device.join();
  saving.durable.get();
  BOOST_TEST(t.stored(1) == 4u);
  for (auto stream : streams)
    CUDA_CALL(cuStreamSynchronize, stream);
}

BOOST_AUTO_TEST_SUITE_END()
