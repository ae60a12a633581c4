// Tests that saves end when the trainer waits for them, also if the movers that yield get no core.
#include <millrace/runtime/client/calls/shard_state.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/scripted_service.hpp>
#include <millrace/transport/copy/mover_pool.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <semaphore>
#include <thread>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

constexpr auto wait_max = 60s; // of a wait that does not end if the code is wrong

// A client whose only mover that yields is held, and a service whose pulls are jobs of its movers.
struct fixture {
  testing::scripted_service service{{testing::listed("p", true)}};
  std::shared_ptr<runtime::engine> engine = start();
  std::shared_ptr<runtime::client_core> core =
    runtime::client_core::of_cluster(engine, {}, service.address());
  std::vector<std::byte> bytes = std::vector<std::byte>(100'000);
  std::shared_ptr<runtime::shard_state> job;
  std::binary_semaphore held{0}, end{0};

  fixture() {
    movers().submit(
      1,
      [this](std::uint32_t) {
        held.release();
        end.acquire();
      },
      [] {});
    held.acquire();
    script();
    BOOST_TEST_REQUIRE(done([&](auto f) { core->fetch_directory(std::move(f)); }));
    checkpoint_options o;
    o.model = "m";
    o.timeout = wait_max;
    job =
      runtime::shard_state::make(core, o, {{{"a", dtype::u8, {bytes.size()}}, bytes.data(), {}}})
        .value();
    BOOST_TEST_REQUIRE(done([&](auto f) { job->attach(std::move(f)); }));
  }
  ~fixture() { end.release(); }

  static std::shared_ptr<runtime::engine> start() {
    config::settings s;
    s.client.mover_nice = 1;
    s.client.mover_patience_ms = 24 * 3'600'000;
    s.options.edit<transport::fabric_options>().movers = 1;
    return runtime::engine::start(s, runtime::engine_role::client).value();
  }

  transport::mover_pool& movers() { return *engine->fabric()->movers(); }

  void script() {
    service.on<actors::list_checkpoints_request>(
      [](auto&, auto reply) { reply(actors::checkpoint_list{}); });
    service.on<actors::enroll_request>([](auto&, auto reply) {
      enroll_receipt r;
      r.registration = 1;
      reply(r);
    });
    service.on<actors::leave_request>([](auto&, auto reply) { reply(actors::done_reply{}); });
    auto pulls = [this](auto& request, auto reply) {
      save_receipt r;
      r.model = "m";
      r.step = request.step;
      r.size_bytes = bytes.size();
      movers().submit(
        3, [](std::uint32_t) {}, [reply, r] { reply(r); });
    };
    service.on<actors::save_request>(pulls);
    service.on<actors::durable_request>(pulls);
  }

  template <class Start>
  bool done(Start begin) {
    promise<void> over;
    begin([over](result<void> r) { over.set(std::move(r)); });
    return over.get_future().wait_for(wait_max) && over.get_future().result().has_value();
  }

  // Begins a save. When this returns, its pull has been asked for, and nothing but time moves it.
  pending_save begin_save(std::uint64_t step) {
    auto save = job->save(step, save_mode::direct, {}, {});
    BOOST_TEST(
      testing::eventually([&] { return service.asked<actors::durable_request>() >= step; }));
    BOOST_TEST(!save.staged.ready());
    return save;
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(waiting_trainers, fixture)

BOOST_AUTO_TEST_CASE(a_fence_makes_the_pull_urgent_that_it_waits_for_and_no_later_one) {
  for (std::uint64_t step : {1, 2}) {
    auto save = begin_save(step);
    BOOST_TEST(job->fence().ok());
    BOOST_TEST(save.staged.ready());
  }
  BOOST_TEST(job->close(false).ok());
}

BOOST_AUTO_TEST_CASE(an_asynchronous_fence_does_so_too) {
  for (std::uint64_t step : {1, 2}) {
    auto save = begin_save(step);
    auto fence = job->fence_async();
    BOOST_TEST_REQUIRE(fence.wait_for(wait_max));
    BOOST_TEST(fence.result().has_value());
    BOOST_TEST(save.staged.ready());
  }
  BOOST_TEST(job->close(false).ok());
}

BOOST_AUTO_TEST_CASE(closing_makes_pulls_urgent) {
  auto save = begin_save(1);
  BOOST_TEST(job->close(false).ok());
  BOOST_TEST(save.durable.ready());
}

BOOST_AUTO_TEST_CASE(closing_asynchronously_makes_pulls_urgent) {
  auto save = begin_save(1);
  auto closed = job->close_async(false);
  BOOST_TEST_REQUIRE(closed.wait_for(wait_max));
  BOOST_TEST(closed.result().has_value());
  BOOST_TEST(save.durable.ready());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(engine_end)

// The mover of an answer runs the actor that waits for it, and keeps the fabric meanwhile.
BOOST_AUTO_TEST_CASE(actors_end_after_the_movers_that_run_them) {
  auto engine = runtime::engine::start({}, runtime::engine_role::client).value();
  auto kept = engine->fabric();
  std::binary_semaphore begun{0};
  std::atomic<bool> answered = false;
  kept->movers()->submit(
    1, [](std::uint32_t) {},
    [&] {
      begun.release();
      std::this_thread::sleep_for(100ms);
      answered = true;
    });
  begun.acquire();
  engine.reset();
  BOOST_TEST(answered.load());
}

BOOST_AUTO_TEST_SUITE_END()
