// Every chunk at a member is an event, and so is every port that becomes free.
#include "simulated_broadcast.hpp"

#include <algorithm>
#include <utility>

namespace millrace::testing {

using namespace millrace::actors;

simulated_broadcast::simulated_broadcast(
  const broadcast_costs& costs, std::vector<broadcast_plan> plans, std::uint64_t bytes,
  std::uint64_t chunks, broadcast_memory memory)
  : costs_(costs), plans_(std::move(plans)), chunks_(chunks),
    chunk_bytes_(static_cast<double>(bytes) / static_cast<double>(chunks)), memory_(memory) {
  for (auto& role : plans_.front().roles)
    hosts_[role.host].waiting.resize(plans_.size());
  for (auto& plan : plans_)
    had_.emplace_back(plan.roles.size(), 0);
}

broadcast_outcome simulated_broadcast::run() {
  for (std::size_t i = 0; i < plans_.size(); ++i)
    begin(i);
  while (!events_.empty()) {
    auto e = events_.top();
    events_.pop();
    now_ = e.at;
    if (!e.frees) {
      arrive(e);
      continue;
    }
    auto at = plans_[e.plan].roles[e.member].host;
    hosts_[at].sends = false;
    send_next(at);
  }
  for (auto& members : had_)
    for (auto chunks : members)
      outcome_.whole &= chunks == chunks_;
  return outcome_;
}

void simulated_broadcast::add(
  double at, std::size_t plan, std::uint32_t member, std::uint64_t chunk, bool frees) {
  events_.push({at, ++order_, plan, member, chunk, frees});
}

// The root has its chunks from the beginning, or copies them from its GPU for a multicast.
void simulated_broadcast::begin(std::size_t plan) {
  auto& p = plans_[plan];
  auto is_copied =
    memory_ == broadcast_memory::gpu && p.algorithm == broadcast_algorithm::multicast;
  auto copy_s = is_copied ? chunk_bytes_ / costs_.host_to_gpu_bytes_per_s : 0;
  for (std::uint64_t chunk = 0; chunk < chunks_; ++chunk)
    add(static_cast<double>(chunk + 1) * copy_s, plan, p.root, chunk, false);
}

void simulated_broadcast::arrive(const event& e) {
  outcome_.whole &= had_[e.plan][e.member]++ == e.chunk;
  outcome_.seconds = now_;
  auto& plan = plans_[e.plan];
  auto& role = plan.roles[e.member];
  auto sends = plan.algorithm == broadcast_algorithm::multicast
    ? std::min<std::size_t>(role.sends_to.size(), 1)
    : role.sends_to.size();
  for (std::size_t i = 0; i < sends; ++i)
    hosts_[role.host].waiting[e.plan].push_back({e.plan, e.member, role.sends_to[i], e.chunk});
  copy_within_host(e, role);
  send_next(role.host);
}

void simulated_broadcast::copy_within_host(const event& e, const broadcast_role& role) {
  if (role.read_by.empty())
    return;
  auto& until = hosts_[role.host].copies_until;
  auto bytes = static_cast<double>(role.read_by.size()) * chunk_bytes_;
  until = std::max(until, now_) + bytes / costs_.host_copy_bytes_per_s;
  for (auto reader : role.read_by)
    add(until, e.plan, reader, e.chunk, false);
}

void simulated_broadcast::send_next(std::uint32_t of_host) {
  auto& h = hosts_[of_host];
  for (std::size_t i = 0; i < plans_.size() && !h.sends; ++i) {
    auto& waiting = h.waiting[(h.turn + i) % plans_.size()];
    if (waiting.empty())
      continue;
    auto next = waiting.front();
    waiting.pop_front();
    h.turn = (next.plan + 1) % plans_.size();
    h.sends = true;
    auto& plan = plans_[next.plan];
    auto sent_at = now_ + send_s(plan);
    add(sent_at, next.plan, next.from, next.chunk, true);
    if (plan.algorithm != broadcast_algorithm::multicast)
      deliver(next.plan, next.to, next.chunk, sent_at);
    else
      for (auto to : plan.roles[next.from].sends_to)
        deliver(next.plan, to, next.chunk, sent_at);
  }
}

void simulated_broadcast::deliver(
  std::size_t plan, std::uint32_t to, std::uint64_t chunk, double at) {
  auto& until = hosts_[plans_[plan].roles[to].host].receives_until;
  until = std::max(at + costs_.latency_s, until + chunk_bytes_ / costs_.host_bytes_per_s);
  add(until, plan, to, chunk, false);
}

double simulated_broadcast::send_s(const broadcast_plan& plan) const {
  if (plan.algorithm != broadcast_algorithm::multicast) {
    auto rate = memory_ == broadcast_memory::gpu ? costs_.gpu_bytes_per_s : costs_.host_bytes_per_s;
    return costs_.setup_s + chunk_bytes_ / rate;
  }
  auto packet_s = costs_.packet_setup_s + multicast_overhead_s(costs_, plan.leaders.size()) +
    costs_.packet_bytes / costs_.host_bytes_per_s;
  return chunk_bytes_ / costs_.packet_bytes * packet_s;
}

} // namespace millrace::testing
