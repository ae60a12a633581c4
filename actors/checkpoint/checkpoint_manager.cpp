// Lists the messages and handles registrations. Pullers do saves; operations do restores and
// verifications.
#include <millrace/actors/checkpoint/checkpoint_manager.hpp>
#include <millrace/actors/checkpoint/registration_table.hpp>
#include <millrace/actors/checkpoint/repacker.hpp>
#include <millrace/actors/checkpoint/verify_operation.hpp>
#include <millrace/actors/load_operation.hpp>
#include <millrace/actors/watched_actor.hpp>
#include <millrace/core/codec.hpp>

#include <algorithm>
#include <list>
#include <set>

namespace millrace::actors {

namespace {

constexpr std::uint32_t listed_max = 1000; // models of one page

class checkpoint_manager : public watched_actor<local_checkpoint_manager> {
public:
  checkpoint_manager(caf::actor_config& config, checkpoint_manager_deps deps)
    : watched_actor(config, deps.name, deps.fabric, deps.limits, deps.staging),
      deps_(std::move(deps)), repacker_(context_, deps_.store, deps_.repack) {
    context_->in_use = std::move(deps_.in_use);
  }

  const char* name() const override { return "checkpoint_manager"; }

  behavior_type make_behavior() override {
    using self = checkpoint_manager;
    return handlers(
      &self::enroll, &self::leave, &self::ask_puller<save_request>,
      &self::ask_puller<durable_request>, &self::restore, &self::list, &self::describe,
      &self::verify, &self::erase, &self::repack, &self::watch_steps, &self::unwatch,
      &self::tell_news, &self::report);
  }

protected:
  void give_up_all(const status& why) override {
    for (auto& e : std::list{enrolling_})
      refuse(e, why);
    repacker_.stop(why);
    // This is the only owner of the pullers' handles, so it ends them here.
    for (auto& r : registrations_.remove_all())
      caf::anon_send_exit(r.puller, caf::exit_reason::kill);
    watched_actor::give_up_all(why);
    deps_.store.reset(); // the timer of a watch may keep this actor for long
  }

  // A job's connection, one that watches, or the puller of a shard.
  void ended(const caf::actor_addr& actor, const status& why) override {
    watched_actor::ended(actor, why);
    auto gone = loss_of(why);
    for (auto& r : registrations_.remove_all_through(actor))
      anon_send(r.puller, end_registration{false, gone});
    for (auto& e : std::list{enrolling_})
      if (e->through == actor)
        refuse(e, gone);
    registrations_.remove_puller(actor);
    if (pullers_.erase(actor) == 0 || why.ok())
      return;
    ++failed_pullers_;
    last_failure_ = why.detail();
  }

  bool give_up_late(time_point now) override {
    for (auto& e : std::list{enrolling_})
      if (e->deadline < now)
        refuse(e, late(deps_.name, "reserve the slots"));
    return !enrolling_.empty();
  }

private:
  using enroll_promise = caf::typed_response_promise<enroll_receipt>;

  // A registration whose slots are being reserved.
  struct enrolling {
    enroll_request request;
    time_point deadline;
    enroll_promise rp;
    std::shared_ptr<void> place; // among the registrations
    caf::actor_addr through;     // who asked; the registration ends with it
    bool repacked = false;
    bool refused = false;
  };
  using enrolling_ptr = std::shared_ptr<enrolling>;

  // A request of this process names no peer.
  static asker from(asker who) {
    if (who.peer.is_nil())
      who.peer = this_peer();
    return who;
  }

  caf::result<enroll_receipt> enroll(enroll_request& request) {
    auto through = watch_asker();
    auto rp = make_response_promise<enroll_receipt>();
    request.from = from(request.from);
    if (auto bad = check(request); !bad.ok()) {
      rp.deliver(to_caf_error(bad));
      return rp;
    }
    auto place = lend_place(places_, request.from.holder);
    if (!place) {
      rp.deliver(to_caf_error(no_place_for(request.from)));
      return rp;
    }
    request.shard.keep = std::max(request.shard.keep, deps_.keep_min);
    auto deadline = deadline_of(request.timeout_ms, deps_.limits, now());
    auto e = std::make_shared<enrolling>(
      enrolling{std::move(request), deadline, rp, std::move(place), through});
    enrolling_.push_back(e);
    ask_store(e);
    watch();
    return rp;
  }

  status check(const enroll_request& request) const {
    auto& shard = request.shard;
    if (auto bad = validate(shard); !bad.ok())
      return bad;
    auto bytes = size_bytes(shard.tensors);
    if (size_bytes(request.source) == bytes)
      return {};
    return {
      errc::invalid_argument,
      "checkpoints of {}: its tensors have {} bytes, the memory offered has {}", shard.model, bytes,
      size_bytes(request.source)};
  }

  status no_place_for(const asker& who) const {
    return {
      errc::busy,
      "provider {} has {} shards registered, {} of them by this process "
      "(checkpoints.registrations_max, which processes share)",
      deps_.name, places_->taken(), places_->taken_by(who.holder)};
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
      return repacker_.run([this, e](const result<repack_report>&) {
        if (!e->refused)
          ask_store(e);
      });
    }
    std::erase(enrolling_, e);
    enroll_receipt receipt;
    receipt.provider = deps_.name;
    receipt.durable = deps_.store->capabilities().durable;
    receipt.resumed = found->resumed;
    receipt.run = found->run;
    receipt.extra_bytes_max = deps_.limits.extra_bytes_max;
    receipt.model = std::move(found->model);
    log().info(
      "shard registered model={} rank={} resumed={}", receipt.model.model, shard.rank,
      receipt.resumed);
    auto puller = spawn_puller(*e);
    pullers_.insert(puller.address());
    watch(puller.address());
    receipt.registration =
      registrations_.add({e->request.from, puller, std::move(e->place), e->through});
    e->rp.deliver(std::move(receipt));
    repacker_.run_if_low();
  }

  // Takes the shard.
  checkpoint_puller_actor spawn_puller(enrolling& e) {
    checkpoint_puller_deps deps;
    deps.provider = deps_.name;
    deps.fabric = deps_.fabric;
    deps.bounds = deps_.limits;
    deps.store = deps_.store;
    deps.snapshots = deps_.snapshots;
    deps.staging = deps_.staging;
    deps.published = [this, context = context_, model = e.request.shard.model](std::uint64_t step) {
      context->home<void>(
        [this, model, step](const result<void>&) { watches().reached(model, step); })({});
    };
    deps.shard = std::move(e.request.shard);
    deps.owner = e.request.from;
    deps.source = e.request.source;
    deps.busy = e.request.busy;
    deps.queued_max = deps_.limits.saves_queued_max;
    deps.slot_wait_ms = deps_.limits.slot_wait_ms;
    deps.extra_bytes_max = deps_.limits.extra_bytes_max;
    deps.counters = counters_;
    deps.saved = deps_.saved;
    deps.left = context_->home<void>([this](const result<void>&) { repacker_.run_if_low_again(); });
    return spawn_checkpoint_puller(system(), std::move(deps));
  }

  void refuse(const enrolling_ptr& e, const status& why) {
    e->refused = true;
    e->place = nullptr;
    std::erase(enrolling_, e);
    // The promise is taken from `e`, which the store may keep for ever, since a promise holds its
    // actor.
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

  caf::result<load_reply> restore(restore_request& request) {
    storage::version_choice which;
    if (!request.latest)
      which.step = request.step;
    which.saved_at_ns = request.saved_at_ns;
    if (request.extra)
      which.part = storage::version_part::extra;
    auto open = opener(request.model, request.rank, which);
    load_request load;
    load.model = std::move(request.model);
    load.selections = std::move(request.selections);
    load.target = request.target;
    load.timeout_ms = request.timeout_ms;
    load.from = request.from;
    return operate<load_reply>(
      reads_,
      [&](auto arrived, auto done) {
        return make_load_operation(
          context_, std::move(load), std::move(open), arrived, std::move(done), "step");
      },
      [this, of_tensors = !request.extra](auto& outcome) {
        if (outcome) {
          restores_ += of_tensors;
          restored_bytes_ += outcome->size_bytes;
        }
      });
  }

  caf::result<verify_receipt> verify(verify_request& request) {
    auto open = opener(
      request.model, request.rank, {request.step, request.saved_at_ns, storage::version_part::all});
    return operate<verify_receipt>(
      reads_,
      [&](auto arrived, auto done) {
        return make_verify_operation(
          context_, std::move(request), std::move(open), arrived, std::move(done));
      },
      [](auto&) {});
  }

  model_opener opener(std::string model, std::uint32_t rank, storage::version_choice which) {
    return [store = deps_.store, model = std::move(model), rank, which](auto opened) {
      store->open(model, rank, which, std::move(opened));
    };
  }

  caf::result<checkpoint_list> list(const list_checkpoints_request& request) {
    auto count = std::min(request.count_max, listed_max);
    return answer_from<checkpoint_list, std::vector<checkpoint_summary>>(
      [&](auto done) { deps_.store->list(request.prefix, request.after, count, std::move(done)); },
      [this, count](auto& models) { return page_of(std::move(models), count); },
      request.timeout_ms);
  }

  // Returns as many models as fit, at least one.
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
    return answer_from<shard_spec, shard_spec>(
      [&](auto done) { deps_.store->describe(request.model, request.rank, std::move(done)); },
      [](auto& shard) { return std::move(shard); }, request.timeout_ms);
  }

  caf::result<done_reply> erase(const erase_checkpoint_request& request) {
    return answer_from<done_reply, void>(
      [&](auto done) {
        deps_.store->erase(
          request.model, request.one_step ? std::optional{request.step} : std::nullopt,
          std::move(done));
      },
      [] { return done_reply{}; }, request.timeout_ms);
  }

  caf::result<done_reply> watch_steps(const watch_request& request) {
    if (auto bad = validate_model_name(request.name); !bad.ok())
      return to_caf_error(bad);
    return park(request);
  }

  caf::result<repack_report> repack(const repack_request& request) {
    // The store's threads look at the clock of the machine.
    auto until = deadline_of(
      request.work_ms != 0 ? request.work_ms : request.timeout_ms, deps_.limits,
      steady_clock::now());
    return answer_from<repack_report, repack_report>(
      [&](auto done) { repacker_.run(std::move(done), until); },
      [](auto& receipt) { return receipt; }, request.timeout_ms);
  }

  provider_status report(const provider_status_request&) {
    auto out = common_status();
    auto stats = deps_.store->stats();
    out.kind = deps_.kind;
    out.group = deps_.group;
    out.durable = deps_.store->capabilities().durable;
    out.capacity_bytes = stats.capacity_bytes;
    out.used_bytes = stats.used_bytes;
    auto& c = out.checkpoints;
    c.kept = true;
    c.registered = registrations_.size();
    out.actor_failures = failed_pullers_;
    out.last_failure = last_failure_;
    c.saves_in_flight = counters_->in_flight;
    c.saves_queued = counters_->queued;
    c.saves = counters_->saves;
    c.saves_failed = counters_->failed;
    c.saved_bytes = counters_->saved_bytes;
    c.restores = restores_;
    c.restored_bytes = restored_bytes_;
    c.watches = watches().size();
    c.flushes = static_cast<bool>(deps_.flushed);
    if (deps_.flushed)
      c.flushed = deps_.flushed();
    return out;
  }

  checkpoint_manager_deps deps_;
  std::shared_ptr<fair_shares> places_ =
    std::make_shared<fair_shares>(deps_.limits.registrations_max);
  registration_table registrations_;
  std::set<caf::actor_addr> pullers_; // until they have ended, with a registration or without
  std::list<enrolling_ptr> enrolling_;
  // Restores and verifications.
  operation_lane& reads_ = add_lane(deps_.limits.loads_max, deps_.limits.queued_max);
  repacker repacker_;
  std::shared_ptr<save_counters> counters_ = std::make_shared<save_counters>();
  std::uint64_t failed_pullers_ = 0; // actors of shards
  std::string last_failure_;         // the last failure of one of them
  std::uint64_t restores_ = 0;
  std::uint64_t restored_bytes_ = 0;
};

} // namespace

local_checkpoint_manager spawn_checkpoint_manager(
  caf::actor_system& system, checkpoint_manager_deps deps) {
  return system.spawn<checkpoint_manager>(std::move(deps));
}

} // namespace millrace::actors
