// What actors say to each other: descriptors only. One `inspect` each serves CAF, the wire and printing.
#pragma once

#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/model.hpp>
#include <millrace/storage/flush/flush_counters.hpp>
#include <millrace/transport/driver_report.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::actors {

/// Stores a model: pulls the bytes behind `source`, or takes them from `eager` when they are few.
struct store_request {
  model_spec spec;
  std::vector<described_layer> layers; // those the provider may not know yet
  bulk_handle source;                  // all tensors, one after the other, in layout order
  std::vector<std::uint8_t> eager;     // the bytes themselves; then `source` is empty
  bool checksums = true;
  std::uint32_t timeout_ms = 0;
};

/// Microseconds a provider spent in each stage.
struct stage_times {
  std::uint64_t queued_us = 0;
  std::uint64_t reserve_us = 0; // store: room found; load: model opened
  std::uint64_t move_us = 0;    // from the first byte asked for to the last one there
  std::uint64_t finish_us = 0;  // store: written on, published

  friend bool operator==(const stage_times&, const stage_times&) = default;
};

struct store_receipt {
  std::string model;
  std::uint64_t version = 0;
  std::uint64_t size_bytes = 0;
  std::string provider;
  bool durable = false;
  bool checksums = false;
  std::string driver; // what moved the bytes: "shm", "local", "eager"
  stage_times times;

  friend bool operator==(const store_receipt&, const store_receipt&) = default;
};

/// One tensor, or some of its rows, as the caller expects it.
struct selection {
  tensor_desc expected; // name, dtype, and the shape of what arrives
  bool rows = false;    // a range along the first dimension rather than the whole tensor
  std::uint64_t first_row = 0;

  friend bool operator==(const selection&, const selection&) = default;
};

/// Loads the selected tensors into `target`, which takes them one after the other.
struct load_request {
  std::string model;
  std::uint64_t version = 0; // 0: the newest
  std::vector<selection> selections;
  bulk_handle target; // without segments: send the bytes in the receipt (few only)
  std::uint32_t timeout_ms = 0;
};

struct load_receipt {
  std::string model;
  std::uint64_t version = 0;
  std::uint64_t size_bytes = 0;
  std::string provider;
  bool verified = false; // checksums were there and agreed
  std::string driver;
  stage_times times;
  std::vector<std::uint8_t> eager;

  friend bool operator==(const load_receipt&, const load_receipt&) = default;
};

struct describe_request {
  std::string model;
  std::uint64_t version = 0;
};

struct list_request {
  std::string prefix;
  std::string after;
  std::uint32_t count_max = 1000;
};

struct model_list {
  std::vector<model_summary> models;

  friend bool operator==(const model_list&, const model_list&) = default;
};

struct erase_request {
  std::string model;
};

struct pin_request {
  std::string model;
  bool pinned = false;
};

struct resolve_request {
  std::vector<layer_id> ids;
};

struct layer_list {
  std::vector<described_layer> layers;

  friend bool operator==(const layer_list&, const layer_list&) = default;
};

struct provider_status_request {
  std::uint8_t unused = 0;
};

struct provider_status {
  std::string name;
  std::string kind;
  std::string group;
  bool durable = false;
  std::uint64_t models = 0;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t evictions = 0;
  std::uint64_t in_flight = 0;
  std::uint64_t queued = 0;
  std::uint64_t stores = 0;
  std::uint64_t loads = 0;
  std::uint64_t failures = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t loaded_bytes = 0;
  bool checkpoints = false;     // it keeps some; the rest counts them
  std::uint64_t registered = 0; // shards with a job attached
  std::uint64_t saves_in_flight = 0;
  std::uint64_t saves_queued = 0;
  std::uint64_t saves = 0;
  std::uint64_t saves_failed = 0;
  std::uint64_t saved_bytes = 0;
  std::uint64_t restores = 0;
  std::uint64_t restored_bytes = 0;
  bool flushes = false; // it copies complete steps on
  storage::flush_counters flushed;

  friend bool operator==(const provider_status&, const provider_status&) = default;
};

struct done_reply {
  std::uint8_t unused = 0;

  friend bool operator==(const done_reply&, const done_reply&) = default;
};

// -- the node itself ----------------------------------------------------------------------------

struct directory_request {
  std::uint8_t unused = 0;
};

/// Where a provider is. Clients compute from these which one keeps a name.
struct provider_entry {
  std::string name;
  std::string node;
  std::string address;
  std::string kind;
  std::string group;
  std::uint32_t weight = 1;
  bool checksums = true;              // what stores use unless the caller says otherwise
  bool checkpoints = false;           // it keeps checkpoints
  std::vector<std::string> addresses; // all of its node's; `address` is the first

  friend bool operator==(const provider_entry&, const provider_entry&) = default;
};

/// A node of the cluster, with or without providers.
struct node_entry {
  std::string name;
  std::vector<std::string> addresses; // best first

  friend bool operator==(const node_entry&, const node_entry&) = default;
};

struct directory {
  std::string node;
  std::uint32_t eager_bytes_max = 0;
  std::vector<provider_entry> providers; // of the whole cluster
  std::vector<node_entry> nodes;

  friend bool operator==(const directory&, const directory&) = default;
};

struct node_status_request {
  std::uint8_t unused = 0;
};

struct peer_path {
  std::string peer;
  std::string driver;
  std::uint64_t bytes = 0;
  std::uint64_t transfers = 0;
  std::uint64_t failures = 0;
  bool chosen = false; // the next transfer with the peer goes this way
  std::uint64_t rate_bytes_per_s = 0;
  std::uint64_t fallbacks = 0;
  std::string last_reason; // of the last failure
  std::string carrier;     // the driver that moved the bytes for this one

  friend bool operator==(const peer_path&, const peer_path&) = default;
};

/// A place on the wire where former versions had a struct: they read one with nothing in it, and theirs is skipped.
struct former_struct {
  bool unused = false;

  friend bool operator==(const former_struct&, const former_struct&) = default;
};

struct node_status {
  std::string node;
  std::string address;
  std::string version;
  std::uint64_t pid = 0;
  std::uint64_t uptime_ms = 0;
  std::uint64_t connections = 0;
  std::uint64_t staging_capacity_bytes = 0;
  std::uint64_t staging_used_bytes = 0;
  std::vector<provider_status> providers;
  std::vector<peer_path> paths;
  std::vector<std::string> addresses; // all it listens on; `address` is the first
  former_struct rdma;                 // what `reports` say now
  std::vector<transport::driver_report> reports;

  friend bool operator==(const node_status&, const node_status&) = default;
};

#define MILLRACE_INSPECT(type, ...)                                                                \
  template <class Inspector>                                                                       \
  typename Inspector::result_type inspect(Inspector& f, type& x) {                                 \
    return f(__VA_ARGS__);                                                                         \
  }

MILLRACE_INSPECT(store_request, x.spec, x.layers, x.source, x.eager, x.checksums, x.timeout_ms)
MILLRACE_INSPECT(stage_times, x.queued_us, x.reserve_us, x.move_us, x.finish_us)
MILLRACE_INSPECT(
  store_receipt, x.model, x.version, x.size_bytes, x.provider, x.durable, x.checksums, x.driver,
  x.times)
MILLRACE_INSPECT(selection, x.expected, x.rows, x.first_row)
MILLRACE_INSPECT(load_request, x.model, x.version, x.selections, x.target, x.timeout_ms)
MILLRACE_INSPECT(
  load_receipt, x.model, x.version, x.size_bytes, x.provider, x.verified, x.driver, x.times,
  x.eager)
MILLRACE_INSPECT(describe_request, x.model, x.version)
MILLRACE_INSPECT(list_request, x.prefix, x.after, x.count_max)
MILLRACE_INSPECT(model_list, x.models)
MILLRACE_INSPECT(erase_request, x.model)
MILLRACE_INSPECT(pin_request, x.model, x.pinned)
MILLRACE_INSPECT(resolve_request, x.ids)
MILLRACE_INSPECT(layer_list, x.layers)
MILLRACE_INSPECT(provider_status_request, x.unused)
MILLRACE_INSPECT(
  provider_status, x.name, x.kind, x.group, x.durable, x.models, x.capacity_bytes, x.used_bytes,
  x.evictions, x.in_flight, x.queued, x.stores, x.loads, x.failures, x.stored_bytes, x.loaded_bytes,
  x.checkpoints, x.registered, x.saves_in_flight, x.saves_queued, x.saves, x.saves_failed,
  x.saved_bytes, x.restores, x.restored_bytes, x.flushes, x.flushed)
MILLRACE_INSPECT(done_reply, x.unused)
MILLRACE_INSPECT(directory_request, x.unused)
MILLRACE_INSPECT(
  provider_entry, x.name, x.node, x.address, x.kind, x.group, x.weight, x.checksums, x.checkpoints,
  x.addresses)
MILLRACE_INSPECT(node_entry, x.name, x.addresses)
MILLRACE_INSPECT(directory, x.node, x.eager_bytes_max, x.providers, x.nodes)
MILLRACE_INSPECT(node_status_request, x.unused)
MILLRACE_INSPECT(
  peer_path, x.peer, x.driver, x.bytes, x.transfers, x.failures, x.chosen, x.rate_bytes_per_s,
  x.fallbacks, x.last_reason, x.carrier)
MILLRACE_INSPECT(former_struct, x.unused)
MILLRACE_INSPECT(
  node_status, x.node, x.address, x.version, x.pid, x.uptime_ms, x.connections,
  x.staging_capacity_bytes, x.staging_used_bytes, x.providers, x.paths, x.addresses, x.rdma,
  x.reports)

#undef MILLRACE_INSPECT

} // namespace millrace::actors
