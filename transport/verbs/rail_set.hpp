// The rails to one peer. Owned by `peer_link`; used by both of its sides.
#pragma once

#include <millrace/transport/verbs/grant_book.hpp>
#include <millrace/transport/verbs/rail.hpp>

#include <memory>
#include <vector>

namespace millrace::transport::verbs {

/// Holds the rails of one link.
/// Threads: the completion thread.
class rail_set {
public:
  void add(std::unique_ptr<rail> r) { rails_.push_back(std::move(r)); }
  void close();

  auto begin() const noexcept { return rails_.begin(); }
  auto end() const noexcept { return rails_.end(); }
  std::size_t size() const noexcept { return rails_.size(); }
  /// Returns null if there is no such pair.
  rail* find(std::uint32_t pair) const noexcept;

  bool some_up() const noexcept;
  bool some_hopeful() const noexcept;
  /// Returns why none of the rails works.
  status last_error(const std::string& peer) const;
  /// Returns the queue pairs over which keys can be bound now.
  std::vector<live_pair> live_pairs(const device_list& devices) const;
  std::vector<verbs_rail_stats> stats() const;

  bool serve();
  void arm();
  bool tick(time_point now);
  void port_lost(const device& d);
  /// Lets faster rails have more requests in flight.
  void balance(std::uint32_t depth_max);

private:
  std::vector<std::unique_ptr<rail>> rails_;
};

} // namespace millrace::transport::verbs
