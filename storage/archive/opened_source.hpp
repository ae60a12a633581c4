// An opened version as a source of tensors. Used where versions are written to files.
#pragma once

#include <millrace/storage/archive/archive.hpp>

namespace millrace::storage::archive {

/// Returns a source that reads a version through its windows and waits for each at most
/// `deadline_ms`. A version with the user's bytes was opened with `version_part::all`, and the
/// source has them as `extra`. If the version has digests, every block is compared with its digest.
/// Errors: `corrupt_data` naming the tensor and the block; `deadline_exceeded`.
std::unique_ptr<tensor_source> make_opened_source(
  std::shared_ptr<opened_model> version, std::uint32_t deadline_ms = 60'000);

} // namespace millrace::storage::archive
