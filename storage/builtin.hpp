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

/// Returns the functions of the kind whose storage is at a path. Errors: `not_found` when none is.
result<storage_at_rest> storage_at(const std::string& path);

} // namespace millrace::storage
