// The world of one seed: actors under virtual time, a fabric above a faulty driver, peers that die.
// Tests send all requests through it, and it checks their deadlines.
#pragma once

#include "actor_fixture.hpp"
#include "fake_channel.hpp"
#include "faulty_driver.hpp"
#include "seeds.hpp"

#include <millrace/transport/fabric.hpp>

#include <caf/actor.hpp>
#include <caf/event_based_actor.hpp>

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace millrace::testing {

/// Checks that an error is a legal outcome of a request that a fault met. Any other error is a
/// defect.
void demand_excuse(const status& why, const std::string& what);

/// Returns the bytes of a whole model, as `fill` makes them.
std::vector<std::byte> content(const layout& tensors, std::uint64_t seed);

/// Returns one to four tensors. A large one has several digest blocks.
layout few_tensors(dice& random);

/// Memory of a simulated peer, exposed under the peer's identity until it is withdrawn.
class peer_memory {
public:
  peer_memory(const peer_id& owner, std::vector<std::byte> bytes, access_mode how);

  bulk_handle handle() const;
  std::vector<std::byte>& bytes() noexcept { return *bytes_; }
  /// Ends the exposure, as the owner's death or its own withdrawal does: every later access is
  /// refused, and the bytes are freed.
  void withdraw();

private:
  peer_id owner_;
  std::unique_ptr<std::vector<std::byte>> bytes_;
  transport::region region_;
};

/// The next action of a session.
struct session_step {
  std::function<void(caf::event_based_actor*)> run;
};

class fault_world {
public:
  explicit fault_world(std::uint64_t seed);
  ~fault_world();
  fault_world(const fault_world&) = delete;
  fault_world& operator=(const fault_world&) = delete;

  dice random;
  std::uint64_t ids = 0;
  deterministic_config config;
  caf::actor_system system{config};
  std::shared_ptr<faulty_driver> driver;
  /// In half of the worlds: a driver without faults that takes over the transfers that the first
  /// one fails. Null in the others.
  std::shared_ptr<faulty_driver> second;
  std::shared_ptr<transport::fabric> fabric;
  /// Makes something else happen; returns false if there is nothing. May be empty.
  std::function<bool()> other;

  time_point now() { return system.clock().now(); }
  peer_id new_peer();
  /// Ends a peer's process and its channel.
  void lose(const peer_id& peer);

  /// Checks that no transfer is left and that each was counted once.
  void demand_drivers_rest() const;
  /// Returns how many failed transfers the second driver took over.
  std::uint64_t fallbacks() const { return counts().fallbacks; }

  /// Sends a request as `self`. `then` gets the answer, which must come within `timeout_ms` and a
  /// little.
  template <class Reply, class Handle, class Request>
  void ask(
    caf::event_based_actor* self, const Handle& whom, Request request, std::string what,
    std::uint32_t timeout_ms, std::function<void(result<Reply>)> then) {
    auto one = std::make_shared<question>();
    one->what = std::move(what);
    one->asker = self->address();
    one->deadline = now() + std::chrono::milliseconds{timeout_ms} + tolerance;
    open_.push_back(one);
    self->request(whom, caf::infinite, std::move(request))
      .then(
        [this, one, then](Reply& reply) { answered(one, [&] { then(std::move(reply)); }); },
        [this, one, then](caf::error& e) {
          answered(one, [&] { then(fail(actors::to_status(e))); });
        });
  }

  /// Makes a session, which sends requests and gets answers in their order.
  caf::actor new_session();
  /// Runs `f` in a session, after the functions that were given to it before.
  void in(const caf::actor& session, std::function<void(caf::event_based_actor*)> f);
  /// Ends a session, after the functions that were given to it before. It gets no more answers.
  void end(const caf::actor& session, const status& why);
  /// Runs `f` in a session of its own.
  void be(std::function<void(caf::event_based_actor*)> f) { in(new_session(), std::move(f)); }

  /// Lets one thing happen: an actor handles a message, a transfer ends, or time passes.
  void happen();
  /// Lets everything happen until every request is answered.
  void settle();
  /// Ends what a driver no longer has to report, and lets the consequences happen.
  void finish();

  /// Ends everything and ignores the outcomes. Even after a broken promise, nothing of this seed
  /// may affect the next one. Call it while the objects that `other` uses still exist.
  void close();

private:
  struct question {
    std::string what;
    caf::actor_addr asker;
    time_point deadline;
  };
  // Actors check their deadlines four times a second.
  static constexpr std::chrono::milliseconds tolerance{600};

  // The counts of the fabric.
  struct path_counts {
    std::uint64_t ended = 0;
    std::uint64_t fallbacks = 0;
  };
  path_counts counts() const;

  void answered(const std::shared_ptr<question>& one, const std::function<void()>& then);
  void work_off();
  bool work_one();
  bool other_one() { return other && other(); }
  void pass(std::chrono::milliseconds time);

  caf::scheduler::test_coordinator& sched_;
  std::map<peer_id, std::shared_ptr<fake_channel>> channels_;
  path_counts of_lost_; // the counts of lost peers, whose rows are gone
  std::list<std::shared_ptr<question>> open_;
  std::exception_ptr broken_; // CAF must not see it
  bool over_ = false;         // answers are ignored
};

} // namespace millrace::testing

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(millrace::testing::session_step)
