// Storage that no service has open: what the command verifies and salvages. Done by kinds of
// buckets.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/storage/archive/origin.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace millrace::storage {

/// Takes what a salvage finds.
class salvager {
public:
  virtual ~salvager() = default;

  /// A version of which every byte matches its checksums, or that was stored without any. It has a
  /// step if it is a checkpoint. Errors end the salvage.
  [[nodiscard]] virtual status take(
    const archive::version_origin& origin, std::unique_ptr<archive::tensor_source> source) = 0;

  /// What cannot be read, in words: a version, or a part of the index.
  virtual void lose(const std::string& what) = 0;
};

/// One model as it rests.
struct model_at_rest {
  std::string name;
  std::uint64_t version = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t read_bytes = 0; // less than `size_bytes` if a part of it is missing
  bool has_checksums = false;
  /// `corrupt_data` naming the tensor and the offset, or what else is wrong.
  status outcome;
};

/// What a kind can do with its storage while no service has it open.
struct storage_at_rest {
  /// Returns true if the path has storage of this kind, even if it is damaged. Null for a kind in
  /// memory.
  bool (*is_at)(const std::string& path) = nullptr;

  /// Finds what is whole in storage, even if it cannot be opened. Errors: `busy` while a process
  /// has it open; those of `to`.
  status (*salvage)(const std::string& path, salvager& to) = nullptr;

  /// Compares every model with its checksums. Changes nothing. `seen` is called for each model, in
  /// the order of names, also for those that are damaged.
  /// Errors: `busy` while a process has it open; `corrupt_data` when its index cannot be read;
  /// `invalid_argument` when another command does it.
  status (*verify)(const std::string& path, const std::function<void(const model_at_rest&)>& seen) =
    nullptr;
};

} // namespace millrace::storage
