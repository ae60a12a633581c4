// Shares out all memories whenever a lender calls, and from time to time while anything is held.
#include <millrace/actors/delivery.hpp>
#include <millrace/actors/staging/staging_manager.hpp>
#include <millrace/actors/supervision.hpp>

#include <caf/actor_clock.hpp>
#include <caf/make_message.hpp>
#include <caf/typed_event_based_actor.hpp>

namespace millrace::actors {

namespace {

using std::chrono::milliseconds;

constexpr std::string_view manager_name = "the staging manager";

class staging_manager : public handed_over<staging_manager_actor::base> {
public:
  staging_manager(
    caf::actor_config& config, std::vector<std::shared_ptr<staging_memory>> memories,
    const staging_rules& rules)
    : handed_over(config), memories_(std::move(memories)), rules_(rules) {}

  const char* name() const override { return "staging_manager"; }

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    set_exception_handler([this](std::exception_ptr& thrown) {
      return to_caf_error(failure_ = ending_of(failure_, manager_name, thrown));
    });
    auto call = [&system = system(), self = address()] {
      if (auto manager = caf::actor_cast<caf::strong_actor_ptr>(self))
        deliver(system, manager, caf::make_message(staging_call{}));
    };
    for (auto& memory : memories_)
      memory->managed_by(call, rules_);
    // Lenders may have been short before.
    send(this, staging_call{});
    return {[this](const staging_call& call) {
      run_handler(
        *this, typeid(call), [&] { look(call); },
        [&](const std::exception_ptr& thrown) {
          return failure_ = failure_of(manager_name, name_of(typeid(call)), thrown);
        });
    }};
  }

  void on_exit() override {
    for (auto& memory : memories_)
      memory->managed_by(nullptr, rules_);
    memories_.clear();
  }

private:
  void look(const staging_call& call) {
    auto now = system().clock().now();
    if (call.timed && now >= next_look_)
      next_look_ = time_point::max();
    for (auto& memory : memories_)
      if (auto after = memory->share_out(now); after > milliseconds{0})
        look_again(after);
  }

  void look_again(milliseconds after) {
    auto at = system().clock().now() + after;
    if (next_look_ <= at && next_look_ > system().clock().now())
      return;
    next_look_ = at;
    delayed_send(this, after, staging_call{true});
  }

  std::vector<std::shared_ptr<staging_memory>> memories_;
  const staging_rules rules_;
  time_point next_look_ = time_point::max(); // the one that is set
  status failure_;
};

} // namespace

staging_manager_actor spawn_staging_manager(
  caf::actor_system& system, std::vector<std::shared_ptr<staging_memory>> memories,
  const staging_rules& rules) {
  return system.spawn<staging_manager>(std::move(memories), rules);
}

} // namespace millrace::actors
