// The kinds of buckets of this build; only this file's source names kinds. Called by a node when it
// starts its providers.
#pragma once

#include <millrace/storage/bucket_kind.hpp>

#include <vector>

namespace millrace::storage {

/// The first is the one that a provider has which names none.
const std::vector<bucket_kind>& builtin_buckets();

/// The kind of that name; the first one without a name.
/// Errors: `invalid_argument` that lists the kinds.
result<const bucket_kind*> bucket_called(std::string_view name);

} // namespace millrace::storage
