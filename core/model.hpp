// Descriptions of stored versions of models. Buckets keep them, messages carry them.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/core/inspect.hpp>
#include <millrace/core/tensor.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

inline constexpr std::size_t model_name_bytes_max = 512;

/// The largest `model_spec::version_after`. A peer cannot use up the numbers of versions.
inline constexpr std::uint64_t version_after_max = std::uint64_t{1} << 62;

/// Checks a model's name: 1 to `model_name_bytes_max` bytes of UTF-8, no NUL.
[[nodiscard]] status validate_model_name(std::string_view name);

/// The structure of a layer as it is sent with a model: its id and its encoded description.
struct described_layer {
  layer_id id;
  std::vector<std::byte> description; // encoded `layer_description`

  friend bool operator==(const described_layer&, const described_layer&) = default;
};

/// The description that a client sends with the model that it stores.
struct model_spec {
  std::string name;
  std::vector<std::byte> graph; // encoded `compact_graph`; empty when there is none
  /// The index of each tensor's layer in the graph; may be empty.
  std::vector<std::uint32_t> tensor_layers;
  layout tensors;
  std::vector<std::pair<std::string, std::string>> metadata; // free text of the user
  bool pinned = false;                                       // never evicted
  // Set by the provider:
  std::string group;      // the group for which it is stored; empty: an older build stored it
  std::uint64_t view = 0; // the group's view when it was stored, see `group_view`
  bool erased = false;    // it only marks that older versions elsewhere are erased
  /// The version gets a larger number than this. Not kept: 0 in records.
  std::uint64_t version_after = 0;

  friend bool operator==(const model_spec&, const model_spec&) = default;
};

/// A stored version: the client's spec and what the bucket added.
struct model_record {
  model_spec spec;
  std::uint64_t version = 0;      // the bucket counts: never reused, later ones are larger
  std::uint64_t stored_at_ns = 0; // wall clock
  /// `digest_count(bytes)` values for each tensor, in order; empty when stored without checksums.
  std::vector<std::uint64_t> digests;
  /// The size of the user's bytes that a checkpoint's version has; it is not stored here and does
  /// not travel.
  std::uint64_t extra_bytes = 0;

  friend bool operator==(const model_record&, const model_record&) = default;
};

/// One line of a listing.
struct model_summary {
  std::string name;
  std::uint64_t version = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t tensors = 0;
  std::uint64_t stored_at_ns = 0;
  bool pinned = false;
  std::string group; // this and what follows: as in `model_spec`
  std::uint64_t view = 0;
  bool erased = false;

  friend bool operator==(const model_summary&, const model_summary&) = default;
};

model_summary summarize(const model_record& record);

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, described_layer& x) {
  return f(x.id, x.description);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, model_spec& x) {
  return f(
    x.name, x.graph, x.tensor_layers, x.tensors, x.metadata, x.pinned, x.group, x.view, x.erased);
}

constexpr void is_message(const model_record&) {}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, model_record& x) {
  return f(x.spec, x.version, x.stored_at_ns, x.digests);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, model_summary& x) {
  return f(
    x.name, x.version, x.size_bytes, x.tensors, x.stored_at_ns, x.pinned, x.group, x.view,
    x.erased);
}

} // namespace millrace
