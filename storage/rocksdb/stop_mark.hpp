// The mark of an orderly stop: which change was the newest one then. Written when a bucket stops,
// compared when it starts. It stays: also after a later crash the index has that change.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace millrace::storage::rocksdb {

/// *Problem*: after a crash a log may end early, since its last batch was never acknowledged. After
/// an orderly stop all was acknowledged, and a log that ends early has lost something.
/// Writes the mark into a bucket's directory. It is durable on return.
[[nodiscard]] status write_stop_mark(const std::string& directory, std::uint64_t last_change);

/// Returns the change of the mark; null without a mark. Errors: `corrupt_data` naming the remedy.
result<std::optional<std::uint64_t>> read_stop_mark(const std::string& directory);

/// Returns the path of the mark, for errors.
std::string stop_mark_path(const std::string& directory);

} // namespace millrace::storage::rocksdb
