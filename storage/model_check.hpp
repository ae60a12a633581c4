// Checks of the arguments of a bucket. Called by every kind before it reserves or reads.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/storage/bucket.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::storage {

/// The results of checking a spec, for use by the bucket.
struct checked_spec {
  std::vector<layer_id> layers;            // the ids its graph names, each once
  std::vector<std::uint64_t> tensor_bytes; // per tensor
  std::uint64_t size_bytes = 0;            // their sum
  /// About what a bucket keeps of the model besides the bytes of its tensors: names, shapes, graph,
  /// digests, texts and its own tables. A function of the spec alone. The descriptions of layers,
  /// which models share, are not in it.
  std::uint64_t metadata_bytes = 0;
  std::uint64_t digests_bytes = 0; // the part of it that digests take
  std::uint64_t summary_bytes = 0; // the part of it that a listing shows, with the ids of layers
};

/// Checks the name, the layout, the graph, and the indices of tensors into the graph.
/// Errors: `invalid_argument` naming the model and the fault.
result<checked_spec> check_spec(const model_spec& spec);

/// What an entry costs in the tables of a bucket besides its letters. Rounded up.
inline constexpr std::uint64_t table_entry_bytes = 1024;

/// Returns about what a layout takes in memory: names, shapes, and tables of its tensors.
std::uint64_t described_bytes(const layout& tensors) noexcept;

/// Returns about what pairs of texts take in memory.
std::uint64_t described_bytes(
  const std::vector<std::pair<std::string, std::string>>& texts) noexcept;

/// Returns about what the places of tensors take in memory.
std::uint64_t described_bytes(const std::vector<tensor_place>& places) noexcept;

/// Checks that there are no digests, or as many as the layout has blocks.
[[nodiscard]] status check_digests(
  const std::vector<std::uint64_t>& tensor_bytes, const std::vector<std::uint64_t>& digests);

/// Checks that every range lies inside its tensor and begins and ends on digest-block borders.
[[nodiscard]] status check_ranges(
  const std::vector<std::uint64_t>& tensor_bytes, const std::vector<wanted>& ranges);

/// Returns the error of `bucket::open` for a version that does not exist. `newest` is 0 when the
/// name has no version.
status no_such_model(const std::string& name, std::uint64_t version, std::uint64_t newest);

} // namespace millrace::storage
