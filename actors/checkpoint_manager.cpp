// A table of contents; saves are in the pullers, restores and verifications in operations of their own.
#include <millrace/actors/checkpoint_manager.hpp>
#include <millrace/actors/load_operation.hpp>
#include <millrace/actors/open_answers.hpp>
#include <millrace/actors/operation_lane.hpp>
#include <millrace/actors/registration_table.hpp>
#include <millrace/actors/repacker.hpp>
#include <millrace/actors/verify_operation.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/log.hpp>

#include <caf/actor_clock.hpp>
#include <caf/send.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <algorithm>
#include <list>

namespace millrace::actors {

namespace {

using wide_interface = local_checkpoint_manager::extend<caf::reacts_to<step>>;

constexpr std::uint32_t listed_max = 1000; // models of one page
constexpr auto tick_every = std::chrono::milliseconds{250};

class checkpoint_manager : public handed_over<wide_interface::base> {
public:
  checkpoint_manager(caf::actor_config& config, checkpoint_manager_deps deps)
    : handed_over(config), deps_(std::move(deps)),
      context_(std::make_shared<operation_context>(
        system(), caf::actor_cast<caf::strong_actor_ptr>(this), deps_.name, deps_.fabric,
        deps_.limits)),
      reads_(
        deps_.name, deps_.limits.restores_max, deps_.limits.queued_max, [this] { arm_tick(); }),
      repacker_(context_, deps_.store, deps_.repack) {}

  const char* name() const override { return "checkpoint_manager"; }

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    return {
      [this](enroll_request& r) { return enroll(std::move(r)); },
      [this](const leave_request& r) { return leave(r); },
      [this](const save_request& r) { return ask_puller(r); },
      [this](const durable_request& r) { return ask_puller(r); },
      [this](restore_request& r) { return restore(std::move(r)); },
      [this](const list_checkpoints_request& r) { return list(r); },
      [this](const describe_shard_request& r) { return describe(r); },
      [this](verify_request& r) { return verify(std::move(r)); },
      [this](const erase_checkpoint_request& r) { return erase(r); },
      [this](const repack_request& r) { return repack(r); },
      [this](const provider_status_request&) { return status_now(); },
      [this](const peer_gone& gone) { forget(gone); },
      [this](step& s) { work(s); },
    };
  }

  void on_exit() override {
    actor_home::entered inside{*context_};
    status why{errc::unavailable, "provider " + deps_.name + " is shutting down"};
    reads_.give_up_all(why);
    for (auto& e : std::list{enrolling_})
      refuse(e, why);
    repacker_.stop(why);
    answers_.give_up_all(why);
    // The pullers end with their last handle's owner: here.
    for (auto& r : registrations_.remove_all())
      caf::anon_send_exit(r.puller, caf::exit_reason::kill);
  }

private:
  using enroll_promise = caf::typed_response_promise<enroll_receipt>;

  // A registration whose slots are being reserved.
  struct enrolling {
    enroll_request request;
    time_point deadline;
    enroll_promise rp;
    bool repacked = false;
    bool refused = false;
  };
  using enrolling_ptr = std::shared_ptr<enrolling>;

  void work(step& s) {
    actor_home::entered inside{*context_};
    try {
      s.run();
    } catch (const std::exception& e) {
      log().error("provider {}: {}", deps_.name, e.what());
    }
  }

  // Requests of this process name no peer.
  static asker from(asker who) {
    if (who.peer.is_nil())
      who.peer = this_peer();
    return who;
  }

  // -- registrations ----------------------------------------------------------------------------

  caf::result<enroll_receipt> enroll(enroll_request request) {
    actor_home::entered inside{*context_};
    auto rp = make_response_promise<enroll_receipt>();
    request.from = from(request.from);
    if (auto bad = check(request); !bad.ok()) {
      rp.deliver(to_caf_error(bad));
      return rp;
    }
    request.shard.keep = std::max(request.shard.keep, deps_.keep_min);
    auto deadline = deadline_of(request.timeout_ms, deps_.limits, system().clock().now());
    auto e = std::make_shared<enrolling>(enrolling{std::move(request), deadline, rp});
    enrolling_.push_back(e);
    ask_store(e);
    arm_tick();
    return rp;
  }

  status check(const enroll_request& request) const {
    auto& shard = request.shard;
    if (auto bad = validate(shard); !bad.ok())
      return bad;
    if (registrations_.size() + enrolling_.size() >= deps_.limits.registrations_max)
      return {
        errc::busy,
        "provider " + deps_.name + " has " + std::to_string(registrations_.size()) +
          " shards registered (checkpoints.registrations_max)"};
    auto bytes = size_bytes(shard.tensors);
    if (size_bytes(request.source) == bytes)
      return {};
    return {
      errc::invalid_argument,
      "checkpoints of " + shard.model + ": its tensors have " + std::to_string(bytes) +
        " bytes, the memory offered has " + std::to_string(size_bytes(request.source))};
  }

  void ask_store(const enrolling_ptr& e) {
    deps_.store->enroll(
      e->request.shard, context_->home<storage::enrolled_shard>([this, e](auto found) {
        on_enrolled(e, std::move(found));
      }));
  }

  void on_enrolled(const enrolling_ptr& e, result<storage::enrolled_shard> found) {
    auto& shard = e->request.shard;
    if (e->refused) {
      if (found)
        deps_.store->leave(shard.model, shard.rank, false);
      return;
    }
    if (!found) {
      if (found.error().code() != errc::no_space || !deps_.repack.when_low || e->repacked)
        return refuse(e, found.error());
      e->repacked = true;
      return repacker_.run([this, e](const result<repack_receipt>&) {
        if (!e->refused)
          ask_store(e);
      });
    }
    std::erase(enrolling_, e);
    enroll_receipt receipt;
    receipt.provider = deps_.name;
    receipt.durable = deps_.store->capabilities().durable;
    receipt.resumed = found->resumed;
    receipt.model = std::move(found->model);
    receipt.registration = registrations_.add({e->request.from, spawn_puller(*e)});
    log().info(
      "shard registered model={} rank={} resumed={}", receipt.model.model, shard.rank,
      receipt.resumed);
    e->rp.deliver(std::move(receipt));
    repacker_.run_if_low();
  }

  checkpoint_puller_actor spawn_puller(const enrolling& e) {
    checkpoint_puller_deps deps;
    deps.provider = deps_.name;
    deps.fabric = deps_.fabric;
    deps.bounds = deps_.limits;
    deps.store = deps_.store;
    deps.blocks = deps_.blocks;
    deps.shard = e.request.shard;
    deps.source = e.request.source;
    deps.busy = e.request.busy;
    deps.queued_max = deps_.limits.saves_queued_max;
    deps.counters = counters_;
    deps.saved = deps_.saved;
    deps.left = context_->home<void>([this](const result<void>&) { repacker_.run_if_low_again(); });
    return spawn_checkpoint_puller(system(), std::move(deps));
  }

  void refuse(const enrolling_ptr& e, const status& why) {
    e->refused = true;
    std::erase(enrolling_, e);
    // The store may keep `e` for ever, and a promise holds its actor.
    std::exchange(e->rp, {}).deliver(to_caf_error(why));
  }

  template <class Request>
  caf::result<save_receipt> ask_puller(const Request& request) {
    if (auto* r = registrations_.find(request.registration, from(request.from)))
      return delegate(r->puller, request);
    return unknown_registration();
  }

  static caf::error unknown_registration() {
    return caf::make_error(
      errc::not_found,
      std::string{"no such registration: its connection was lost, or the service "
                  "was started anew; register again"});
  }

  caf::result<done_reply> leave(const leave_request& request) {
    auto* r = registrations_.find(request.registration, from(request.from));
    if (!r)
      return unknown_registration();
    auto puller = r->puller;
    registrations_.remove(request.registration);
    return delegate(
      puller, end_registration{request.finished, {errc::cancelled, "the registration was ended"}});
  }

  void forget(const peer_gone& gone) {
    actor_home::entered inside{*context_};
    for (auto& r : registrations_.remove_all_of(gone.who))
      anon_send(r.puller, end_registration{false, gone.why});
    for (auto& e : std::list{enrolling_})
      if (same_connection(e->request.from, gone.who))
        refuse(e, gone.why);
  }

  // -- reading ----------------------------------------------------------------------------------

  caf::result<load_receipt> restore(restore_request request) {
    actor_home::entered inside{*context_};
    auto rp = make_response_promise<load_receipt>();
    storage::version_choice which;
    if (!request.latest)
      which.step = request.step;
    auto open = opener(request.model, request.rank, which);
    load_request load;
    load.model = std::move(request.model);
    load.selections = std::move(request.selections);
    load.target = std::move(request.target);
    load.timeout_ms = request.timeout_ms;
    auto done = [this, rp](result<load_receipt> outcome) mutable {
      if (outcome) {
        ++restores_;
        restored_bytes_ += outcome->size_bytes;
      }
      answer_with(rp, std::move(outcome));
      send(this, step{[this] { reads_.reap(); }});
    };
    reads_.start(make_load_operation(
      context_, std::move(load), std::move(open), system().clock().now(), std::move(done)));
    return rp;
  }

  caf::result<verify_receipt> verify(verify_request request) {
    actor_home::entered inside{*context_};
    auto rp = make_response_promise<verify_receipt>();
    auto open = opener(request.model, request.rank, {request.step, request.saved_at_ns});
    auto done = [this, rp](result<verify_receipt> outcome) mutable {
      answer_with(rp, std::move(outcome));
      send(this, step{[this] { reads_.reap(); }});
    };
    reads_.start(make_verify_operation(
      context_, std::move(request), std::move(open), system().clock().now(), std::move(done)));
    return rp;
  }

  model_opener opener(std::string model, std::uint32_t rank, storage::version_choice which) {
    return [store = deps_.store, model = std::move(model), rank, which](auto opened) {
      store->open(model, rank, which, std::move(opened));
    };
  }

  // -- the table --------------------------------------------------------------------------------

  caf::result<checkpoint_list> list(const list_checkpoints_request& request) {
    auto rp = make_response_promise<checkpoint_list>();
    auto count = std::min(request.count_max, listed_max);
    deps_.store->list(
      request.prefix, request.after, count,
      context_->home<std::vector<checkpoint_summary>>(
        [this, answer = answers_.keep(rp), count](auto models) mutable {
          answer(models.map([&](auto& m) { return page_of(std::move(m), count); }));
        }));
    return rp;
  }

  // As many as fit, at least one.
  checkpoint_list page_of(std::vector<checkpoint_summary> models, std::uint32_t count) const {
    checkpoint_list page;
    page.more = models.size() >= count;
    std::size_t bytes = 0;
    for (auto& m : models) {
      bytes += encode(m).size();
      if (bytes > deps_.page_bytes_max && !page.models.empty()) {
        page.more = true;
        break;
      }
      page.models.push_back(std::move(m));
    }
    return page;
  }

  caf::result<shard_spec> describe(const describe_shard_request& request) {
    auto rp = make_response_promise<shard_spec>();
    deps_.store->describe(
      request.model, request.rank, context_->home<shard_spec>(answers_.keep(rp)));
    return rp;
  }

  caf::result<done_reply> erase(const erase_checkpoint_request& request) {
    auto rp = make_response_promise<done_reply>();
    deps_.store->erase(
      request.model, request.one_step ? std::optional{request.step} : std::nullopt,
      context_->home<void>([answer = answers_.keep(rp)](result<void> outcome) {
        answer(outcome.map([] { return done_reply{}; }));
      }));
    return rp;
  }

  caf::result<repack_receipt> repack(const repack_request& request) {
    actor_home::entered inside{*context_};
    auto rp = make_response_promise<repack_receipt>();
    repacker_.run(
      [rp](result<repack_receipt> outcome) mutable { answer_with(rp, std::move(outcome)); },
      deadline_of(
        request.work_ms != 0 ? request.work_ms : request.timeout_ms, deps_.limits,
        steady_clock::now()));
    return rp;
  }

  provider_status status_now() {
    provider_status out;
    auto stats = deps_.store->stats();
    out.name = deps_.name;
    out.kind = deps_.kind;
    out.group = deps_.group;
    out.durable = deps_.store->capabilities().durable;
    out.capacity_bytes = stats.capacity_bytes;
    out.used_bytes = stats.used_bytes;
    out.checkpoints = true;
    out.registered = registrations_.size();
    out.saves_in_flight = counters_->in_flight;
    out.saves_queued = counters_->queued;
    out.saves = counters_->saves;
    out.saves_failed = counters_->failed;
    out.saved_bytes = counters_->saved_bytes;
    out.restores = restores_;
    out.restored_bytes = restored_bytes_;
    out.flushes = static_cast<bool>(deps_.flushed);
    if (deps_.flushed)
      out.flushed = deps_.flushed();
    out.in_flight = reads_.unanswered();
    out.queued = reads_.waiting();
    return out;
  }

  // -- deadlines --------------------------------------------------------------------------------

  void arm_tick() {
    if (std::exchange(ticking_, true))
      return;
    delayed_send(this, tick_every, step{[this] { tick(); }});
  }

  void tick() {
    ticking_ = false;
    auto now = system().clock().now();
    for (auto& e : std::list{enrolling_})
      if (e->deadline < now)
        refuse(e, late(deps_.name, "reserve the slots"));
    reads_.give_up_late(now);
    reads_.reap();
    if (!enrolling_.empty() || !reads_.empty())
      arm_tick();
  }

  checkpoint_manager_deps deps_;
  std::shared_ptr<operation_context> context_;
  registration_table registrations_;
  std::list<enrolling_ptr> enrolling_;
  operation_lane reads_; // restores and verifications
  repacker repacker_;
  open_answers answers_; // of what the store was asked and nothing above does
  std::shared_ptr<save_counters> counters_ = std::make_shared<save_counters>();
  std::uint64_t restores_ = 0;
  std::uint64_t restored_bytes_ = 0;
  bool ticking_ = false;
};

} // namespace

local_checkpoint_manager spawn_checkpoint_manager(
  caf::actor_system& system, checkpoint_manager_deps deps) {
  return system.spawn<checkpoint_manager>(std::move(deps));
}

} // namespace millrace::actors
