// The platform of the operating system. Used by every engine outside simulations.
#include <millrace/core/never_destroyed.hpp>
#include <millrace/runtime/node/platform.hpp>

#include <caf/atom.hpp>

namespace millrace::runtime {

namespace {

class system_platform final : public platform {
public:
  // Handlers run on the thread where their message arrives. The scheduler serves timers and bursts
  // only.
  caf::actor_system_config make_caf_config() override {
    caf::actor_system_config config;
    config.set("scheduler.policy", caf::atom("sharing"));
    config.set("scheduler.max-threads", std::size_t{2});
    config.set("scheduler.max-throughput", std::size_t{100});
    return config;
  }
  void started(caf::actor_system&) override {}
  void ending(caf::actor_system&) override {}

  result<std::shared_ptr<net::io_loop>> make_loop(const net::io_loop_options& options) override {
    return net::io_loop::start(options);
  }
  std::shared_ptr<net::network> network() override { return net::network::of_system(); }
  result<std::shared_ptr<transport::fabric>> make_fabric(
    const transport::fabric_options& options, const std::shared_ptr<net::io_loop>& loop) override {
    return transport::fabric::create(options, loop);
  }
};

} // namespace

platform& platform::of_this_process() {
#if defined(MILLRACE_KILL_POINTS)
  if (simulated_platform)
    return *simulated_platform;
#endif
  return never_destroyed([] { return system_platform{}; });
}

} // namespace millrace::runtime
