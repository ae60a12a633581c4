// The tensor repository as a program sees it: store, load, describe, list, erase.
// Programs get one from `client::repository`; every call returns a future.
#pragma once

#include <millrace/core/cluster_entries.hpp>
#include <millrace/core/future.hpp>
#include <millrace/core/model.hpp>
#include <millrace/core/model_graph.hpp>
#include <millrace/core/receipts.hpp>
#include <millrace/core/status.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/runtime/client/listed.hpp>
#include <millrace/runtime/client/load_target.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

namespace runtime {
class client_core;
}

using receipt = store_receipt;

struct store_options {
  bool pinned = false;                // never evicted
  std::optional<bool> checksums = {}; // empty: as the provider is configured
  std::vector<std::pair<std::string, std::string>> metadata = {};
  std::chrono::milliseconds timeout{0}; // of the whole store; 0: the client's request timeout
};

/// A store whose tensors may change before it ends.
struct pending_store {
  /// Ready when the tensors may be changed. Fails with the store if that fails before.
  future<void> staged;
  future<receipt> stored;
};

struct load_options {
  std::uint64_t version = 0;            // 0: the newest
  std::chrono::milliseconds timeout{0}; // of the whole load; 0: the client's request timeout
};

/// One model of `repository::store_many`.
struct model_to_store {
  std::string model;
  std::vector<tensor_view> tensors;
  /// Read during the call only. Null: the names of the tensors group them into a chain of layers.
  const model_graph* graph = nullptr;
  store_options options = {};
};

/// One model of `repository::load_many`.
struct model_to_load {
  std::string model;
  std::vector<load_target> targets;
  load_options options = {};
};

/// The receipt of a load into one buffer, and where each tensor lies.
struct loaded_tensors {
  load_receipt receipt;
  std::vector<tensor_view> tensors;
};

/// The description of a stored model.
struct model_info {
  model_record record; // without digests, which stay with the provider
  compact_graph graph; // empty when the model was stored without one
  std::vector<std::shared_ptr<const layer_description>> layers; // one for each id of `graph`
  std::string provider;
};

/// Models of one group of providers.
/// Every call returns at once. Memory passed as an argument must outlive the operation. Copies
/// share the client.
/// Time:    each call ends by its timeout, whatever providers do; those without one in their
///          options have the client's request timeout. It bounds all that the call asks for.
/// Errors:  common to all calls: `peer_lost` and `unavailable` naming the provider's address;
///          `deadline_exceeded`. After these three a change may have happened, or still happen. A
///          service that stood still does not begin what its asker has given up.
/// Threads: any.
class repository {
public:
  repository(std::shared_ptr<runtime::client_core> core, std::string group);

  /// Stores a model under a name, whole or not at all, and replaces an older version. The tensors
  /// must stay unchanged until the future is ready. When it is stored, and the time is over before
  /// an older version elsewhere is removed, the error says so.
  ///
  /// `graph` is the architecture. Its tensors ("<label>.<role>") must be those given, in any order.
  /// Errors:  `invalid_argument`, `no_space`, `busy`.
  /// Source:  DStore, sections 3 to 5.
  future<receipt> store(
    const std::string& model, const model_graph& graph, std::vector<tensor_view> tensors,
    store_options options = {});

  /// Stores tensors whose architecture is unknown: their names group them into a chain of layers.
  future<receipt> store(
    const std::string& model, std::vector<tensor_view> tensors, store_options options = {});

  /// Stores several models, each as `store` does, with an outcome of its own. Those of at most
  /// `transport.eager_max` bytes that go to the same provider in the same time travel together, up
  /// to 256 in one message; their outcomes come together, too.
  /// Errors:  as `store`, for each.
  std::vector<future<receipt>> store_many(std::vector<model_to_store> models);

  /// Stores the tensors as they are now, and lets them change early. The threads of the runtime
  /// copy them to `client.staging`; the provider reads the copy. If there is no room for it, or
  /// this memory is still being made, which the first snapshot begins, the provider reads the
  /// tensors themselves, and `staged` is ready when it has read them.
  /// Errors:  as `store`.
  pending_store store_snapshot(
    const std::string& model, const model_graph& graph, std::vector<tensor_view> tensors,
    store_options options = {});
  pending_store store_snapshot(
    const std::string& model, std::vector<tensor_view> tensors, store_options options = {});

  /// Loads tensors, or rows or boxes of them, straight into the memory of the targets. A provider
  /// of an older build refuses boxes that are not rows with `invalid_argument`.
  /// Errors:  `not_found`; `invalid_argument` for a dtype or shape that differs, or for a box that
  ///          is not inside the tensor or has more runs of bytes than `limits.box_runs_max` of the
  ///          provider, before any byte moves; `corrupt_data` when a checksum does not match.
  future<load_receipt> load(
    const std::string& model, std::vector<load_target> targets, load_options options = {});

  /// Loads from several models, from each as `load` does, with an outcome of its own. Small loads
  /// travel together, as in `store_many`.
  /// Errors:  as `load`, for each.
  std::vector<future<load_receipt>> load_many(std::vector<model_to_load> models);

  /// Loads whole tensors by name into one buffer, densely, in the order of `names`. Without names
  /// it loads all tensors. The provider is asked for the description of the model once, and again
  /// when the version is another one: `client.layer_cache` bounds what the client keeps.
  /// Errors:  `not_found` naming the model or the tensor; `no_space` with the size needed, when the
  ///          buffer is too small; `corrupt_data` when a checksum does not match.
  future<loaded_tensors> load(
    const std::string& model, std::vector<std::string> names, std::span<std::byte> buffer,
    load_options options = {});

  /// Loads the tensors of the layers with these ids into one buffer.
  /// Errors:  as above; `not_found` also for a layer that the model does not have.
  future<loaded_tensors> load_layers(
    const std::string& model, std::vector<layer_id> layers, std::span<std::byte> buffer,
    load_options options = {});

  /// Returns a model's graph, layout and layers. Layers that the client has not seen before are
  /// fetched once.
  /// Errors:  `not_found`; `protocol_error` when the provider's description contradicts itself.
  future<model_info> describe(const std::string& model, std::uint64_t version = 0);

  /// Waits for a version of a model above `than`; 0: for any. It is ready at once if there is one,
  /// and the model need not exist. What it returns, as `describe` does, can be loaded when it is
  /// ready. Versions that come quickly after one another wake it once, for the newest.
  ///
  /// Numbers of versions rise whichever provider takes them. They may begin below again after the
  /// model was erased and the group's providers changed, and when a provider in memory starts anew.
  /// Cancelling the future takes the watch back from the provider, and so does dropping the client
  /// with all that was made by it: the wait alone does not keep them.
  /// Time:    at most `limits.request_timeout_max`; 0: the client's request timeout.
  /// Errors:  `cancelled` when the client is dropped; `busy` naming `limits.watches_max`;
  ///          `peer_lost` when the connection breaks or its node stops; `unavailable` when the
  ///          provider ends or starts anew; `unsupported` from a provider of an older version.
  future<model_record> newer(
    const std::string& model, std::uint64_t than, std::chrono::milliseconds timeout = {});

  /// Lists the names that start with `prefix`, from every provider of the group. Providers that do
  /// not answer are named in the result; while there are any, a listing may take all of its time.
  /// When all have answered, marks of erased models are removed that no provider needs any more:
  /// after the answer, in what is left of its time, see `listed::swept`.
  /// Errors:  that of the first provider when none answers.
  future<listed<model_summary>> list(const std::string& prefix = {});

  /// Removes a model. Readers of it can finish. An error says whether some versions of it are
  /// removed, and at which provider the next one is.
  /// Errors:  `not_found`.
  future<void> erase(const std::string& model);
  /// Excludes a model from eviction, or allows it again.
  /// Errors:  `not_found`.
  future<void> pin(const std::string& model, bool pinned);

  /// Returns the provider where the client looks first for a model of this name, stored or not. It
  /// asks no provider.
  /// Errors:  `not_found` naming the existing groups, when the group has no provider.
  result<provider_entry> provider_of(const std::string& model) const;

private:
  std::shared_ptr<runtime::client_core> core_;
  std::string group_;
};

} // namespace millrace
