// Runs trainers that register, save, die and come back over a driver that misbehaves, with an
// oracle outside.
#include <millrace/actors/checkpoint/checkpoint_manager.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/fake_checkpoint_store.hpp>
#include <millrace/tests/support/fault_world.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/transport/copy/copy.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;

namespace {

constexpr std::uint32_t blocks_max = 3;

// A job that trains one model. Another one takes its place when it is lost.
struct trainer {
  asker who;
  caf::actor session;
  std::shared_ptr<peer_memory> memory;
  std::uint64_t registration = 0; // 0: none
  bool registering = false;
  bool frozen = false; // a save may still read the memory
  bool gone = false;   // lost, or over
};
using trainer_ptr = std::shared_ptr<trainer>;

// What is known of a model from outside.
struct known_model {
  std::string name;
  layout tensors;
  trainer_ptr job;
  std::uint64_t last_step = 0; // asked for
  std::uint64_t durable = 0;   // the newest that was promised

  std::uint64_t seed_of(std::uint64_t step) const { return step * 31 + name.back(); }
};

// Over all seeds: what succeeded in spite of everything, and which faults were met.
struct {
  std::uint64_t saves = 0, resumed = 0, restores = 0, refusals = 0;
  std::uint64_t fallbacks = 0;
  fault_counts faults{};
} tally;

class checkpoint_run {
public:
  explicit checkpoint_run(std::uint64_t seed) : world_(seed), dice_(world_.random.next()) {
    set_store_up();
    checkpoint_manager_deps deps;
    deps.name = "pool";
    deps.store = store_;
    deps.fabric = world_.fabric;
    deps.snapshots = {blocks_, digest_block_bytes};
    deps.limits.saves_queued_max = static_cast<std::uint32_t>(dice_.between(1, 3));
    deps.limits.loads_max = static_cast<std::uint32_t>(dice_.between(1, 3));
    deps.limits.windows_max = static_cast<std::uint32_t>(dice_.between(1, 4));
    manager_ = spawn_checkpoint_manager(world_.system, deps);
    for (auto* name : {"m", "n"})
      models_.push_back({name, few_tensors(dice_), new_trainer()});
  }

  ~checkpoint_run() {
    end_provider();
    world_.close();
  }

  void run() {
    for (auto left = dice_.between(10, 22); left > 0; --left) {
      act(dice_.one_of(models_));
      for (auto pause = dice_.below(12); pause > 0; --pause)
        world_.happen();
    }
    // Sometimes the provider ends in the middle: everybody hears of it.
    if ((ended_ = dice_.percent(15)))
      end_provider();
    world_.settle();
    for (auto& m : models_)
      dice_.percent(50) ? leave(m) : lose(m);
    world_.finish();
    for (auto& m : models_)
      check_versions(m);
    check_leaks();
    world_.driver->add_counts(tally.faults);
    tally.fallbacks += world_.fallbacks();
  }

private:
  void end_provider() { caf::anon_send_exit(manager_, caf::exit_reason::kill); }

  void set_store_up() {
    store_->can.cpu_flush = transport::can_write_back() && dice_.percent(50);
    store_->window_per_tensor = dice_.percent(50);
    store_->hold_enroll = dice_.percent(30);
    store_->hold_begin = dice_.percent(30);
    store_->hold_publish = dice_.percent(30);
    world_.other = [this] {
      if (store_->held.empty())
        return false;
      store_->release();
      return true;
    };
  }

  trainer_ptr new_trainer() {
    auto t = std::make_shared<trainer>();
    t->who = {world_.new_peer(), world_.ids};
    t->session = world_.new_session();
    return t;
  }

  std::uint32_t timeout() { return static_cast<std::uint32_t>(dice_.between(100, 2000)); }

  void act(known_model& m) {
    auto what = dice_.below(100);
    if (m.job->registration == 0 && what < 60)
      enroll(m);
    else if (what < 60)
      save(m);
    else if (what < 85)
      restore(m);
    else if (what < 93)
      lose(m);
    else if (m.job->registration != 0)
      leave(m);
  }

  void enroll(known_model& m) {
    auto job = m.job;
    if (std::exchange(job->registering, true))
      return;
    job->memory = std::make_shared<peer_memory>(
      job->who.peer, std::vector<std::byte>(size_bytes(m.tensors)), access_mode::read);
    enroll_request r;
    r.shard.model = m.name;
    r.shard.tensors = m.tensors;
    r.shard.keep = static_cast<std::uint32_t>(dice_.between(2, 3));
    r.source = job->memory->handle();
    r.busy = dice_.percent(80) ? when_saving::wait : when_saving::refuse;
    r.timeout_ms = timeout();
    r.from = job->who;
    auto heard = [&m, job](result<enroll_receipt> receipt) {
      job->registering = false;
      if (!receipt) {
        job->memory->withdraw();
        return demand_excuse(receipt.error(), "registering " + m.name);
      }
      tally.resumed += receipt->resumed ? 1 : 0;
      check_promise(receipt->model, m);
      if (!job->gone)
        job->registration = receipt->registration;
    };
    ask<enroll_receipt>(job->session, std::move(r), "registering " + m.name, heard);
  }

  // Checks that a new registration is told of what was promised.
  static void check_promise(const checkpoint_summary& found, const known_model& m) {
    auto& complete = found.complete_steps;
    demand(
      m.durable == 0 || (!complete.empty() && complete.back() >= m.durable),
      "a new registration of " + m.name + " finds its newest step");
  }

  void save(known_model& m) {
    auto job = m.job;
    if (std::exchange(job->frozen, true))
      return;
    auto step = ++m.last_step;
    // The bytes change in place, because the region knows the address.
    std::ranges::copy(content(m.tensors, m.seed_of(step)), job->memory->bytes().begin());
    save_request r;
    r.registration = job->registration;
    r.step = step;
    r.snapshot = dice_.percent(50);
    r.timeout_ms = timeout();
    r.from = job->who;
    durable_request d{r.registration, step, r.timeout_ms, job->who};
    auto what = "saving step " + std::to_string(step) + " of " + m.name;
    auto staged = [job, what](result<save_receipt> receipt) {
      job->frozen = false;
      // The trainer goes on: what is saved must be out of its memory, or fail.
      if (!job->gone)
        std::ranges::fill(job->memory->bytes(), std::byte{0xee});
      if (!receipt)
        excuse_save(receipt.error(), what);
    };
    auto durable = [&m, step, what](result<save_receipt> receipt) {
      ++(receipt ? tally.saves : tally.refusals);
      if (!receipt)
        return excuse_save(receipt.error(), what);
      demand(receipt->step == step && receipt->complete, what + " is answered as what it was");
      m.durable = std::max(m.durable, step);
    };
    world_.in(job->session, [this, r, d, what, staged, durable](auto* self) {
      world_.ask<save_receipt>(self, manager_, r, what, r.timeout_ms, staged);
      world_.ask<save_receipt>(self, manager_, d, what + " (durable)", r.timeout_ms, durable);
    });
  }

  static void excuse_save(const status& why, const std::string& what) {
    // Its registration ended meanwhile.
    if (why.code() != errc::not_found && why.code() != errc::cancelled)
      demand_excuse(why, what);
  }

  void restore(known_model& m) {
    auto reader = world_.new_peer();
    auto memory = std::make_shared<peer_memory>(
      reader, std::vector<std::byte>(size_bytes(m.tensors)), access_mode::write);
    restore_request r;
    r.model = m.name;
    r.latest = m.last_step == 0 || dice_.percent(70);
    r.step = r.latest ? 0 : dice_.between(1, m.last_step);
    for (auto& t : m.tensors.tensors)
      r.selections.push_back({t, false, 0});
    r.target = memory->handle();
    r.timeout_ms = timeout();
    auto promised = r.latest ? m.durable : 0;
    auto heard = [&m, memory, promised, step = r.step](result<load_reply> receipt) {
      auto bytes = memory->bytes();
      memory->withdraw();
      if (!receipt)
        return receipt.error().code() == errc::not_found
          ? demand(promised == 0, "the newest step of " + m.name + " is there")
          : demand_excuse(receipt.error(), "restoring " + m.name);
      ++tally.restores;
      demand(receipt->version >= promised, "a restore of " + m.name + " brings the newest step");
      demand(step == 0 || receipt->version == step, "a restore brings the step asked for");
      demand(receipt->verified, "a restore is verified");
      demand(
        bytes == content(m.tensors, m.seed_of(receipt->version)),
        "a restore of " + m.name + " has the bytes that were saved");
    };
    ask<load_reply>(world_.new_session(), std::move(r), "restoring " + m.name, heard);
    if (dice_.percent(10))
      world_.lose(reader);
  }

  // The process ends: its memory goes, and so do its session and its transfers; in any order.
  void lose(known_model& m) {
    auto job = std::exchange(m.job, new_trainer());
    end(*job);
    // The session ends after whatever the trainer asked for.
    auto gone = [this, job] { world_.end(job->session, {errc::peer_lost, "the trainer is gone"}); };
    bool session_first = dice_.percent(50);
    if (session_first)
      gone();
    world_.lose(job->who.peer);
    if (!session_first)
      gone();
  }

  void end(trainer& job) {
    job.gone = true;
    if (job.memory)
      job.memory->withdraw();
  }

  void leave(known_model& m) {
    auto job = m.job;
    if (job->registration == 0 || job->frozen)
      return lose(m);
    m.job = new_trainer();
    job->gone = true;
    leave_request r{job->registration, dice_.percent(50), job->who};
    auto heard = [this, job, name = m.name](result<done_reply> reply) {
      job->memory->withdraw();
      demand(reply || ended_, "leaving " + name + ": " + why(reply));
    };
    world_.in(job->session, [this, r, heard](auto* self) {
      world_.ask<done_reply>(self, manager_, r, "leaving", 1000, heard);
    });
  }

  template <class Reply, class Request, class Heard>
  void ask(const caf::actor& session, Request r, std::string what, Heard heard) {
    world_.in(
      session,
      [this, r = std::move(r), what = std::move(what),
       heard = std::move(heard)](auto* self) mutable {
        auto timeout_ms = r.timeout_ms;
        world_.ask<Reply>(self, manager_, std::move(r), what, timeout_ms, heard);
      });
  }

  // Whatever is done is whole, whether its trainer heard of it or not; and the newest one was not
  // lost.
  void check_versions(const known_model& m) {
    std::uint64_t newest = 0;
    for (auto& [key, shard] : store_->shards) {
      if (key.first != m.name)
        continue;
      // A registration that was under way when its provider ended ends with the store.
      demand(ended_ || !shard.registered, m.name + " is not registered any more");
      for (auto& slot : shard.slots) {
        demand(slot->state.state != slot_state::active, "no slot of " + m.name + " stays active");
        demand(slot->in_use.expired(), "no slot of " + m.name + " stays in use");
        if (slot->state.state != slot_state::done)
          continue;
        auto step = slot->state.step;
        auto seed = m.seed_of(step);
        auto label = "step " + std::to_string(step) + " of " + m.name;
        demand(slot->bytes == content(m.tensors, seed), label + " is whole");
        demand(slot->digests == digests_of(m.tensors, seed), label + " verifies");
        newest = std::max(newest, step);
      }
    }
    demand(newest >= m.durable, "the newest step of " + m.name + " is kept");
  }

  void check_provider() {
    std::optional<provider_status> status;
    world_.be([&](auto* self) {
      world_.ask<provider_status>(
        self, manager_, provider_status_request{}, "status", 1000,
        [&](result<provider_status> s) { status = s.value(); });
    });
    world_.settle();
    demand(status->checkpoints.registered == 0, "no registration is left");
    auto& saves = status->checkpoints;
    demand(saves.saves_in_flight == 0 && saves.saves_queued == 0, "no save is left");
    demand(status->in_flight == 0 && status->queued == 0, "no restore is left");
  }

  void check_leaks() {
    if (!ended_)
      check_provider();
    demand(transport::exposed_regions() == 0, "no region stays exposed");
    world_.demand_drivers_rest();
    std::vector<memory_block> blocks;
    for (std::uint32_t i = 0; i < blocks_count_; ++i)
      blocks_->ask(
        {}, digest_block_bytes, [&](result<memory_block> b) { blocks.push_back(std::move(*b)); });
    demand(blocks.size() == blocks_count_, "no staging block stays lent");
  }

  fault_world world_;
  dice dice_;
  bool ended_ = false; // the provider
  std::shared_ptr<fake_checkpoint_store> store_ = std::make_shared<fake_checkpoint_store>();
  std::uint32_t blocks_count_ = static_cast<std::uint32_t>(dice_.between(1, blocks_max));
  std::shared_ptr<staging_lender> blocks_ = std::make_shared<staging_lender>(
    std::make_shared<heap_memory_source>(blocks_count_ * digest_block_bytes));
  local_checkpoint_manager manager_;
  std::vector<known_model> models_;
};

} // namespace

BOOST_AUTO_TEST_SUITE(faults)

BOOST_AUTO_TEST_CASE(checkpoints) {
  run_seeds(10'000, [](std::uint64_t seed) { checkpoint_run{seed}.run(); });
  BOOST_TEST_MESSAGE(
    tally.saves << " saves and " << tally.restores << " restores succeeded, " << tally.resumed
                << " registrations went on, " << tally.refusals << " saves failed");
  if (is_single_seed())
    return;
  BOOST_TEST(tally.saves > tally.refusals / 4);
  BOOST_TEST(tally.restores > 0u);
  BOOST_TEST(tally.resumed > 0u);
  BOOST_TEST(tally.fallbacks > 0u);
  for (auto n : tally.faults)
    BOOST_TEST(n > 0u);
}

BOOST_AUTO_TEST_SUITE_END()
