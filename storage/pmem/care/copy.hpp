// Copying a version to another place in the pool. Used by repack.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>
#include <functional>
#include <vector>

namespace millrace::storage::pmem {

/// Copies window by window, compares with the digests, and writes the copy back. It is persistent
/// after the fence of the publish.
/// Errors: `corrupt_data`; `cancelled` when `goes_on` returns false; `io_error`.
[[nodiscard]] status copy_version(
  pool_state& state, const slot_owner& s, const slot& from, const slot& to,
  const std::vector<std::uint64_t>& digests, const std::function<bool()>& goes_on);

} // namespace millrace::storage::pmem
