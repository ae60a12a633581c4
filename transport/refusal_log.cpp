// A bounded table of who was refused when.
#include <millrace/core/log.hpp>
#include <millrace/transport/refusal_log.hpp>

#include <atomic>
#include <mutex>

namespace millrace::transport {

namespace {

constexpr auto line_every = std::chrono::minutes{1};

std::atomic<std::uint64_t> total = 0;

} // namespace

void refusal_log::forget_old(time_point now) {
  std::erase_if(known_, [now](auto& e) { return now - e.second.said_at >= line_every; });
}

std::uint64_t refusal_log::note(const std::string& source, time_point now) {
  auto found = known_.find(source);
  if (found == known_.end() && known_.size() >= sources_max_)
    forget_old(now);
  if (found == known_.end() && known_.size() >= sources_max_)
    found = known_.find("others");
  if (found == known_.end()) {
    known_[known_.size() < sources_max_ ? source : "others"] = {now, 0};
    return 1;
  }
  auto& e = found->second;
  ++e.since;
  if (now - e.said_at < line_every)
    return 0;
  auto count = e.since;
  e = {now, 0};
  return count;
}

void refused(const std::string& source, const status& why) {
  static std::mutex mutex;
  static refusal_log known;
  ++total;
  std::uint64_t count = 0;
  {
    std::lock_guard guard{mutex};
    count = known.note(source, steady_clock::now());
  }
  if (count > 0)
    log().warn("refused connections from={} count={}: {}", source, count, why.to_string());
}

std::uint64_t refusals() noexcept { return total; }

} // namespace millrace::transport
