// Checks of specs, digests and ranges. Called by every kind of bucket.
#include <millrace/core/digest.hpp>
#include <millrace/core/model_graph.hpp>
#include <millrace/storage/model_check.hpp>

#include <algorithm>
#include <string>

namespace millrace::storage {

namespace {

status check_tensor_layers(const model_spec& spec, std::size_t layer_count) {
  if (spec.tensor_layers.empty())
    return {};
  if (spec.tensor_layers.size() != spec.tensors.tensors.size())
    return {
      errc::invalid_argument, "it has {} tensors, but layer indices for {}",
      spec.tensors.tensors.size(), spec.tensor_layers.size()};
  for (auto index : spec.tensor_layers)
    if (index >= layer_count)
      return {
        errc::invalid_argument, "a tensor belongs to layer {}, but the graph has {} layers", index,
        layer_count};
  return {};
}

result<std::vector<layer_id>> layers_of(const model_spec& spec) {
  if (spec.graph.empty()) {
    if (auto bad = check_tensor_layers(spec, 0); !bad.ok())
      return fail(std::move(bad));
    return std::vector<layer_id>{};
  }
  auto graph = decode_graph(spec.graph);
  if (!graph)
    return fail(errc::invalid_argument, "its graph cannot be read: {}", graph.error().detail());
  if (auto bad = check_tensor_layers(spec, graph->ids.size()); !bad.ok())
    return fail(std::move(bad));
  auto ids = std::move(graph->ids);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// What a tensor and a text cost besides their letters. Rounded up from what a memory bucket takes
// of the heap.
constexpr std::uint64_t tensor_overhead_bytes = 192;
constexpr std::uint64_t text_overhead_bytes = 48;

void count_metadata(const model_spec& spec, checked_spec& checked) {
  checked.summary_bytes =
    table_entry_bytes + 4 * spec.name.size() + checked.layers.size() * sizeof(layer_id);
  for (auto bytes : checked.tensor_bytes)
    checked.digests_bytes += 8 * digest_count(bytes);
  checked.metadata_bytes = checked.summary_bytes + spec.graph.size() +
    4 * spec.tensor_layers.size() + described_bytes(spec.metadata) + described_bytes(spec.tensors) +
    checked.digests_bytes;
}

} // namespace

std::uint64_t described_bytes(const layout& tensors) noexcept {
  std::uint64_t sum = 0;
  for (auto& tensor : tensors.tensors)
    sum += tensor_overhead_bytes + tensor.name.size() + 8 * tensor.shape.size();
  return sum;
}

std::uint64_t described_bytes(
  const std::vector<std::pair<std::string, std::string>>& texts) noexcept {
  std::uint64_t sum = 0;
  for (auto& [key, text] : texts)
    sum += 2 * text_overhead_bytes + key.size() + text.size();
  return sum;
}

std::uint64_t described_bytes(const std::vector<tensor_place>& places) noexcept {
  std::uint64_t sum = 0;
  for (auto& place : places)
    sum += tensor_overhead_bytes + place.name.size() +
      8 * (place.global_shape.size() + place.offset.size());
  return sum;
}

result<checked_spec> check_spec(const model_spec& spec) {
  if (auto bad = validate_model_name(spec.name); !bad.ok())
    return fail(std::move(bad));
  auto context = "model " + spec.name;
  if (auto bad = validate(spec.tensors); !bad.ok())
    return fail(errc::invalid_argument, "{}: {}", context, bad.detail());
  auto layers = layers_of(spec);
  if (!layers)
    return fail(layers.error().within(context));
  checked_spec checked;
  checked.layers = std::move(*layers);
  checked.tensor_bytes.reserve(spec.tensors.tensors.size());
  for (auto& tensor : spec.tensors.tensors) {
    checked.tensor_bytes.push_back(*size_bytes(tensor));
    checked.size_bytes += checked.tensor_bytes.back();
  }
  // A full bucket must still be able to learn where its names are placed.
  if (!is_own_name(spec.name))
    count_metadata(spec, checked);
  return checked;
}

status check_digests(
  const std::vector<std::uint64_t>& tensor_bytes, const std::vector<std::uint64_t>& digests) {
  if (digests.empty())
    return {};
  std::uint64_t expected = 0;
  for (auto bytes : tensor_bytes)
    expected += digest_count(bytes);
  if (digests.size() == expected)
    return {};
  return {errc::invalid_argument, "{} digests are given for {} blocks", digests.size(), expected};
}

status check_ranges(
  const std::vector<std::uint64_t>& tensor_bytes, const std::vector<wanted>& ranges) {
  for (auto& range : ranges) {
    if (range.tensor >= tensor_bytes.size())
      return {
        errc::invalid_argument, "there is no tensor {} of {}", range.tensor, tensor_bytes.size()};
    auto size = tensor_bytes[range.tensor];
    auto inside = range.tensor_offset <= size && range.length <= size - range.tensor_offset;
    auto ends = inside && range.tensor_offset + range.length == size;
    if (
      !inside || range.tensor_offset % digest_block_bytes != 0 ||
      (range.length % digest_block_bytes != 0 && !ends))
      return {
        errc::invalid_argument,
        "bytes {}+{} of tensor {}, which has {} bytes: a range must begin and end on blocks of {}",
        range.tensor_offset,
        range.length,
        range.tensor,
        size,
        digest_block_bytes};
  }
  return {};
}

status no_such_model(const std::string& name, std::uint64_t version, std::uint64_t newest) {
  if (newest == 0)
    return {errc::not_found, "no model named {}", name};
  return {errc::not_found, "model {} has no version {}; it has version {}", name, version, newest};
}

} // namespace millrace::storage
