// A driver that misbehaves by a seed, in every way that a network, a device or another driver may.
// Put between the fabric and a real driver by tests that run actors with many seeds.
#pragma once

#include "dice.hpp"

#include <millrace/core/clock.hpp>
#include <millrace/transport/driver.hpp>

#include <array>
#include <functional>
#include <list>
#include <memory>
#include <set>

namespace millrace::testing {

/// What happens to one transfer.
enum class fault : std::uint8_t {
  none,    // moves and reports at once
  delay,   // moves or reports later, out of order with others
  error,   // nothing moves
  partial, // a part of the bytes moves, then it reports an error
  late,    // reports an error; the bytes move afterwards, as a lost peer's may
  drop,    // neither moves nor reports until its peer is lost or `end_all`
  forget,  // like `drop`, but never reports: the completion is destroyed
  refuse,  // `unsupported`, before any byte moves
};
inline constexpr std::size_t fault_count = 8;
/// A number for each fault.
using fault_counts = std::array<std::uint64_t, fault_count>;

/// How often each fault happens, as weights.
struct fault_policy {
  std::array<std::uint32_t, fault_count> weights = {30, 25, 8, 8, 6, 5, 3, 3};
  std::chrono::milliseconds delay_max{700};

  std::uint32_t& weight_of(fault f) { return weights[static_cast<std::size_t>(f)]; }
};

inline fault_policy no_faults() { return {{1}, {}}; }

/// Decorates a driver that ends its transfers before `submit` returns. Single-threaded: time passes
/// and transfers end when the test says so.
class faulty_driver : public transport::driver {
public:
  faulty_driver(
    std::shared_ptr<transport::driver> inner, const fault_policy& policy, std::uint64_t seed,
    std::function<time_point()> now);
  ~faulty_driver() override;

  std::string_view name() const noexcept override { return inner_->name(); }
  transport::driver_capabilities capabilities() const noexcept override {
    return inner_->capabilities();
  }
  bool reaches(const peer_id& owner) const noexcept override {
    return !lost_.contains(owner) && inner_->reaches(owner);
  }
  void submit(transport::transfer t, completion<transport::transfer_report> done) override;
  void map(const bulk_handle& remote, access_mode how, completion<transport::mapped_region> done)
    override {
    inner_->map(remote, how, std::move(done));
  }
  void memory_made(const std::shared_ptr<transport::arena>& a) override { inner_->memory_made(a); }
  void invalidate(const std::byte* data, std::uint64_t size_bytes) override {
    inner_->invalidate(data, size_bytes);
  }

  /// Lets one of the due things happen; returns false if none is due.
  bool step();
  /// Loses a peer: its transfers end with `peer_lost` now, and some of their bytes still move
  /// later.
  void lose(const peer_id& peer);
  /// Ends all remaining transfers.
  void end_all();

  /// Returns the number of transfers whose memory may still be touched.
  std::size_t held() const noexcept { return waiting_.size(); }
  /// Adds how often each fault was drawn.
  void add_counts(fault_counts& to) const {
    for (std::size_t i = 0; i < fault_count; ++i)
      to[i] += counts_[i];
  }
  /// Returns the number of transfers that reported, each counted once.
  std::uint64_t ended() const noexcept { return ended_; }

private:
  using report = completion<transport::transfer_report>;

  struct waiting {
    fault what;
    peer_id peer;
    time_point due;
    transport::transfer move; // without ops once the bytes have moved
    report done;              // null when there is no report to make
    result<transport::transfer_report> outcome;
    bool moved = false;
  };
  using waiting_list = std::list<waiting>;

  fault draw();
  time_point soon();
  void keep(waiting w) { waiting_.push_back(std::move(w)); }
  result<transport::transfer_report> move_now(transport::transfer t);
  void move_some(transport::transfer t);
  void tell(const report& done, result<transport::transfer_report> outcome);
  void give_up(waiting& w);
  void end(waiting w);

  std::shared_ptr<transport::driver> inner_;
  fault_policy policy_;
  dice dice_;
  std::function<time_point()> now_;
  waiting_list waiting_;
  std::set<peer_id> lost_;
  fault_counts counts_{};
  std::uint64_t ended_ = 0;
};

} // namespace millrace::testing
