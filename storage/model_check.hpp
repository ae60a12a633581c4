// Checks of what callers hand to a bucket. Called by every kind before anything is reserved or
// read.
#pragma once

#include <millrace/storage/bucket.hpp>

#include <cstdint>
#include <vector>

namespace millrace::storage {

/// What checking a spec found out and a bucket needs again.
struct checked_spec {
  std::vector<layer_id> layers;            // the ids its graph names, each once
  std::vector<std::uint64_t> tensor_bytes; // per tensor
  std::uint64_t size_bytes = 0;            // their sum
};

/// Checks name, layout, graph, and the tensors' indices into the graph.
/// Errors: `invalid_argument` naming the model and the fault.
result<checked_spec> check_spec(const model_spec& spec);

/// Checks that there are no digests, or exactly as many as the layout has blocks.
[[nodiscard]] status check_digests(
  const std::vector<std::uint64_t>& tensor_bytes, const std::vector<std::uint64_t>& digests);

/// Checks that every range lies inside its tensor and on digest-block borders.
[[nodiscard]] status check_ranges(
  const std::vector<std::uint64_t>& tensor_bytes, const std::vector<wanted>& ranges);

/// The error of a version that is not there, for `bucket::open`. `newest` is 0 when there is none.
status no_such_model(const std::string& name, std::uint64_t version, std::uint64_t newest);

} // namespace millrace::storage
