// A proxy turns a message into a frame, and the reply, error or loss back into a message.
#include <millrace/actors/delivery.hpp>
#include <millrace/actors/envelope.hpp>
#include <millrace/actors/open_answers.hpp>
#include <millrace/actors/remote.hpp>

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>

namespace millrace::actors {

namespace {

template <class Request>
std::uint32_t timeout_of(const Request& request, std::uint32_t otherwise) {
  if constexpr (requires { request.timeout_ms; })
    return request.timeout_ms > 0 ? request.timeout_ms : otherwise;
  else
    return otherwise;
}

/// Common to all proxies. `Base` is the typed actor's base with `step` added.
template <class Base>
class proxy : public handed_over<Base> {
public:
  proxy(
    caf::actor_config& config, std::shared_ptr<remote_node> node, std::string target,
    std::uint32_t timeout_ms)
    : handed_over<Base>(config), node_(std::move(node)), target_(std::move(target)),
      timeout_ms_(timeout_ms) {}

  const char* name() const override { return "remote"; }

  void on_exit() override {
    answers_.give_up_all(
      {errc::unavailable, "the connection to " + node_->address() + " is closing"});
  }

protected:
  template <class Request>
  caf::result<reply_of<Request>> ask(const Request& request) {
    using reply = reply_of<Request>;
    auto rp = this->template make_response_promise<reply>();
    auto self = caf::actor_cast<caf::actor_addr>(caf::actor_cast<caf::strong_actor_ptr>(this));
    node_->ask(
      encode_request(target_, request), timeout_of(request, timeout_ms_),
      [self, answer = answers_.keep(rp), &system = this->system()](raw_reply raw) {
        auto outcome = raw ? decode_reply<reply>(*raw) : result<reply>{fail(raw.error())};
        auto alive = caf::actor_cast<caf::strong_actor_ptr>(self);
        if (!alive)
          return;
        run_in(system, alive, [answer, outcome = std::move(outcome)]() mutable {
          answer(std::move(outcome));
        });
      });
    return rp;
  }

private:
  std::shared_ptr<remote_node> node_;
  const std::string target_;
  const std::uint32_t timeout_ms_;
  open_answers answers_;
};

using store_interface = tensor_store_actor::extend<caf::reacts_to<step>>;

class remote_store : public proxy<store_interface::base> {
public:
  using proxy::proxy;

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    return {
      [this](const store_request& r) { return ask(r); },
      [this](const load_request& r) { return ask(r); },
      [this](const describe_request& r) { return ask(r); },
      [this](const list_request& r) { return ask(r); },
      [this](const erase_request& r) { return ask(r); },
      [this](const pin_request& r) { return ask(r); },
      [this](const resolve_request& r) { return ask(r); },
      [this](const provider_status_request& r) { return ask(r); },
      [](step& s) { s.run(); },
    };
  }
};

using checkpoint_interface = checkpoint_manager_actor::extend<caf::reacts_to<step>>;

class remote_checkpoints : public proxy<checkpoint_interface::base> {
public:
  using proxy::proxy;

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    return {
      [this](const enroll_request& r) { return ask(r); },
      [this](const leave_request& r) { return ask(r); },
      [this](const save_request& r) { return ask(r); },
      [this](const durable_request& r) { return ask(r); },
      [this](const restore_request& r) { return ask(r); },
      [this](const list_checkpoints_request& r) { return ask(r); },
      [this](const describe_shard_request& r) { return ask(r); },
      [this](const verify_request& r) { return ask(r); },
      [this](const erase_checkpoint_request& r) { return ask(r); },
      [this](const repack_request& r) { return ask(r); },
      [this](const provider_status_request& r) { return ask(r); },
      [](step& s) { s.run(); },
    };
  }
};

using node_interface = node_actor::extend<caf::reacts_to<step>>;

class remote_node_proxy : public proxy<node_interface::base> {
public:
  using proxy::proxy;

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    return {
      [this](const directory_request& r) { return ask(r); },
      [this](const node_status_request& r) { return ask(r); },
      [](step& s) { s.run(); },
    };
  }
};

} // namespace

tensor_store_actor spawn_remote_store(
  caf::actor_system& system, std::shared_ptr<remote_node> node, std::string provider,
  std::uint32_t timeout_ms) {
  return system.spawn<remote_store>(std::move(node), std::move(provider), timeout_ms);
}

checkpoint_manager_actor spawn_remote_checkpoints(
  caf::actor_system& system, std::shared_ptr<remote_node> node, std::string provider,
  std::uint32_t timeout_ms) {
  return system.spawn<remote_checkpoints>(std::move(node), std::move(provider), timeout_ms);
}

node_actor spawn_remote_node_actor(
  caf::actor_system& system, std::shared_ptr<remote_node> node, std::uint32_t timeout_ms) {
  return system.spawn<remote_node_proxy>(std::move(node), std::string{}, timeout_ms);
}

} // namespace millrace::actors
