// Where models rest. Asked by a provider's `tensor_store`; knows nothing of transports and actors.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/core/model.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::storage {

/// What a kind of bucket can do, as data, so that one suite tests every kind.
struct bucket_capabilities {
  bool durable = false;  // a published model survives `kill -9` and power loss
  bool in_place = false; // extents are the final resting place: one window holds a whole model
  bool evicts = false;   // makes room by dropping unpinned models, least recently used first
};

/// Bytes of one tensor that lie (or shall lie) at `data`.
/// `tensor_offset` is a multiple of `digest_block_bytes`; so is `length` unless the tensor ends there.
struct piece {
  std::uint32_t tensor = 0;
  std::uint64_t tensor_offset = 0;
  std::byte* data = nullptr;
  std::uint64_t length = 0;
};

/// Registered memory that holds a part of a model for a while. Tensors without bytes have no piece.
/// Whoever may still touch the memory keeps a copy of `hold`; the bucket reuses it when none is left.
struct window {
  std::uint32_t index = 0;
  std::vector<piece> pieces;
  std::shared_ptr<void> hold;
};

/// Room for one version of a model, invisible until it is published.
///
/// Order of calls: for every index in [0, window_count()) in any order and overlapping as the caller
/// likes: `acquire` → the caller fills the pieces → `commit`; when all are committed: `publish`.
/// Destroying a reservation that was not published abandons it: nothing of it stays visible, and its
/// space returns when the last `hold` is gone. Threads: calls for one reservation one at a time.
class reservation {
public:
  virtual ~reservation() = default;

  /// 0 for a model without bytes: it is published at once.
  virtual std::uint32_t window_count() const noexcept = 0;

  /// Lends the memory of one window, once; waits (without blocking) while staging memory is short.
  /// Whoever was lent a window works it off without waiting for another: so each wait comes to its end.
  virtual void acquire(std::uint32_t index, completion<window> done) = 0;

  /// The window is filled: the bucket may write it on and reuse its memory.
  virtual void commit(std::uint32_t index, completion<void> done) = 0;

  /// Makes the version visible, whole, replacing an older one under the same name.
  /// `digests`: as in `model_record`, or empty. On success the version is as durable as the bucket is.
  virtual void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) = 0;
};

/// A range of one tensor asked for; aligned like a `piece`.
struct wanted {
  std::uint32_t tensor = 0;
  std::uint64_t tensor_offset = 0;
  std::uint64_t length = 0;
};

/// One version, open for reading. It stays whole and readable until the last copy is dropped, whatever
/// happens to its name meanwhile.
class opened_model {
public:
  virtual ~opened_model() = default;

  virtual const model_record& record() const noexcept = 0;

  /// Cuts the ranges into windows that `fetch` can serve one by one (one window if in place; none when
  /// the ranges have no bytes). Ranges in the order in which tensors rest are read fastest.
  virtual std::vector<std::vector<wanted>> plan(const std::vector<wanted>& ranges) const = 0;

  /// Brings the bytes of one planned window to memory. Pieces cover exactly the ranges, in their order
  /// (a range may be cut into several pieces at digest-block borders; ranges that touch or overlap stay apart).
  virtual void fetch(std::vector<wanted> ranges, completion<window> done) = 0;
};

struct bucket_stats {
  std::uint64_t models = 0;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0; // space taken, reservations and padding included
  std::uint64_t evictions = 0;
};

/// A table of models. Thread-safe. Completions run exactly once, on any thread, with no lock held;
/// in-memory kinds, and refusals of every kind, may run them before the call returns.
class bucket {
public:
  virtual ~bucket() = default;

  virtual std::string_view kind() const noexcept = 0;
  virtual bucket_capabilities capabilities() const noexcept = 0;

  /// Reserves room for a model. `layers`: descriptions of layers its graph names; those the bucket
  /// has already may be left out.
  /// Errors: `no_space` with bytes asked for and free; `invalid_argument` for a spec that does not
  /// validate; `unknown_layers` when the graph names a layer neither known nor described.
  virtual void reserve(
    model_spec spec, std::vector<described_layer> layers,
    completion<std::unique_ptr<reservation>> done) = 0;

  /// Opens the newest version under a name, or exactly `version` when it is not 0.
  /// Errors: `not_found` naming the model (and the version that is there instead).
  virtual void open(
    std::string name, std::uint64_t version, completion<std::shared_ptr<opened_model>> done) = 0;

  /// Removes a name. Readers that have it open finish. Errors: `not_found`.
  virtual void erase(std::string name, completion<void> done) = 0;

  /// Pins or unpins. Errors: `not_found`.
  virtual void pin(std::string name, bool pinned, completion<void> done) = 0;

  /// Up to `count_max` models whose names start with `prefix` and sort after `after`, in name order.
  virtual void list(
    std::string prefix, std::string after, std::uint32_t count_max,
    completion<std::vector<model_summary>> done) = 0;

  /// Descriptions of the layers asked for; `not_found` naming the first that is unknown.
  virtual void resolve(
    std::vector<layer_id> ids, completion<std::vector<described_layer>> done) = 0;

  virtual bucket_stats stats() const = 0;

  /// Refuses new work and returns when what was begun is done or `deadline_ms` is over.
  [[nodiscard]] virtual status close(std::uint32_t deadline_ms) = 0;
};

} // namespace millrace::storage
