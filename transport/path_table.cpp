// Counts transfers and remembers failures.
#include <millrace/transport/memory/region.hpp>
#include <millrace/transport/path_table.hpp>

#include <algorithm>

namespace millrace::transport {

namespace {

std::int64_t seconds_between(time_point from, time_point to) {
  return std::chrono::duration_cast<std::chrono::seconds>(to - from).count();
}

} // namespace

void rate_meter::add(std::uint64_t bytes, time_point now) {
  if (first_ == time_point{})
    first_ = now;
  auto number = std::max<std::int64_t>(seconds_between(first_, now), 0);
  auto& s = seconds_[static_cast<std::size_t>(number % window_s)];
  if (s.number != number)
    s = {number, 0};
  s.bytes += bytes;
}

std::uint64_t rate_meter::bytes_per_s(time_point now) const {
  if (first_ == time_point{})
    return 0;
  auto number = std::max<std::int64_t>(seconds_between(first_, now), 0);
  std::uint64_t total = 0;
  for (auto& s : seconds_)
    if (s.number >= 0 && s.number > number - window_s)
      total += s.bytes;
  return total / static_cast<std::uint64_t>(std::min(number + 1, window_s));
}

void path_table::peer_opened(const peer_id& peer, const std::string& name) {
  std::lock_guard guard{mutex_};
  auto& p = peers_[peer];
  p.name = name;
  ++p.channels;
}

void path_table::peer_closed(const peer_id& peer) {
  std::lock_guard guard{mutex_};
  auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.channels == 0 || --found->second.channels > 0)
    return;
  for (auto& [driver, state] : found->second.drivers)
    out_count_ -= state.is_out ? 1 : 0;
  peers_.erase(found);
}

bool path_table::is_open(const peer_id& peer) const {
  if (peer == this_peer())
    return true;
  std::lock_guard guard{mutex_};
  auto found = peers_.find(peer);
  return found != peers_.end() && found->second.channels > 0;
}

std::string path_table::name_of(const peer_id& peer) const {
  std::lock_guard guard{mutex_};
  auto found = peers_.find(peer);
  return found == peers_.end() || found->second.channels == 0 ? "this process" : found->second.name;
}

std::string path_table::last_reason(const peer_id& peer, std::size_t driver) const {
  std::lock_guard guard{mutex_};
  auto p = peers_.find(peer);
  if (p == peers_.end())
    return {};
  auto d = p->second.drivers.find(driver);
  return d == p->second.drivers.end() ? std::string{} : d->second.last_reason;
}

bool path_table::is_out(const peer_id& peer, std::size_t driver) const {
  if (out_count_ == 0)
    return false;
  std::lock_guard guard{mutex_};
  auto p = peers_.find(peer);
  if (p == peers_.end())
    return false;
  auto d = p->second.drivers.find(driver);
  return d != p->second.drivers.end() && d->second.is_out &&
    steady_clock::now() < d->second.out_until;
}

// A transfer that ends after its peer's last channel is counted, too, but makes no entry of its
// own.
path_table::peer_state& path_table::counted(const peer_id& peer) {
  auto known = peers_.find(peer);
  if (known != peers_.end())
    return known->second;
  return peer == this_peer() ? peers_[peer] : gone_;
}

bool path_table::moved(
  const peer_id& peer, std::size_t driver, std::uint64_t bytes, std::string_view carrier) {
  auto now = steady_clock::now();
  std::lock_guard guard{mutex_};
  auto& d = counted(peer).drivers[driver];
  ++d.transfers;
  d.bytes += bytes;
  d.rate.add(bytes, now);
  d.carrier = carrier;
  if (!d.is_out)
    return false;
  d.is_out = false;
  --out_count_;
  return true;
}

bool path_table::failed(const peer_id& peer, std::size_t driver, failure how, const status& why) {
  std::lock_guard guard{mutex_};
  auto& p = counted(peer);
  auto& d = p.drivers[driver];
  ++d.failures;
  d.last_reason = why.to_string();
  if (how == failure::final || &p == &gone_)
    return false;
  ++d.fallbacks;
  if (how == failure::refused)
    return !std::exchange(d.refusal_told, true);
  d.out_until = steady_clock::now() + retry_after_;
  if (d.is_out)
    return false;
  d.is_out = true;
  ++out_count_;
  return true;
}

std::vector<path_table::row> path_table::rows() const {
  std::lock_guard guard{mutex_};
  std::vector<row> out;
  for (auto& [id, p] : peers_)
    out.push_back({id, p.channels == 0 ? "this process" : p.name, p.drivers});
  if (!gone_.drivers.empty())
    out.push_back({peer_id{}, "peers that are gone", gone_.drivers});
  return out;
}

} // namespace millrace::transport
