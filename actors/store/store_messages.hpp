// The messages about models: store, load, describe, erase. They hold descriptors only.
#pragma once

#include <millrace/actors/load_messages.hpp>
#include <millrace/actors/provider_status.hpp>
#include <millrace/actors/service.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/model.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::actors {

/// Stores a model. The provider pulls the bytes behind `source`, or takes them from `eager` if they
/// are few.
struct store_request {
  model_spec spec;
  std::vector<described_layer> layers; // layers that the provider may not know yet
  bulk_handle source;                  // all tensors, one after the other, in layout order
  std::vector<std::uint8_t> eager;     // the bytes themselves; then `source` is empty
  bool checksums = true;
  std::uint32_t timeout_ms = 0;
  asker from = {};
};
MILLRACE_INSPECT(store_request, x.spec, x.layers, x.source, x.eager, x.checksums, x.timeout_ms)

struct store_receipt {
  std::string model;
  std::uint64_t version = 0;
  std::uint64_t size_bytes = 0;
  std::string provider;
  bool durable = false;
  bool checksums = false;
  std::string driver; // how the bytes were moved: "shm", "local", "eager"
  stage_times times;

  friend bool operator==(const store_receipt&, const store_receipt&) = default;
};
MILLRACE_INSPECT(
  store_receipt, x.model, x.version, x.size_bytes, x.provider, x.durable, x.checksums, x.driver,
  x.times)

struct describe_request {
  std::string model;
  std::uint64_t version = 0;
};
MILLRACE_INSPECT(describe_request, x.model, x.version)

struct list_request {
  std::string prefix;
  std::string after;
  std::uint32_t count_max = 1000;
};
MILLRACE_INSPECT(list_request, x.prefix, x.after, x.count_max)

struct model_list {
  std::vector<model_summary> models;

  friend bool operator==(const model_list&, const model_list&) = default;
};
MILLRACE_INSPECT(model_list, x.models)

struct erase_request {
  std::string model;
};
MILLRACE_INSPECT(erase_request, x.model)

struct pin_request {
  std::string model;
  bool pinned = false;
};
MILLRACE_INSPECT(pin_request, x.model, x.pinned)

struct resolve_request {
  std::vector<layer_id> ids;
};
MILLRACE_INSPECT(resolve_request, x.ids)

struct layer_list {
  std::vector<described_layer> layers;

  friend bool operator==(const layer_list&, const layer_list&) = default;
};
MILLRACE_INSPECT(layer_list, x.layers)

/// The models of a provider.
struct store_service
  : service<
      "models", 1,
      // Pulls the segments behind the handle into the bucket and publishes the model whole.
      // Errors: busy (in-flight bound), no_space, permission_denied, peer_lost, unknown_layers.
      method<store_request, store_receipt>,
      // Pushes the selected tensors into the caller's segments.
      // Errors: not_found, invalid_argument (before any byte moves), corrupt_data, peer_lost.
      method<load_request, load_receipt>,
      // Returns the record of a model, without its digests.
      method<describe_request, model_record>, method<list_request, model_list>,
      method<erase_request, done_reply>, method<pin_request, done_reply>,
      // Returns descriptions of layers by id (DStore, section 3).
      method<resolve_request, layer_list>,
      // Answers with the part of the status that concerns models.
      method<provider_status_request, provider_status>> {};

} // namespace millrace::actors
