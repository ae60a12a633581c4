// The status of a node, as `millrace status` shows it. Nodes send it; programs get it from
// `client::status`.
#pragma once

#include <millrace/core/driver_report.hpp>
#include <millrace/core/inspect.hpp>
#include <millrace/core/provider_status.hpp>
#include <millrace/core/working_set.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

/// The staging memory of one provider, in blocks that the staging manager grants.
struct staging_status {
  std::string name; // the provider, or "PROVIDER snapshots"
  std::uint64_t quota_bytes = 0;
  std::uint64_t budget_bytes = 0; // granted
  std::uint64_t used_bytes = 0;   // the part of the budget that is lent
  std::uint64_t waiting = 0;      // requests
  std::uint64_t waits = 0;        // requests that had to wait, since the start
  std::uint64_t waited_us = 0;    // all of them together
  std::uint64_t lent_bytes = 0;   // since the start
  std::uint64_t lent_count = 0;
  std::uint64_t calls = 0; // the calls of the manager since the start

  friend bool operator==(const staging_status&, const staging_status&) = default;
};
MILLRACE_INSPECT(
  staging_status, x.name, x.quota_bytes, x.budget_bytes, x.used_bytes, x.waiting, x.waits,
  x.waited_us, x.lent_bytes, x.lent_count, x.calls)

/// What a node has and does, with its providers.
struct node_status {
  std::string node; // its name
  std::string address;
  std::string version; // of Millrace
  std::uint64_t pid = 0;
  std::uint64_t uptime_ms = 0;
  std::uint64_t connections = 0; // now
  std::uint64_t staging_capacity_bytes = 0;
  std::uint64_t staging_used_bytes = 0;
  std::vector<provider_status> providers;
  std::vector<path_stats> paths;
  std::vector<std::string> addresses; // all addresses at which it listens; `address` is the first
  std::vector<driver_report> reports; // of the drivers that have something to say
  std::uint64_t requests = 0;         // requests of peers under way
  std::uint64_t requests_bytes = 0;
  std::uint64_t buffers_bytes = 0;     // in frames that wait to be sent or have arrived in part
  std::uint64_t stalls = 0;            // the I/O loop's, longer than `node.stall_warning`
  std::vector<staging_status> staging; // one for each lender
  /// A defect has ended so many of the actors that serve all providers. `down` says why one of them
  /// is not started anew.
  std::uint64_t actor_failures = 0;
  std::string last_failure;
  std::string down; // empty: all are there
  data_status data;

  friend bool operator==(const node_status&, const node_status&) = default;

  template <field_inspector Inspector>
  friend typename Inspector::result_type inspect(Inspector& f, node_status& x) {
    return f(
      x.node, x.address, x.version, x.pid, x.uptime_ms, x.connections, x.staging_capacity_bytes,
      x.staging_used_bytes, x.providers, x.paths, x.addresses, x.former_, x.reports, x.requests,
      x.requests_bytes, x.buffers_bytes, x.stalls, x.staging, x.actor_failures, x.last_failure,
      x.down, x.data);
  }

private:
  // Keeps the place on the wire where former versions had a struct. They read an empty struct here,
  // and theirs is skipped.
  struct former_struct {
    bool unused = false;

    friend bool operator==(const former_struct&, const former_struct&) = default;

    template <field_inspector Inspector>
    friend typename Inspector::result_type inspect(Inspector& f, former_struct& x) {
      return f(x.unused);
    }
  };
  former_struct former_; // about RDMA devices; replaced by `reports`
};

constexpr void is_message(const node_status&) {}

} // namespace millrace
