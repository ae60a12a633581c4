// Two peers of a server of the node's data memory, and a mover that takes memory back.
#pragma once

#include <millrace/actors/loader/data_server.hpp>
#include <millrace/tests/support/heap_data_memory.hpp>
#include <millrace/tests/support/wire_fixture.hpp>

#include <cstdint>
#include <future>
#include <memory>
#include <string>

namespace millrace::testing {

using channel_ptr = std::shared_ptr<answering_channel>;

/// Who derives from it starts the server with `deps`.
struct data_fixture : wire_fixture {
  explicit data_fixture(heap_data_memory memory) : bytes(std::move(memory)) {
    fabric->with_movers = std::make_shared<transport::mover_pool>(1);
    channel->frame_bytes_max = other->frame_bytes_max = 1 << 20;
    channel->set_user(1000);
    other->set_user(1001);
  }

  // What the mover still does needs the actors' system.
  ~data_fixture() { fabric->with_movers->stop(); }
  data_fixture(const data_fixture&) = delete;
  data_fixture& operator=(const data_fixture&) = delete;

  actors::data_server_deps deps(const std::string& name) {
    return {name, bytes.memory, fabric, actors::operation_limits{}};
  }

  // The scheduler has no lock, and movers hand it what they have done. So they wait meanwhile.
  void run() {
    if (mover_is_held)
      return static_cast<void>(sched.run());
    auto held = stop_mover();
    sched.run();
    held->set_value();
    auto idle = std::make_shared<std::promise<void>>();
    fabric->with_movers->submit(
      1, [](std::uint32_t) {}, [idle] { idle->set_value(); });
    idle->get_future().wait();
  }

  // The mover does nothing until the returned pointer is gone.
  std::shared_ptr<void> hold_mover() {
    mover_is_held = true;
    return {this, [this, held = stop_mover()](void*) {
              mover_is_held = false;
              held->set_value();
            }};
  }

  // What movers have withdrawn reaches the actor.
  void settle() {
    run();
    fabric->with_movers->stop();
    fabric->with_movers = std::make_shared<transport::mover_pool>(1);
    run();
  }

  // The connection's end reaches the actor, and a mover takes the memory back.
  void lose(const channel_ptr& gone) {
    session_of(*gone).on_close(*gone, {errc::peer_lost, "gone"});
    sessions.erase(gone.get());
    settle();
  }

  // Returns when the mover has done what it had to do before.
  std::shared_ptr<std::promise<void>> stop_mover() {
    auto gate = std::make_shared<std::promise<void>>();
    auto reached = std::make_shared<std::promise<void>>();
    fabric->with_movers->submit(
      1,
      [reached, go_on = gate->get_future().share()](std::uint32_t) {
        reached->set_value();
        go_on.wait();
      },
      [] {});
    reached->get_future().wait();
    return gate;
  }

  heap_data_memory bytes;
  bool mover_is_held = false;
  channel_ptr other = std::make_shared<answering_channel>(random_id<peer_id>(), "other");
};

} // namespace millrace::testing
