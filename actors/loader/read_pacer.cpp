// Measures stages, and computes the limit from them.
#include <millrace/actors/loader/read_pacer.hpp>

#include <algorithm>

namespace millrace::actors {

namespace {

constexpr std::chrono::seconds measured_for{10};
constexpr double gain_of_measured = 2; // over the product of the rate and the latency
constexpr double late_factor = 2.5;    // of the time expected; a later stage waited in a queue
constexpr double share_min = 1.0 / 16;
constexpr double share_step = 1.0 / 16; // by which it grows with each stage that comes in time

double seconds(time_point::duration d) { return std::chrono::duration<double>(d).count(); }

} // namespace

void read_pacer::recent::add(const measured& one, time_point now) {
  if (now >= turns_at_) {
    if (coming_.took_s > 0)
      best_ = coming_;
    coming_ = {};
    turns_at_ = now + measured_for;
  }
  for (auto* known : {&best_, &coming_})
    if (known->took_s == 0 || is_better_(one, *known))
      *known = one;
}

read_pacer::read_pacer(const read_options& options)
  : options_(options),
    limit_bytes_(options.inflight_bytes_min), shortest_{[](auto& one, auto& than) {
      return one.took_s < than.took_s;
    }},
    fastest_{[](auto& one, auto& than) { return one.rate() > than.rate(); }} {}

void read_pacer::wants_from(const peer_id& server, time_point now) {
  servers_[server] = now;
  std::erase_if(servers_, [&](auto& one) { return one.second + measured_for < now; });
  set_limit();
}

std::uint64_t read_pacer::stage_bytes() const noexcept {
  return std::max<std::uint64_t>(limit_bytes_ / options_.stages, 1);
}

std::optional<read_stage> read_pacer::next(std::span<const std::uint64_t> waiting, time_point now) {
  auto room = limit_bytes_ - std::min(limit_bytes_, inflight_bytes_);
  auto most = std::min(room, stage_bytes());
  read_stage out;
  while (out.requests < waiting.size() && waiting[out.requests] <= most - out.bytes)
    out.bytes += waiting[out.requests++];
  // A stage has one request at least, however large, if nothing else is in flight.
  auto fits_alone = !waiting.empty() && (running_.empty() || waiting.front() <= room);
  if (out.requests == 0 && fits_alone)
    out = {0, 1, waiting.front()};
  // Less than a stage is not worth a message while others are in flight, unless it is the end.
  auto is_short = out.requests < waiting.size() && room < stage_bytes() && !running_.empty();
  if (out.requests == 0 || is_short)
    return std::nullopt;
  out.number = ++last_stage_;
  inflight_bytes_ += out.bytes;
  running_.emplace(out.number, running_stage{out.bytes, inflight_bytes_, now, arrived_bytes_});
  return out;
}

void read_pacer::ended(std::uint64_t stage, time_point now, bool moved) {
  auto found = running_.extract(stage);
  if (found.empty())
    return;
  inflight_bytes_ -= found.mapped().bytes;
  if (!moved)
    return;
  arrived_bytes_ += found.mapped().bytes;
  auto took_s = std::max(seconds(now - found.mapped().begun), 1e-9);
  adapt(stage, found.mapped(), took_s);
  shortest_.add({static_cast<double>(found.mapped().bytes), took_s}, now);
  auto arrived = static_cast<double>(arrived_bytes_ - found.mapped().arrived_before);
  fastest_.add({arrived, took_s}, now);
  set_limit();
}

// All stages that are in flight have waited in the same queue, so they count once.
void read_pacer::adapt(std::uint64_t number, const running_stage& stage, double took_s) {
  auto rate = fastest_.best().rate();
  if (rate == 0)
    return;
  auto expected_s = shortest_.best().took_s + static_cast<double>(stage.with_bytes) / rate;
  if (took_s <= late_factor * expected_s) {
    share_ = std::min(share_ + share_step, 1.0);
  } else if (number > halved_at_) {
    share_ = std::max(share_ / 2, share_min);
    halved_at_ = last_stage_;
  }
}

// The shortest stage was on its way, and then its bytes arrived one after the other.
double read_pacer::latency_s() const noexcept {
  auto& [bytes, took_s] = shortest_.best();
  return std::max(took_s - bytes / fastest_.best().rate(), took_s / 4);
}

bool read_pacer::has_one_server() const noexcept {
  return servers_.size() == 1 && options_.bandwidth_bytes_per_s == 0;
}

void read_pacer::set_limit() {
  if (has_one_server()) {
    limit_bytes_ = options_.inflight_bytes_max;
    return;
  }
  if (fastest_.best().took_s == 0) {
    limit_bytes_ = options_.inflight_bytes_min;
    return;
  }
  auto configured = static_cast<double>(options_.bandwidth_bytes_per_s) / options_.processes;
  auto rate = configured > 0 ? configured : gain_of_measured * fastest_.best().rate();
  auto most = static_cast<double>(options_.inflight_bytes_max);
  auto wanted = std::min(rate * latency_s() * share_, most);
  limit_bytes_ = std::max(static_cast<std::uint64_t>(wanted), options_.inflight_bytes_min);
}

} // namespace millrace::actors
