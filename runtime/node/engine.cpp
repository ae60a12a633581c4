// Starts and stops the threads of a process.
#include <millrace/config/section.hpp>
#include <millrace/config/users.hpp>
#include <millrace/core/identity.hpp>
#include <millrace/net/network_options.hpp>
#include <millrace/runtime/node/engine.hpp>
#include <millrace/runtime/node/side_thread.hpp>

#include <fmt/format.h>

#include <condition_variable>
#include <thread>

namespace millrace::runtime {

namespace {

result<std::shared_ptr<const net::tls::context>> tls_of(const config::settings& settings) {
  auto& s = settings.security;
  if (!s.configured())
    return nullptr;
  auto opened = net::tls::context::open({s.secret, s.certificate, s.key, s.authority});
  return opened ? std::move(opened) : fail(opened.error().within("security"));
}

// The fabric finds the options of its drivers among those of all.
transport::fabric_options fabric_options_of(const config::settings& settings, engine_role role) {
  auto o = settings.options.of<transport::fabric_options>();
  o.prefer_is_explicit = o.prefer != transport::driver_names();
  o.drivers = settings.options;
  o.listens = role == engine_role::node;
  o.yields = {
    role == engine_role::node ? settings.node.mover_nice : settings.client.mover_nice,
    std::chrono::milliseconds{settings.client.mover_patience_ms}};
  return o;
}

} // namespace

engine::engine(const config::settings& settings)
  : settings_(settings), platform_(platform::of_this_process()),
    caf_config_(platform_.make_caf_config()), system_(actors::start_system(caf_config_)),
    network_(platform_.network()) {
  platform_.started(*system_);
}

result<std::shared_ptr<engine>> engine::start(const config::settings& settings, engine_role role) {
  if (auto why = refused_at_exit(); !why.ok())
    return fail(std::move(why));
  auto e = kept_from_forks(new engine{settings});
  auto trusted = config::uids_of("client.trust_users", settings.client.trust_users);
  if (!trusted)
    return fail(trusted.error());
  e->trusted_uids_ = std::move(*trusted);
  auto tls = tls_of(settings);
  if (!tls)
    return fail(tls.error());
  e->tls_ = std::move(*tls);
  auto& network = settings.options.of<net::network_options>();
  if (auto bad = config::check_options("channel", network); !bad.ok())
    return fail(bad);
  auto loop = e->platform_.make_loop(network.loop);
  if (!loop)
    return fail(loop.error());
  e->loop_ = std::move(*loop);
  e->names_ = net::resolver::make(net::look_up, network.names);
  auto fabric = e->platform_.make_fabric(fabric_options_of(settings, role), e->loop_);
  if (!fabric)
    return fail(fabric.error());
  e->fabric_ = std::move(*fabric);
  return e;
}

engine::~engine() {
  if (loop_)
    loop_->stop();
  end_actors();
  if (fabric_) {
    // A mover that has just answered may still run an actor, and keep the fabric.
    auto movers = fabric_->movers();
    fabric_.reset();
    movers->stop();
  }
  platform_.ending(*system_);
  actors::end_system(std::move(system_));
}

void engine::end_actors() {
  std::vector<caf::strong_actor_ptr> actors;
  {
    std::lock_guard guard{mutex_};
    actors.swap(adopted_);
    actors_ended_ = true;
  }
  for (auto& actor : actors)
    actors::end_actor(*system_, actor);
}

void engine::keep_or_end(const caf::strong_actor_ptr& actor) {
  {
    std::lock_guard guard{mutex_};
    if (!actors_ended_)
      return adopted_.push_back(actor);
  }
  actors::end_actor(*system_, actor);
}

net::channel_options engine::channel_options() const {
  auto o = settings_.options.of<net::network_options>().channel;
  o.requests_queued_max = settings_.limits.queued_max;
  o.tls = tls_;
  o.names = names_;
  o.trust_uids = trusted_uids_;
  return o;
}

net::link_options engine::link_options(const node_entry& node) const {
  auto& c = settings_.client;
  net::link_options o;
  o.address = fmt::format("{}", fmt::join(node.addresses, ", "));
  o.addresses = node.addresses;
  o.channel = channel_options();
  o.channel.expected_name = node.name;
  o.channel.local_name = fmt::format("{}{}", net::client_prefix, this_process());
  o.via = network_;
  o.connect_timeout_ms = static_cast<std::uint32_t>(c.connect_timeout_ms);
  o.backoff_min_ms = static_cast<std::uint32_t>(c.reconnect_backoff_min_ms);
  o.backoff_max_ms = static_cast<std::uint32_t>(c.reconnect_backoff_max_ms);
  return o;
}

void release(std::shared_ptr<engine> e) {
  bool inside = e &&
    (e->loop()->on_loop() || actors::handler_scope::inside() ||
     actors::inline_unit::current(e->system()));
  if (inside && simulated())
    simulated()->run_later([e = std::move(e)] {});
  else if (inside)
    run_aside([e = std::move(e)] {});
}

} // namespace millrace::runtime
