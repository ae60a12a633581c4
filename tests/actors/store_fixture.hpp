// Runs one tensor store with a fake fabric and a virtual clock. Used by the tests of the actor and
// of the views that it keeps.
#pragma once

#include <millrace/actors/store/tensor_store.hpp>
#include <millrace/storage/memory/memory_bucket.hpp>
#include <millrace/tests/support/actor_fixture.hpp>
#include <millrace/tests/support/fake_fabric.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/staged_bucket.hpp>

namespace millrace::testing {

struct store_fixture : actor_fixture {
  static constexpr std::uint64_t capacity = 1 << 20;

  std::shared_ptr<fake_fabric> fabric = std::make_shared<fake_fabric>();
  actors::operation_limits limits{{.stores_max = 2, .loads_max = 2, .queued_max = 1}};
  std::shared_ptr<actors::staging_lender> staging; // null: windows need none
  std::shared_ptr<storage::bucket> bucket =
    storage::open_memory_bucket({capacity}, std::make_shared<heap_memory_source>(capacity)).value();
  actors::tensor_store_actor store;

  store_fixture() { restart(); }

  /// An actor of the bucket as it is now.
  void restart() {
    stop();
    actors::tensor_store_deps deps{"p", "default", bucket, fabric, limits, staging};
    if (staging && bucket->capabilities().in_place)
      deps.bucket = std::make_shared<staged_bucket>(bucket, 4096);
    store = actors::spawn_tensor_store(system, deps);
    sched.run();
  }

  void stop() {
    if (store)
      caf::anon_send_exit(store, caf::exit_reason::kill);
    sched.run();
  }

  ~store_fixture() {
    stop();
    while (!fabric->waiting.empty())
      fabric->fail_oldest({errc::cancelled, "end of test"});
    sched.run();
  }

  static actors::store_request request(const std::string& name, std::uint64_t bytes = 10'000) {
    actors::store_request r;
    r.spec.name = name;
    r.spec.tensors.tensors = {{"t", dtype::u8, {bytes}}};
    r.source.length_bytes = bytes;
    r.checksums = false;
    r.timeout_ms = 1000;
    return r;
  }

  actors::store_request request_of(const actors::asker& who, const std::string& name) {
    auto r = request(name);
    r.from = who;
    return r;
  }

  /// A load of all that `request` stores.
  static actors::load_request load_of(const std::string& name, std::uint64_t bytes = 10'000) {
    actors::load_request l;
    l.model = name;
    l.selections = {{{"t", dtype::u8, {bytes}}, false, 0}};
    l.target.length_bytes = bytes;
    return l;
  }

  template <class Request>
  auto ask(Request r) {
    return actor_fixture::ask(store, std::move(r));
  }

  bool visible(const std::string& name) {
    auto pending = ask(actors::describe_request{name, 0});
    return outcome<model_record>(pending).has_value();
  }
};

} // namespace millrace::testing
