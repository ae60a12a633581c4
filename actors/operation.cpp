// Watches the transfers of a provider's operations, and lends them the memory of windows.
#include <millrace/actors/operation.hpp>

#include <caf/actor_clock.hpp>
#include <caf/actor_system.hpp>

#include <algorithm>
#include <iterator>
#include <vector>

namespace millrace::actors {

namespace {

// No network for bulk data is as slow as this.
constexpr std::uint64_t bytes_per_ms_min = 1u << 10;

} // namespace

void operation_context::move(transport::transfer t, completion<transport::transfer_report> done) {
  std::uint64_t bytes = 0;
  for (auto& op : t.ops)
    bytes += op.length;
  auto time = std::chrono::milliseconds{bounds.progress_timeout_ms + bytes / bytes_per_ms_min};
  auto one = std::make_shared<move_under_way>(
    move_under_way{system().clock().now() + time, std::move(done), {}});
  one->at = moves_.insert(moves_.end(), one);
  if (watch_)
    watch_();
  fabric->submit(std::move(t), home<transport::transfer_report>([this, one](auto report) {
                   end(*one, std::move(report));
                 }));
}

void operation_context::end(move_under_way& one, result<transport::transfer_report> report) {
  if (auto answer = std::exchange(one.done, nullptr)) {
    moves_.erase(one.at);
    answer(std::move(report));
  }
}

void operation_context::forget_moves() {
  for (auto& one : std::exchange(moves_, {}))
    one->done = nullptr;
  watch_ = nullptr;
}

bool operation_context::give_up_stalled(time_point now) {
  // An answer may begin and end other transfers.
  std::vector<std::shared_ptr<move_under_way>> stalled;
  std::ranges::copy_if(
    moves_, std::back_inserter(stalled), [now](auto& one) { return one->deadline < now; });
  for (auto& one : stalled)
    end(
      *one,
      fail(
        errc::deadline_exceeded,
        "provider {}: the process whose memory it is did not move its bytes in time "
        "(limits.progress_timeout)",
        provider));
  return !moves_.empty();
}

void operation_context::ask_for_window(
  const party& who, completion<std::shared_ptr<void>> granted) {
  if (!windows.bytes)
    return granted(std::shared_ptr<void>{});
  windows.bytes->ask(who, windows.window_bytes, home<std::shared_ptr<void>>(std::move(granted)));
}

} // namespace millrace::actors
