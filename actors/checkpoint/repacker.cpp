// Begins, joins and stops repacks.
#include <millrace/actors/checkpoint/repacker.hpp>
#include <millrace/core/log.hpp>

namespace millrace::actors {

void repacker::run(completion<repack_report> done, std::optional<time_point> deadline) {
  waiting_.push_back(std::move(done));
  if (stopped_)
    return;
  auto stopped = stopped_ = std::make_shared<std::atomic<bool>>(false);
  store_->repack(
    [stopped, deadline](std::uint64_t, std::uint64_t) {
      return !*stopped && (!deadline || steady_clock::now() < *deadline);
    },
    context_->home<repack_report>([this, stopped](const auto& report) {
      if (stopped_ == stopped)
        finish(report);
    }));
}

void repacker::run_if_low() {
  if (!policy_.when_low || stopped_)
    return;
  auto stats = store_->stats();
  auto free = stats.capacity_bytes - std::min(stats.used_bytes, stats.capacity_bytes);
  // Repacks again only after something was added, since the last repack left what it could not
  // free.
  if (
    stats.used_bytes <= low_at_bytes_ || free >= stats.capacity_bytes / 100 * policy_.below_percent)
    return;
  run([this](const result<repack_report>& outcome) {
    low_at_bytes_ = store_->stats().used_bytes;
    if (outcome)
      log().info(
        "space was low: repacked provider={} freed_bytes={} moved_bytes={}", context_->provider,
        outcome->freed_bytes, outcome->moved_bytes);
    else
      log().warn(
        "space is low and the repack failed provider={} why=\"{}\"", context_->provider,
        outcome.error().to_string());
  });
}

void repacker::run_if_low_again() {
  low_at_bytes_ = 0;
  // A running repack may already have passed the space that the job leaves.
  again_ = stopped_ != nullptr;
  run_if_low();
}

void repacker::stop(const status& why) {
  if (stopped_) {
    *stopped_ = true;
    again_ = false;
    finish(fail(why));
  }
  context_.reset();
  store_.reset();
}

void repacker::finish(const result<repack_report>& outcome) {
  stopped_ = nullptr;
  for (auto& done : std::exchange(waiting_, {}))
    done(outcome);
  if (std::exchange(again_, false))
    run_if_low_again();
}

} // namespace millrace::actors
