// Comparing the bytes of versions with their digests. Used by check, copies, and before versions are given up.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

namespace millrace::storage::pmem {

/// Compares windows of one version, wherever their bytes are now. Keeps references to both.
class window_check {
public:
  /// No digests at all, as of a model stored without them: then nothing differs.
  window_check(const shard_shape& shape, const std::vector<std::uint64_t>& digests);

  /// Tensors of which `data`, the bytes of window `w`, differ; ascending.
  std::vector<std::uint32_t> differing(const io::packed_window& w, const std::byte* data) const;
  /// Errors: `corrupt_data` with the number of the first such tensor.
  [[nodiscard]] status compare(const io::packed_window& w, const std::byte* data) const;

private:
  const shard_shape& shape_;
  const std::vector<std::uint64_t>& digests_;
  std::vector<std::uint64_t> first_; // digest of each tensor
};

/// Reads windows of versions of an open pool, one after the other: in the mapping, or through memory of its own where
/// data goes past the page cache. Threads: one at a time.
class window_source {
public:
  /// Of slots that have windows of this size.
  window_source(const pool_state& state, std::uint64_t window_bytes);

  /// The bytes of a window; valid until the next call. Errors: `io_error`; `no_space` without memory.
  result<const std::byte*> read(
    const io::packed_window& w, const std::vector<data_extent>& extents);

private:
  const pool_state& state_;
  std::unique_ptr<void, decltype(&std::free)> buffer_;
};

/// Tensors of a version that differ in the mapping; ascending.
std::vector<std::uint32_t> differing_tensors(
  const heap& objects, const slot_owner& s, const slot& version,
  const std::vector<std::uint64_t>& digests);

/// One slot with a version that stays while others of its model go.
struct kept_slot {
  std::uint64_t owner = 0; // id of its shard
  std::uint64_t number = 0;
  std::uint64_t changes = 0;

  friend bool operator==(const kept_slot&, const kept_slot&) = default;
};

/// What nobody may take of a model, all ranks: see `protected_slot`. Needs the model's lock.
std::vector<kept_slot> kept_slots(const model& m);

/// *Problem*: bytes rot. What is second to a damaged version may be all that is left of a model.
///
/// Reads what `kept_slots` names and compares it, all of it: of a model in several shards one rank's damage spoils a
/// step. Another version of the model may go only while `kept_slots` still equals what this returns.
/// Cost:    reads the bytes, on the calling thread; the slots are leased meanwhile.
/// Errors:  `corrupt_data` naming rank, step, tensor and the remedy; `io_error`; `cancelled` when `goes_on` says no.
/// Threads: any, without the model's lock.
result<std::vector<kept_slot>> verify_kept(
  const std::shared_ptr<pool_state>& state, const std::shared_ptr<model>& m,
  const std::function<bool()>& goes_on);

} // namespace millrace::storage::pmem
