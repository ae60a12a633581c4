// Runs stores, loads and removals of several clients over a driver that misbehaves, with an oracle
// outside.
#include <millrace/actors/store/tensor_store.hpp>
#include <millrace/storage/memory/memory_bucket.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/fault_world.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/staged_bucket.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;

namespace {

constexpr std::uint64_t capacity_bytes = 4 << 20;

struct client {
  peer_id id;
  bool lost = false;
};
using client_ptr = std::shared_ptr<client>;

// What is known of a name from outside.
struct known_model {
  std::string name;
  layout tensors;
  std::map<std::uint64_t, std::uint64_t> stored; // version → content, as receipts said
  std::uint64_t floor = 0;                       // loads asked for now find this or a newer one
  std::uint64_t erasing = 0;                     // removals under way
  std::uint64_t erased = 0;                      // removals asked for
};

// A load that succeeded: compared when all receipts are known.
struct loaded {
  known_model* model;
  std::uint64_t version;
  std::uint64_t at, length; // of the model's bytes
  std::vector<std::byte> bytes;
};

// Over all seeds: what succeeded in spite of everything, and which faults were met.
struct {
  std::uint64_t stores = 0, loads = 0, refusals = 0;
  std::uint64_t fallbacks = 0;
  fault_counts faults{};
} tally;

class repository_run {
public:
  explicit repository_run(std::uint64_t seed) : world_(seed), dice_(world_.random.next()) {
    tensor_store_deps deps{"p", "default", bucket_, world_.fabric, {}};
    deps.limits.stores_max = static_cast<std::uint32_t>(dice_.between(1, 4));
    deps.limits.loads_max = static_cast<std::uint32_t>(dice_.between(1, 4));
    deps.limits.queued_max = static_cast<std::uint32_t>(dice_.between(1, 8));
    if (dice_.percent(50)) {
      deps.bucket = std::make_shared<staged_bucket>(bucket_, 4096);
      deps.staging = std::make_shared<staging_lender>(
        std::make_shared<heap_memory_source>(4096 * dice_.between(1, 4)));
    }
    if (dice_.percent(50))
      deps.limits.progress_timeout_ms = static_cast<std::uint32_t>(dice_.between(50, 1000));
    store_ = spawn_tensor_store(world_.system, deps);
    for (auto* name : {"a", "b", "c"})
      models_.push_back({name, few_tensors(dice_), {}});
    for (int i = 0; i < 3; ++i)
      clients_.push_back(std::make_shared<client>(client{world_.new_peer()}));
  }

  ~repository_run() {
    end_provider();
    world_.close();
  }

  void run() {
    for (auto& m : models_)
      store(m, dice_.one_of(clients_));
    for (auto left = dice_.between(6, 14); left > 0; --left) {
      act();
      for (auto pause = dice_.below(12); pause > 0; --pause)
        world_.happen();
    }
    // Sometimes the provider ends in the middle: everybody hears of it.
    if ((ended_ = dice_.percent(15)))
      end_provider();
    world_.settle();
    check_loads();
    world_.finish();
    check_models();
    check_leaks();
    world_.driver->add_counts(tally.faults);
    tally.fallbacks += world_.fallbacks();
  }

private:
  void end_provider() { caf::anon_send_exit(store_, caf::exit_reason::kill); }

  void act() {
    auto what = dice_.below(100);
    if (what < 45)
      store(dice_.one_of(models_), dice_.one_of(clients_));
    else if (what < 80)
      load(dice_.one_of(models_), dice_.one_of(clients_));
    else if (what < 92)
      erase(dice_.one_of(models_));
    else
      lose(dice_.one_of(clients_));
  }

  std::uint32_t timeout() { return static_cast<std::uint32_t>(dice_.between(100, 2000)); }

  void store(known_model& m, const client_ptr& who) {
    auto seed = ++contents_;
    auto bytes = content(m.tensors, seed);
    store_request r;
    r.spec.name = m.name;
    r.spec.tensors = m.tensors;
    r.checksums = dice_.percent(80);
    r.timeout_ms = timeout();
    r.from = {who->id, 1, {"user 1", who->id, false}};
    std::shared_ptr<peer_memory> memory;
    if (bytes.size() <= 4096 && dice_.percent(50)) {
      auto* first = reinterpret_cast<std::uint8_t*>(bytes.data());
      r.eager.assign(first, first + bytes.size());
    } else {
      memory = std::make_shared<peer_memory>(who->id, std::move(bytes), access_mode::read);
      r.source = memory->handle();
    }
    auto erased = m.erasing == 0 ? std::optional{m.erased} : std::nullopt;
    auto heard = [&m, memory, seed, erased](result<store_receipt> receipt) {
      // The client has its answer: its memory is its own again.
      if (memory)
        memory->withdraw();
      ++(receipt ? tally.stores : tally.refusals);
      if (!receipt)
        return demand_excuse(receipt.error(), "storing " + m.name);
      demand(m.stored.emplace(receipt->version, seed).second, "a version is used once");
      // Answers overtake each other: what overlapped with a removal may be gone.
      if (erased == m.erased)
        m.floor = std::max(m.floor, receipt->version);
    };
    ask<store_receipt>(std::move(r), "storing " + m.name, heard);
  }

  void load(known_model& m, const client_ptr& who) {
    load_request r;
    r.model = m.name;
    r.timeout_ms = timeout();
    r.from = {who->id, 1, {"user 1", who->id, false}};
    loaded found{&m, 0, 0, size_bytes(m.tensors), {}};
    if (dice_.percent(60)) {
      for (auto& t : m.tensors.tensors)
        r.selections.push_back({t, false, 0});
    } else {
      // Some rows of the first tensor.
      auto t = m.tensors.tensors[0];
      found.at = dice_.below(t.shape[0]);
      found.length = t.shape[0] = dice_.between(1, t.shape[0] - found.at);
      r.selections.push_back({t, true, found.at});
    }
    std::shared_ptr<peer_memory> memory;
    if (found.length > 4096 || dice_.percent(50)) {
      memory = std::make_shared<peer_memory>(
        who->id, std::vector<std::byte>(found.length), access_mode::write);
      r.target = memory->handle();
    }
    auto floor = m.floor;
    auto erased = m.erased;
    auto heard = [this, &m, memory, floor, erased,
                  found = std::move(found)](result<load_reply> receipt) mutable {
      auto bytes = memory ? memory->bytes() : std::vector<std::byte>{};
      if (memory)
        memory->withdraw();
      ++(receipt ? tally.loads : tally.refusals);
      if (!receipt)
        return check_refusal(receipt.error(), m, floor, erased);
      demand(receipt->version >= floor, "a load of " + m.name + " finds what was stored before it");
      auto* first = reinterpret_cast<const std::byte*>(receipt->eager.data());
      found.bytes =
        memory ? std::move(bytes) : std::vector<std::byte>(first, first + receipt->eager.size());
      found.version = receipt->version;
      loads_.push_back(std::move(found));
    };
    ask<load_reply>(std::move(r), "loading " + m.name, std::move(heard));
  }

  void check_refusal(
    const status& why, const known_model& m, std::uint64_t floor, std::uint64_t erased) {
    if (why.code() != errc::not_found)
      return demand_excuse(why, "loading " + m.name);
    demand(floor == 0 || m.erased != erased, m.name + " was there and no client removed it");
  }

  void erase(known_model& m) {
    ++m.erased;
    ++m.erasing;
    m.floor = 0;
    auto heard = [this, &m](result<done_reply> reply) {
      --m.erasing;
      m.floor = 0;
      if (ended_)
        return;
      demand(
        reply || reply.error().code() == errc::not_found,
        "a removal succeeds or finds nothing: " + why(reply));
    };
    world_.be([this, &m, heard](auto* self) {
      world_.ask<done_reply>(
        self, store_, erase_request{m.name}, "removing " + m.name, 1000, heard);
    });
  }

  // Its process ends and another one takes its place.
  void lose(client_ptr& c) {
    world_.lose(c->id);
    c = std::make_shared<client>(client{world_.new_peer()});
  }

  template <class Reply, class Request, class Heard>
  void ask(Request r, std::string what, Heard heard) {
    world_.be([this, r = std::move(r), what = std::move(what),
               heard = std::move(heard)](auto* self) mutable {
      auto timeout_ms = r.timeout_ms;
      world_.ask<Reply>(self, store_, std::move(r), what, timeout_ms, heard);
    });
  }

  void check_loads() {
    for (auto& l : loads_) {
      auto stored = l.model->stored.find(l.version);
      demand(
        stored != l.model->stored.end(),
        "a load of " + l.model->name + " found version " + std::to_string(l.version) +
          ", which no store reported");
      auto all = content(l.model->tensors, stored->second);
      demand(
        l.bytes.size() == l.length &&
          std::equal(
            l.bytes.begin(), l.bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(l.at)),
        "a load of " + l.model->name + " has the bytes that were stored");
    }
  }

  // Checks that what is visible in the end is whole, and the newest that was promised.
  void check_models() {
    for (auto& m : models_) {
      auto opened = open(*bucket_, m.name);
      if (!opened) {
        demand(m.floor == 0, m.name + " is gone and no client removed it");
        continue;
      }
      auto version = (*opened)->record().version;
      demand(version >= m.floor, m.name + " is not older than promised");
      auto stored = m.stored.find(version);
      demand(stored != m.stored.end(), m.name + " is visible only when its store said so");
      auto bad = check_ranges(**opened, everything(m.tensors), stored->second);
      demand(bad.ok(), m.name + " is whole: " + bad.to_string());
      auto& digests = (*opened)->record().digests;
      demand(
        digests.empty() || digests == digests_of(m.tensors, stored->second),
        m.name + " has the checksums of its bytes");
    }
  }

  void check_provider() {
    std::optional<provider_status> status;
    world_.be([&](auto* self) {
      world_.ask<provider_status>(
        self, store_, provider_status_request{}, "status", 1000,
        [&](result<provider_status> s) { status = s.value(); });
    });
    world_.settle();
    demand(status->in_flight == 0 && status->queued == 0, "no operation is left in the provider");
  }

  void check_leaks() {
    if (!ended_)
      check_provider();
    demand(transport::exposed_regions() == 0, "no region stays exposed");
    world_.demand_drivers_rest();
    for (auto& m : models_)
      std::ignore = testing::erase(*bucket_, m.name);
    demand(bucket_->stats().used_bytes == 0, "no room stays reserved");
    demand(memory_->used_bytes() == 0, "no memory stays lent");
    auto closed = bucket_->close(0);
    demand(closed.ok(), closed.to_string());
  }

  fault_world world_;
  dice dice_;
  bool ended_ = false; // the provider
  std::shared_ptr<heap_memory_source> memory_ =
    std::make_shared<heap_memory_source>(capacity_bytes);
  std::shared_ptr<storage::bucket> bucket_ =
    storage::open_memory_bucket({capacity_bytes}, memory_).value();
  tensor_store_actor store_;
  std::vector<known_model> models_;
  std::vector<client_ptr> clients_;
  std::vector<loaded> loads_;
  std::uint64_t contents_ = 0;
};

} // namespace

BOOST_AUTO_TEST_SUITE(faults)

BOOST_AUTO_TEST_CASE(repository) {
  run_seeds(10'000, [](std::uint64_t seed) { repository_run{seed}.run(); });
  BOOST_TEST_MESSAGE(
    tally.stores << " stores and " << tally.loads << " loads succeeded, " << tally.refusals
                 << " did not");
  if (is_single_seed())
    return;
  BOOST_TEST(tally.stores > tally.refusals / 4);
  BOOST_TEST(tally.loads > tally.refusals / 10);
  BOOST_TEST(tally.fallbacks > 0u);
  for (auto n : tally.faults)
    BOOST_TEST(n > 0u);
}

BOOST_AUTO_TEST_SUITE_END()
