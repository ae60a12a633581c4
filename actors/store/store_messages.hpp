// The messages about models: store, load, describe, erase. Sent by clients; they hold descriptors
// only.
#pragma once

#include <millrace/actors/load_messages.hpp>
#include <millrace/actors/provider_status.hpp>
#include <millrace/actors/service.hpp>
#include <millrace/actors/several.hpp>
#include <millrace/actors/watch_messages.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/kept_blocks.hpp>
#include <millrace/core/model.hpp>
#include <millrace/core/placement.hpp>
#include <millrace/core/receipts.hpp>

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
  small_bytes eager;                   // the bytes themselves; then `source` is empty
  bool checksums = true;
  std::uint32_t timeout_ms = 0;
  asker from = {};
  placement_claim by = {};
  /// The number of the newest version that another provider has. The new one gets a larger number.
  std::uint64_t version_after = 0;
};
MILLRACE_INSPECT(
  store_request, x.spec, x.layers, x.source, x.eager, x.checksums, x.timeout_ms, x.by,
  x.version_after)

using store_many_request = several<store_request>;
using load_many_request = several<load_request>;

struct describe_request {
  std::string model;
  std::uint64_t version = 0;
  placement_claim by = {};
  std::uint32_t timeout_ms = 0; // how long the client waits; it does not travel
};
MILLRACE_INSPECT(describe_request, x.model, x.version, x.by)

struct list_request {
  std::string prefix;
  std::string after;
  std::uint32_t count_max = 1000;
  std::uint32_t timeout_ms = 0; // as above
};
MILLRACE_INSPECT(list_request, x.prefix, x.after, x.count_max)

struct model_list {
  std::vector<model_summary> models;

  friend bool operator==(const model_list&, const model_list&) = default;
};
MILLRACE_INSPECT(model_list, x.models)

struct erase_request {
  std::string model;
  placement_claim by = {};
  bool mark = false; // leaves a mark, since a provider that is away may have an older version
  std::uint64_t version = 0;    // only this one; 0: any. Not with `mark`
  std::uint32_t timeout_ms = 0; // as above
};
MILLRACE_INSPECT(erase_request, x.model, x.by, x.mark, x.version)

struct pin_request {
  std::string model;
  bool pinned = false;
  placement_claim by = {};
  std::uint32_t timeout_ms = 0; // as above
};
MILLRACE_INSPECT(pin_request, x.model, x.pinned, x.by)

struct resolve_request {
  std::vector<layer_id> ids;
  std::uint32_t timeout_ms = 0; // as above
};
MILLRACE_INSPECT(resolve_request, x.ids)

struct layer_list {
  std::vector<described_layer> layers;

  friend bool operator==(const layer_list&, const layer_list&) = default;
};
MILLRACE_INSPECT(layer_list, x.layers)

/// Asks what a provider knows of a group, and which version of a model it has. Without a model it
/// asks only for the former.
struct locate_request {
  std::string group;
  std::string model;
  std::uint32_t timeout_ms = 0; // as above
};
MILLRACE_INSPECT(locate_request, x.group, x.model)

/// With which of the other providers of its group a provider has compared its views since it
/// started. It may have been taken out of the group before, and models stored or erased without it.
/// `with_some` is said only while a comparison is due. A value that a client does not know, above
/// the last, is as `with_none`; so a further one goes to the end, and asks for as much.
enum class views_compared : std::uint8_t { with_all, with_some, with_none };

struct location {
  std::string id; // the provider's
  bool forgets = false;
  group_history history;
  std::vector<group_member> proposal; // members, without ids, of a view that its file asks for
  bool has_model = false;             // what follows: of the model
  bool erased = false;                // it has only the mark of an erased one
  std::uint64_t view = 0;
  std::uint64_t version = 0;
  std::uint64_t stored_at_ns = 0;
  views_compared compared = views_compared::with_all; // its views, not the model's
  std::uint64_t start = 0; // a number that the provider drew when it started

  friend bool operator==(const location&, const location&) = default;
};
MILLRACE_INSPECT(
  location, x.id, x.forgets, x.history, x.proposal, x.has_model, x.erased, x.view, x.version,
  x.stored_at_ns, x.compared, x.start)

/// Tells a provider the views of a group, and by `history.settled` which one all providers know.
struct adopt_request {
  group_history history;
  bool asked_all = false;  // every provider that may know a newer view was asked for it
  std::uint64_t start = 0; // `location::start`: they were asked after this start
};
MILLRACE_INSPECT(adopt_request, x.history, x.asked_all, x.start)

/// The models of a provider.
///
/// A request with a model and a `placement_claim` is refused with `unsupported_version` when other
/// providers of the group must be asked, or when the claim is of another view: `locate_request`
/// then says which.
struct store_service
  : service<
      "models", 1,
      // Pulls the segments behind the handle into the bucket and publishes the model whole.
      // Errors: busy (in-flight bound), no_space, permission_denied, peer_lost, unknown_layers.
      method<store_request, store_receipt>,
      // Pushes the selected tensors into the caller's segments.
      // Errors: not_found, invalid_argument (before any byte moves), corrupt_data, peer_lost.
      method<load_request, load_reply>,
      // Returns the record of a model, without its digests.
      method<describe_request, model_record>, method<list_request, model_list>,
      method<erase_request, done_reply>, method<pin_request, done_reply>,
      // Returns descriptions of layers by id (DStore, section 3).
      method<resolve_request, layer_list>,
      // Answers with the part of the status that concerns models.
      method<provider_status_request, provider_status>, method<locate_request, location>,
      // Keeps the views, refuses changes under older ones, and answers when those under way are
      // over. Errors: busy when it knows a view that the request lacks.
      method<adopt_request, done_reply>,
      // Answer when all their items have ended, each with its own outcome, in the order given.
      // Errors: invalid_argument for more than `requests_together_max` items.
      method<store_many_request, outcomes_of<store_receipt>>,
      method<load_many_request, outcomes_of<load_reply>>,
      // Parks a watch of a model at the provider that the next store of it goes to. It ends with
      // `unsupported_version` when the group's view changes.
      // Errors: busy (the share of `limits.watches_max`).
      method<watch_request, done_reply>, method<unwatch_request, done_reply>,
      method<watch_news_request, watch_news>> {};

} // namespace millrace::actors
