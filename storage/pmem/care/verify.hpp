// Comparing the bytes of versions with their digests. Called by check and copies, and before
// versions are freed.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

namespace millrace::storage::pmem {

/// Compares windows of one version with its digests. Keeps references to shape and digests.
class window_check {
public:
  /// `digests` may be empty, as of a model stored without them; then no window differs.
  window_check(const shard_shape& shape, const std::vector<std::uint64_t>& digests);

  /// Returns the tensors whose bytes in `data`, the bytes of window `w`, differ; ascending.
  std::vector<std::uint32_t> differing(const io::packed_window& w, const std::byte* data) const;
  /// Checks that no tensor differs. Errors: `corrupt_data` with the number of the first tensor that
  /// does.
  [[nodiscard]] status compare(const io::packed_window& w, const std::byte* data) const;

private:
  const shard_shape& shape_;
  const std::vector<std::uint64_t>& digests_;
  std::vector<std::uint64_t> first_; // digest of each tensor
};

/// Reads windows of versions of an open pool, one after the other: in the mapping, or into a buffer
/// where the pool uses direct I/O. Threads: one at a time.
class window_source {
public:
  /// For slots with windows of this size.
  window_source(const pool_state& state, std::uint64_t window_bytes);

  /// Returns the bytes of a window, valid until the next call. Errors: `io_error`; `no_space`
  /// without memory.
  result<const std::byte*> read(
    const io::packed_window& w, const std::vector<data_extent>& extents);

private:
  const pool_state& state_;
  std::unique_ptr<void, decltype(&std::free)> buffer_;
};

/// Returns the tensors of a version that differ in the mapping; ascending.
std::vector<std::uint32_t> differing_tensors(
  const std::byte* pool, const slot_owner& s, const slot& version,
  const std::vector<std::uint64_t>& digests);

/// Compares the user's bytes of a version with their digests, which are the last ones of its
/// record.
/// Errors: `corrupt_data` naming the step.
[[nodiscard]] status check_extra(
  const std::byte* pool, const slot_owner& s, const slot& version,
  const std::vector<std::uint64_t>& digests);

/// A slot whose version stays while others of its model are freed.
struct kept_slot {
  std::uint64_t owner = 0; // id of its shard
  std::uint64_t number = 0;
  std::uint64_t changes = 0;

  friend bool operator==(const kept_slot&, const kept_slot&) = default;
};

/// Returns the protected slots of a model, of all ranks (see `protected_slot`). Needs the model's
/// lock.
std::vector<kept_slot> kept_slots(const model& m);

/// Reads the versions of all `kept_slots` and returns the slots if every byte matches its digest.
/// Other versions of the model may be freed only while `kept_slots` still returns the same.
///
/// *Problem*: stored bytes may be damaged, and then an older version may be the last usable one.
/// Damage in one rank makes a step of all ranks unusable.
/// Cost:    reads the bytes on the calling thread, with the slots leased.
/// Errors:  `corrupt_data` naming rank, step, tensor and the remedy; `io_error`; `cancelled` when
///          `goes_on` returns false.
/// Threads: any, without the model's lock.
result<std::vector<kept_slot>> verify_kept(
  const std::shared_ptr<pool_state>& state, const std::shared_ptr<model>& m,
  const std::function<bool()>& goes_on);

} // namespace millrace::storage::pmem
