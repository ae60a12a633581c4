// Calls that go to all rails of a link.
#include <millrace/transport/verbs/rail_set.hpp>
#include <millrace/transport/verbs/transfer_plan.hpp>

#include <algorithm>

namespace millrace::transport::verbs {

void rail_set::close() {
  for (auto& r : rails_)
    r->close();
}

rail* rail_set::find(std::uint32_t pair) const noexcept {
  return pair < rails_.size() ? rails_[pair].get() : nullptr;
}

bool rail_set::some_up() const noexcept {
  return std::any_of(rails_.begin(), rails_.end(), [](auto& r) { return r->up(); });
}

bool rail_set::some_hopeful() const noexcept {
  return std::any_of(rails_.begin(), rails_.end(), [](auto& r) { return r->hopeful(); });
}

// The reason why the rails ended says nothing about the transfers, since another driver may move
// them.
status rail_set::last_error(const std::string& peer) const {
  for (auto& r : rails_)
    if (!r->last_error().ok())
      return {errc::unavailable, r->last_error().detail()};
  return {errc::unavailable, "no RDMA device reaches " + peer};
}

std::vector<live_pair> rail_set::live_pairs(const device_list& devices) const {
  std::vector<live_pair> out;
  for (auto& r : rails_)
    if (r->live())
      out.push_back({r->pair(), r->generation(), r->device_index(), devices[r->device_index()]});
  return out;
}

std::vector<verbs_rail_stats> rail_set::stats() const {
  std::vector<verbs_rail_stats> out;
  for (auto& r : rails_)
    out.push_back(r->stats());
  return out;
}

bool rail_set::serve() {
  bool happened = false;
  for (auto& r : rails_)
    happened |= r->serve();
  return happened;
}

void rail_set::arm() {
  for (auto& r : rails_)
    r->arm();
}

bool rail_set::tick(time_point now) {
  bool soon = false;
  for (auto& r : rails_)
    soon |= r->tick(now);
  return soon;
}

void rail_set::port_lost(const device& d) {
  for (auto& r : rails_)
    if (&r->port() == &d && r->live())
      r->lose({errc::unavailable, "the port went down"});
}

void rail_set::balance(std::uint32_t depth_max) {
  std::vector<std::uint64_t> rates;
  for (auto& r : rails_)
    rates.push_back(r->rate());
  auto most = depths(rates, depth_max);
  for (std::size_t i = 0; i < rails_.size(); ++i)
    rails_[i]->set_depth(most[i]);
}

} // namespace millrace::transport::verbs
