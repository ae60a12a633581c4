// The fabric's record of every driver with every peer: bytes, rates, failures. Owned by the fabric.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/core/ids.hpp>
#include <millrace/core/status.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::transport {

/// Measures bytes per second over the last ten seconds, or since the first byte if that is shorter.
class rate_meter {
public:
  void add(std::uint64_t bytes, time_point now);
  std::uint64_t bytes_per_s(time_point now) const;

private:
  static constexpr std::int64_t window_s = 10;
  struct second {
    std::int64_t number = -1; // counted from the first byte
    std::uint64_t bytes = 0;
  };

  std::array<second, window_s> seconds_{};
  time_point first_{};
};

/// The state of one driver with one peer.
struct path_state {
  std::uint64_t bytes = 0;
  std::uint64_t transfers = 0;
  std::uint64_t failures = 0;
  std::uint64_t fallbacks = 0; // failed transfers that another driver took over
  std::string last_reason;     // the reason of the last failure
  std::string_view carrier;    // moved the last transfer; names live as long as the fabric
  rate_meter rate;
  time_point out_until{}; // until then it is not the first choice
  bool is_out = false;    // it failed, and has not worked since
  bool refusal_told = false;
};

/// Counts transfers and remembers failures. Its size is bounded by the connected peers times the
/// drivers.
/// Threads: any.
class path_table {
public:
  explicit path_table(std::chrono::milliseconds retry_after) : retry_after_(retry_after) {}

  void peer_opened(const peer_id& peer, const std::string& name);
  void peer_closed(const peer_id& peer);
  /// Returns true for this process, and while a channel to the peer is open.
  bool is_open(const peer_id& peer) const;
  std::string name_of(const peer_id& peer) const;
  /// Returns why the driver last failed with the peer; empty if it never did.
  std::string last_reason(const peer_id& peer, std::size_t driver) const;

  /// Returns true if the driver failed with the peer a short while ago.
  bool is_out(const peer_id& peer, std::size_t driver) const;

  /// Returns true if this is the first success after a failure.
  bool moved(
    const peer_id& peer, std::size_t driver, std::uint64_t bytes, std::string_view carrier);

  /// The effect of a failure on the choice for later transfers.
  enum class failure {
    final,   // no other driver could take over: the driver keeps its place
    refused, // the driver does not do this transfer, but does others
    broken,  // leave the driver out for a while
  };
  /// Returns true if the failure is worth a line in the log.
  bool failed(const peer_id& peer, std::size_t driver, failure how, const status& why);

  struct row {
    peer_id peer;
    std::string name;
    std::map<std::size_t, path_state> drivers;
  };
  /// Returns a row for every peer that is connected and for this process, and one for all peers
  /// that are gone.
  std::vector<row> rows() const;

private:
  struct peer_state {
    std::string name;
    std::size_t channels = 0;
    std::map<std::size_t, path_state> drivers;
  };

  peer_state& counted(const peer_id& peer);

  const std::chrono::milliseconds retry_after_;
  // Mostly 0: then choosing needs no lock.
  std::atomic<std::size_t> out_count_ = 0;
  mutable std::mutex mutex_;
  std::map<peer_id, peer_state> peers_;
  peer_state gone_; // counts of peers that are gone
};

} // namespace millrace::transport
