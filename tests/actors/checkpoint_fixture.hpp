// A checkpoint manager with a fake store and a fake fabric: bytes move when the test says so.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_manager.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/tests/support/actor_fixture.hpp>
#include <millrace/tests/support/fake_checkpoint_store.hpp>
#include <millrace/tests/support/fake_fabric.hpp>
#include <millrace/transport/copy/mover_pool.hpp>

#include <boost/test/unit_test.hpp>

#include <map>
#include <memory>

namespace millrace::testing {

class checkpoint_fabric : public fake_fabric {
public:
  const std::shared_ptr<transport::mover_pool>& movers() const noexcept override { return movers_; }

  /// Ends the oldest transfer; a read brings `fill` and its digests.
  void deliver(std::byte fill = std::byte{7}) {
    std::vector<std::uint64_t> digests;
    for (auto& op : waiting.front().what.ops) {
      std::vector<std::byte> bytes(op.length, fill);
      if (waiting.front().what.dir == transport::direction::write)
        std::memcpy(bytes.data(), op.local, op.length);
      for (std::uint64_t at = 0; at < op.length; at += digest_block_bytes)
        digests.push_back(digest(bytes.data() + at, std::min(digest_block_bytes, op.length - at)));
    }
    finish(fill, std::move(digests));
  }

private:
  std::shared_ptr<transport::mover_pool> movers_ = std::make_shared<transport::mover_pool>(1);
};

struct checkpoint_fixture : actor_fixture {
  static constexpr std::uint64_t block_bytes = 512 << 10;

  std::shared_ptr<checkpoint_fabric> fabric = std::make_shared<checkpoint_fabric>();
  std::shared_ptr<fake_checkpoint_store> store = std::make_shared<fake_checkpoint_store>();
  std::shared_ptr<heap_memory_source> memory =
    std::make_shared<heap_memory_source>(4 * block_bytes);
  actors::checkpoint_manager_deps deps;
  actors::local_checkpoint_manager manager;
  actors::asker trainer = process_of("user 1");
  std::map<actors::asker, std::unique_ptr<caf::scoped_actor>> connections;

  checkpoint_fixture() {
    deps.name = "pool";
    deps.store = store;
    deps.fabric = fabric;
    // One process gets two of them.
    deps.snapshots = {std::make_shared<actors::staging_lender>(memory), block_bytes};
    deps.limits.saves_queued_max = 1;
    restart();
  }

  using actor_fixture::ask;
  /// A registration ends with the actor that asked for it, so each connection has one.
  template <class Handle>
  auto ask(const Handle& whom, actors::enroll_request r) {
    auto& connection = connections[r.from];
    if (!connection)
      connection = std::make_unique<caf::scoped_actor>(system);
    auto pending = (*connection)->request(whom, caf::infinite, std::move(r));
    sched.run();
    return pending;
  }

  ~checkpoint_fixture() {
    stop();
    while (!fabric->waiting.empty())
      fabric->fail_oldest({errc::cancelled, "end of test"});
    while (!fabric->copying.empty())
      fabric->fail_oldest_copy({errc::cancelled, "end of test"});
    store->held.clear();
    sched.run();
  }

  void stop() {
    if (manager)
      caf::anon_send_exit(manager, caf::exit_reason::kill);
    sched.run();
  }

  /// A manager of `deps` as they are now.
  void restart() {
    stop();
    manager = actors::spawn_checkpoint_manager(system, deps);
    sched.run();
  }

  actors::enroll_request enrolling(
    const std::string& model = "m", std::vector<std::uint64_t> tensors = {10'000, 300'000}) {
    actors::enroll_request r;
    r.shard.model = model;
    std::uint64_t bytes = 0;
    for (auto size : tensors) {
      r.shard.tensors.tensors.push_back(
        {"t" + std::to_string(r.shard.tensors.tensors.size()), dtype::u8, {size}});
      bytes += size;
    }
    if (bytes > 0)
      r.source.length_bytes = bytes;
    r.timeout_ms = 1000;
    r.from = trainer;
    return r;
  }

  /// Registers; the number.
  std::uint64_t enroll(actors::enroll_request r) {
    auto pending = ask(manager, std::move(r));
    auto receipt = outcome<enroll_receipt>(pending);
    BOOST_TEST_REQUIRE(receipt.has_value());
    return receipt->registration;
  }

  actors::save_request saving(std::uint64_t registration, std::uint64_t step) {
    actors::save_request r;
    r.registration = registration;
    r.step = step;
    r.timeout_ms = 1000;
    r.from = trainer;
    return r;
  }

  actors::durable_request durable(std::uint64_t registration, std::uint64_t step) {
    return {registration, step, 1000, trainer};
  }

  /// Opens a version of rank 0 of "m". A reader has it until the pointer is dropped.
  std::shared_ptr<storage::opened_model> read(std::uint64_t step) {
    std::shared_ptr<storage::opened_model> opened;
    store->open("m", 0, {step}, [&](auto found) { opened = std::move(*found); });
    return opened;
  }

  checkpoint_status status() {
    auto pending = ask(manager, actors::provider_status_request{});
    return outcome<provider_status>(pending).value().checkpoints;
  }

  /// A whole save, as a trainer does it.
  void save(std::uint64_t registration, std::uint64_t step, std::byte fill = std::byte{7}) {
    auto staged = ask(manager, saving(registration, step));
    fabric->deliver(fill);
    sched.run();
    BOOST_TEST_REQUIRE(outcome<save_receipt>(staged).has_value());
    auto done = ask(manager, durable(registration, step));
    BOOST_TEST_REQUIRE(outcome<save_receipt>(done).has_value());
  }
};

} // namespace millrace::testing
