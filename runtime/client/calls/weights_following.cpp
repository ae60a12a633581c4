// Watch, tell, watch again. A provider that was away is asked again, with longer and longer pauses.
#include <millrace/runtime/client/calls/describe_call.hpp>
#include <millrace/runtime/client/calls/model_load.hpp>
#include <millrace/runtime/client/calls/watches.hpp>
#include <millrace/runtime/client/calls/weights_following.hpp>
#include <millrace/runtime/client/calls/weights_record.hpp>

#include <algorithm>
#include <utility>

namespace millrace::runtime {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds watch_time{0}; // of one watch: the request timeout of the client
constexpr milliseconds pause_min{50}, pause_max{2000};
constexpr milliseconds fails_for{15'000}; // a pause, and attempts to connect

// Only another publication, or another configuration, mends these.
bool is_final(const status& why) {
  switch (why.code()) {
  case errc::invalid_argument:
  case errc::not_found:
  case errc::permission_denied:
  case errc::unsupported:
  case errc::unsupported_version:
    return true;
  default:
    return false;
  }
}

} // namespace

std::shared_ptr<weights_following> weights_following::begin(
  const std::shared_ptr<client_core>& core, std::string group, std::string name) {
  std::shared_ptr<weights_following> out{
    new weights_following{core->shared_from_this(), std::move(group), std::move(name)}};
  out->closing_ = out->core_->when_closed([weak = std::weak_ptr{out}] {
    if (auto self = weak.lock())
      self->end();
  });
  out->core_->run([out] { out->wait(); });
  return out;
}

// A watch of no version is over at once if there is one. So what was replaced while the follower
// could not ask, or by a provider that counts anew, is found.
void weights_following::wait() {
  if (stopped_)
    return;
  watch_ = watch_model(core_, group_, name_, than_, watch_time);
  watch_.chain([weak = weak_from_this()](const result<model_record>& record) {
    if (auto self = weak.lock())
      self->core_->run([self, record] { self->on_record(record); });
  });
}

void weights_following::on_record(const result<model_record>& record) {
  if (stopped_)
    return;
  if (!record)
    return on_failure(record.error());
  failures_ = 0;
  than_ = record->version;
  auto found = weights_of(*record);
  no_weights_ = found ? status{} : found.error();
  found ? learn(*found) : waiting_->fail_all(no_weights_);
  wait();
}

void weights_following::on_failure(const status& why) {
  than_ = 0;                                 // a provider that was away meanwhile may count anew
  if (why.code() == errc::deadline_exceeded) // as a rule nothing was published in that time
    return wait();
  failed_ = why;
  failed_at_ = steady_clock::now();
  if (is_final(why))
    waiting_->fail_all(why);
  if (why.code() == errc::busy)
    look_without_watch();
  auto doublings = std::min<std::uint32_t>(failures_++, 10);
  wait_again_in(std::min(pause_min * (1u << doublings), pause_max));
}

// A provider that has no place for the watch still tells what is newest.
void weights_following::look_without_watch() {
  ask_record(
    core_, group_, name_, 0, core_->deadline_after(),
    [weak = weak_from_this(), known_then = learnt_](const result<found_record>& found) {
      auto self = weak.lock();
      auto newest = found ? weights_of(found->record) : fail(found.error());
      if (self && newest && !self->stopped_)
        self->learn_of_look(*newest, known_then);
    });
}

void weights_following::wait_again_in(milliseconds time) {
  core_->runs_on()->loop()->run_after(
    static_cast<std::uint32_t>(time.count()), [weak = weak_from_this()] {
      if (auto self = weak.lock())
        self->core_->run([self] { self->wait(); });
    });
}

// Why no watch is parked, or why what is published cannot be followed. A watch that has not failed
// for that long is parked.
status weights_following::keeps_away() const {
  auto fails = failures_ > 0 && steady_clock::now() < failed_at_ + fails_for;
  return fails ? failed_ : no_weights_;
}

void weights_following::learn(const weights_version& found) {
  {
    std::lock_guard guard{mutex_};
    if (newest_ && !is_after(found, *newest_))
      return;
    newest_ = found;
  }
  ++learnt_;
  answer_waiting();
}

// What was looked for while the watch brought something else may be older than that: which of two
// runs came later is known from one of them alone.
void weights_following::learn_of_look(const weights_version& found, std::uint64_t known_then) {
  auto known = newest();
  if (known_then == learnt_ || (known && known->run == found.run))
    learn(found);
}

std::optional<weights_version> weights_following::newest() const {
  if (!core_->refusal().ok())
    return std::nullopt;
  std::lock_guard guard{mutex_};
  return newest_;
}

future<weights_version> weights_following::next(milliseconds timeout) {
  if (auto refused = core_->refused<weights_version>())
    return *refused;
  auto done = core_->make_promise<weights_version>();
  auto deadline = core_->deadline_after(timeout);
  core_->run([self = shared_from_this(), done, deadline] { self->add(done, deadline); });
  return done.get_future();
}

void weights_following::add(const promise<weights_version>& done, time_point deadline) {
  if (stopped_)
    return static_cast<void>(done.set(fail(errc::cancelled, "the follower was dropped")));
  if (has_news())
    return answer(done, *newest());
  if (auto why = keeps_away(); is_final(why))
    return static_cast<void>(done.set(fail(why)));
  waiting_->add(done, deadline, [self = shared_from_this()] { return self->late(); });
}

bool weights_following::has_news() const {
  auto known = newest();
  return known && known != given_;
}

// Before the caller has it, the next call must know. A call that was cancelled has taken nothing.
void weights_following::answer(const promise<weights_version>& done, const weights_version& with) {
  auto before = std::exchange(given_, with);
  if (!done.set(with))
    given_ = std::move(before);
}

// A load that began before the newest one was told does not make that one news again.
void weights_following::end_load(
  const promise<weights_version>& done, const result<weights_version>& outcome) {
  if (!outcome || given_ == newest())
    return static_cast<void>(done.set(outcome));
  answer(done, *outcome);
}

// One publication answers all calls that wait.
void weights_following::answer_waiting() {
  if (!has_news())
    return;
  auto before = std::exchange(given_, newest());
  if (!waiting_->answer(*given_))
    given_ = std::move(before);
}

status weights_following::late() const {
  status out{errc::deadline_exceeded, "no newer weights of {} came within the call's time", name_};
  if (auto why = keeps_away(); !why.ok())
    out = {errc::deadline_exceeded, "{}; {}", out.detail(), why.to_string()};
  return out;
}

void weights_following::stop() {
  if (core_->refusal().ok())
    core_->run([self = shared_from_this()] { self->end(); });
}

void weights_following::end() {
  if (std::exchange(stopped_, true))
    return;
  core_->forget_closing(closing_);
  if (watch_.valid())
    watch_.cancel();
  waiting_->fail_all({errc::cancelled, "the follower of {} was dropped", name_});
}

// One load. A version that was replaced before it could be read is none that anybody needs: the
// newest one is asked for, and loaded.
class weights_following::loading : public std::enable_shared_from_this<loading> {
public:
  loading(
    std::shared_ptr<weights_following> by, std::vector<load_target> targets, time_point deadline)
    : by_(std::move(by)), core_(by_->core_), targets_(std::move(targets)), deadline_(deadline),
      done_(core_->make_promise<weights_version>()) {}

  future<weights_version> begin() {
    // The caller does not have the future yet, so it cannot have cancelled.
    static_cast<void>(done_.on_cancel([weak = weak_from_this()] {
      if (auto self = weak.lock())
        self->give_up();
    }));
    auto known = by_->newest();
    known ? load(*known) : look();
    return done_.get_future();
  }

private:
  // In the client's actor, as its answer.
  void look() {
    core_->run([self = shared_from_this()] {
      auto known_then = self->by_->learnt_;
      ask_record(
        self->core_, self->by_->group_, self->by_->name_, 0, self->deadline_,
        [self, known_then](const result<found_record>& found) {
          auto newest = found ? weights_of(found->record) : fail(found.error());
          newest ? self->found(*newest, known_then) : self->end(fail(newest.error()));
        });
    });
  }

  void found(const weights_version& newest, std::uint64_t known_then) {
    by_->learn_of_look(newest, known_then);
    if (tried_ && newest == *tried_) // it is there, and lacks a tensor
      return end(fail(missing_));
    auto known = by_->newest();
    if (known && known->run == newest.run && newest.version < known->version)
      return end(fail(
        errc::not_found,
        "version {} of {} was replaced by {}, which had been given up: publish again",
        known->version, by_->name_, newest.version));
    load(newest);
  }

  void load(const weights_version& version) {
    future<load_receipt> begun;
    {
      std::lock_guard guard{mutex_};
      if (given_up_)
        return;
      begun = running_ =
        begin_load(core_, by_->group_, by_->name_, targets_, version.stored_as, deadline_);
    }
    tried_ = version;
    begun.chain([self = shared_from_this()](const result<load_receipt>& outcome) {
      self->on_loaded(outcome);
    });
  }

  // A provider that counts anew may give the number again, to other weights.
  void on_loaded(const result<load_receipt>& outcome) {
    if (outcome && outcome->stored_at_ns == tried_->stored_at_ns)
      return end(*tried_);
    if (!outcome && outcome.error().code() != errc::not_found)
      return end(fail(outcome.error()));
    if (steady_clock::now() >= deadline_)
      return end(fail(
        errc::deadline_exceeded, "the weights of {} were replaced before they could be loaded",
        by_->name_));
    missing_ = outcome ? status{} : outcome.error();
    if (outcome)
      tried_.reset();
    look();
  }

  void end(result<weights_version> outcome) {
    core_->run([self = shared_from_this(), outcome = std::move(outcome)] {
      self->by_->end_load(self->done_, outcome);
    });
  }

  void give_up() {
    future<load_receipt> running;
    {
      std::lock_guard guard{mutex_};
      given_up_ = true;
      running = running_;
    }
    if (running.valid())
      running.cancel();
  }

  const std::shared_ptr<weights_following> by_;
  const std::shared_ptr<client_core> core_;
  const std::vector<load_target> targets_;
  const time_point deadline_;
  const promise<weights_version> done_;
  std::optional<weights_version> tried_; // last
  status missing_;                       // what it lacks, or that it is gone

  std::mutex mutex_;
  bool given_up_ = false;
  future<load_receipt> running_;
};

future<weights_version> weights_following::load(
  std::vector<load_target> targets, milliseconds timeout) {
  if (auto refused = core_->refused<weights_version>())
    return *refused;
  return std::make_shared<loading>(
           shared_from_this(), std::move(targets), core_->deadline_after(timeout))
    ->begin();
}

} // namespace millrace::runtime
