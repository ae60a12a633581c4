// The bucket: stores models. Called by a provider's `tensor_store`; independent of transports and
// actors.
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

/// Names that begin with this byte are the provider's own records. No client can store them, and
/// they are neither listed nor counted.
inline constexpr char own_name_prefix = '\x01';

inline bool is_own_name(std::string_view name) noexcept {
  return name.starts_with(own_name_prefix);
}

/// Returns true for what is listed and counted, and may be evicted: neither a record of the
/// provider nor the mark of an erased model, which are pinned for good.
inline bool is_model(std::string_view name, bool erased) noexcept {
  return !erased && !is_own_name(name);
}

/// Returns true for what a full bucket must take, too: the provider's own records, and the mark
/// that replaces a model. Both are small. Without them a full provider could neither learn which
/// providers there are nor erase. `is_stored()` says whether there is a model of this name.
template <class IsStored>
bool is_always_taken(const model_spec& spec, IsStored is_stored) {
  return is_own_name(spec.name) || (spec.erased && is_stored());
}

/// Follows all of them in the order of names, and precedes all others: no name has a byte of 255.
inline std::string after_own_names() { return {own_name_prefix, '\xff'}; }

/// The capabilities of a kind of bucket, as data, so that one suite tests every kind.
struct bucket_capabilities {
  bool durable = false;  // a published model survives `kill -9` and power loss
  bool in_place = false; // windows are the final location: one window holds a whole model
  bool evicts = false;   // frees space by dropping unpinned models, least recently used first
  /// Models of a few tensors up to this size are opened and read before `open` and `fetch` return,
  /// on the caller's thread, while they are in memory: from their publication on until others take
  /// their place there. Neither call then waits for a device. 0: not promised.
  std::uint64_t at_once_bytes_max = 0;
};

/// A part of one tensor and its address. `tensor_offset` is a multiple of `digest_block_bytes`. So
/// is `length`, unless the tensor ends there.
struct piece {
  std::uint32_t tensor = 0;
  std::uint64_t tensor_offset = 0;
  std::byte* data = nullptr;
  std::uint64_t length = 0;
};

/// Registered memory that is lent for a part of a model. Tensors without bytes have no piece. Code
/// that may still touch the memory keeps a copy of `hold`; the bucket reuses the memory when no
/// copy is left.
struct window {
  std::uint32_t index = 0;
  std::vector<piece> pieces;
  std::shared_ptr<void> hold;
};

/// Space that a caller fills window by window.
///
/// Order of calls: for every index in [0, window_count()): `acquire` → the caller fills the pieces
/// → `commit`. Windows may be taken in any order, and several at once.
/// Threads: calls for one space one at a time.
class window_space {
public:
  virtual ~window_space() = default;

  /// The number of windows. 0 for a model without bytes, which is published at once.
  virtual std::uint32_t window_count() const noexcept = 0;

  /// Returns how much staging memory the caller lends for each window. 0: none, for windows in
  /// place.
  virtual std::uint64_t window_bytes() const noexcept = 0;

  /// Lends the memory of one window, once. `staging`: `window_bytes()` of memory on a border of
  /// 4096 bytes, which the bucket keeps until the window is committed.
  /// A caller finishes a window without waiting for memory for another one, so that every wait
  /// ends.
  /// Errors: `invalid_argument` when there is less memory.
  virtual void acquire(std::uint32_t index, memory_block staging, completion<window> done) = 0;

  /// Tells that the window is filled. The bucket may now write it to its medium and reuse its
  /// memory.
  virtual void commit(std::uint32_t index, completion<void> done) = 0;
};

/// Space for one version of a model, which is invisible until it is published.
///
/// When all windows are committed: `publish`. Destroying a reservation that was not published
/// abandons it: nothing of it is visible, and its space is returned when the last `hold` is
/// destroyed.
/// Threads: calls for one reservation one at a time.
class reservation : public window_space {
public:
  /// Makes the version visible, atomically, in place of an older one of the same name, and returns
  /// its number, which is larger than `model_spec::version_after` and all that the bucket has used.
  /// `digests`: as in `model_record`, or empty. On success the version is as durable as the bucket.
  virtual void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) = 0;
};

/// A range of one tensor that a reader wants. Aligned like a `piece`.
struct wanted {
  std::uint32_t tensor = 0;
  std::uint64_t tensor_offset = 0;
  std::uint64_t length = 0;
};

/// One version, open for reading. It stays readable until the last copy of the pointer is
/// destroyed, even if its name is erased or overwritten.
class opened_model {
public:
  virtual ~opened_model() = default;

  virtual const model_record& record() const noexcept = 0;

  /// Cuts the ranges into windows for `fetch`: one window if the bucket is in place, none when the
  /// ranges have no bytes. Ranges in the order of the layout are read fastest.
  virtual std::vector<std::vector<wanted>> plan(const std::vector<wanted>& ranges) const = 0;

  /// Returns how much staging memory the caller lends for each window. 0: none, for windows in
  /// place.
  virtual std::uint64_t window_bytes() const noexcept = 0;

  /// Lends memory with the bytes of one planned window. Its pieces cover exactly the ranges, in
  /// their order. A range may be cut into several pieces at digest-block borders. Ranges that touch
  /// or overlap are not joined. `staging`: `window_bytes()` of memory on a border of 4096 bytes,
  /// which the window keeps.
  virtual void fetch(std::vector<wanted> ranges, memory_block staging, completion<window> done) = 0;
};

/// Returns the plan of a bucket that is in place: one window with all ranges that have bytes.
inline std::vector<std::vector<wanted>> plan_in_place(std::vector<wanted> ranges) {
  std::erase_if(ranges, [](auto& range) { return range.length == 0; });
  if (ranges.empty())
    return {};
  return {std::move(ranges)};
}

struct bucket_stats {
  std::uint64_t models = 0; // see `is_model`
  std::uint64_t capacity_bytes = 0;
  /// Includes reservations, padding, and what describes the models: names, shapes, graphs, texts,
  /// digests, layers.
  std::uint64_t used_bytes = 0;
  std::uint64_t evictions = 0;
  /// What is kept in memory to describe the models, beside their tensors. `descriptions_max` bounds
  /// it.
  std::uint64_t descriptions_bytes = 0;
  std::uint64_t marks = 0; // the marks of erased models, see `model_spec::erased`
};

/// A table of models.
///
/// Threads: any. A completion runs exactly once, on any thread, with no lock held. It may run
/// before the call returns, as refusals and what is in memory do: see `at_once_bytes_max`.
class bucket {
public:
  virtual ~bucket() = default;

  virtual std::string_view kind() const noexcept = 0;
  virtual bucket_capabilities capabilities() const noexcept = 0;

  /// Reserves space for a model. `layers`: descriptions of the layers that its graph names; layers
  /// that the bucket knows may be left out.
  /// Errors: `no_space` with the bytes asked for and free; `invalid_argument` for a spec that is
  /// not valid; `unknown_layers` when the graph names a layer that is neither known nor described.
  virtual void reserve(
    model_spec spec, std::vector<described_layer> layers,
    completion<std::unique_ptr<reservation>> done) = 0;

  /// Opens the newest version of a name, or exactly `version` when it is not 0.
  /// Errors: `not_found` naming the model, and the version that it has instead.
  virtual void open(
    std::string name, std::uint64_t version, completion<std::shared_ptr<opened_model>> done) = 0;

  /// Removes a name, or only exactly `version` of it when that is not 0. Readers that have it open
  /// can finish. Errors: `not_found`, as for `open`.
  virtual void erase(std::string name, std::uint64_t version, completion<void> done) = 0;

  /// Pins or unpins. Errors: `not_found`.
  virtual void pin(std::string name, bool pinned, completion<void> done) = 0;

  /// Lists up to `count_max` models whose names start with `prefix` and sort after `after`, in name
  /// order.
  virtual void list(
    std::string prefix, std::string after, std::uint32_t count_max,
    completion<std::vector<model_summary>> done) = 0;

  /// Returns the descriptions of layers. Errors: `not_found` naming the first layer that is
  /// unknown.
  virtual void resolve(
    std::vector<layer_id> ids, completion<std::vector<described_layer>> done) = 0;

  virtual bucket_stats stats() const = 0;

  /// Refuses new calls and waits until those under way are over, or until the deadline.
  [[nodiscard]] virtual status close(std::uint32_t deadline_ms) = 0;
};

} // namespace millrace::storage
