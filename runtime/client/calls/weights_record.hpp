// What a publisher writes beside its tensors, and what followers read from it.
// Internal, used by the publishers and followers of weights.
#pragma once

#include <millrace/core/model.hpp>
#include <millrace/runtime/client/weights.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::runtime {

using metadata_pairs = std::vector<std::pair<std::string, std::string>>;

/// Returns the metadata of a publication: the publisher's own, its run and the number.
metadata_pairs weights_metadata(metadata_pairs own, const std::string& run, std::uint64_t version);

/// Errors:  `invalid_argument` for a key that weights use themselves.
[[nodiscard]] status check_weights_metadata(const metadata_pairs& own);

/// Reads a publication from the record of its model.
/// Errors:  `invalid_argument` when no publisher has stored it.
result<weights_version> weights_of(const model_record& record);

/// Returns true if a publication that is found now was made after one that was found before. Of one
/// run the numbers decide: a store that was given up may be published all the same, and then
/// replace a later one. A number that was used again has replaced the first one.
bool is_after(const weights_version& one, const weights_version& last);

} // namespace millrace::runtime
