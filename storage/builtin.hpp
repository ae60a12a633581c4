// The kinds of buckets of this build; only this file's source names kinds. Called by a node when it
// starts its providers.
#pragma once

#include <millrace/storage/bucket_kind.hpp>

#include <vector>

namespace millrace::storage {

/// Returns the kinds. A provider that names no kind has the first one.
const std::vector<bucket_kind>& builtin_buckets();

/// Returns the kind of that name, or the first one for an empty name.
/// Errors: `invalid_argument` that lists the kinds.
result<const bucket_kind*> bucket_called(std::string_view name);

/// Finds what is whole in the storage at a path, of whatever kind it is.
/// Errors: `invalid_argument` when no kind has its storage there; those of the kind's `salvage`.
[[nodiscard]] status salvage_storage(const std::string& path, salvager& to);

} // namespace millrace::storage
