// Hashing and compact encoding of architectures. Clients hash, providers decode.
#include <millrace/core/assert.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/model_graph.hpp>

#include <sodium.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace millrace {

namespace {

/// Kahn's order over layers known by index; `inputs_of(i)` gives the inputs of layer `i`, all
/// valid. Returns fewer than `count` layers when there is a cycle.
template <class InputsOf>
std::vector<std::uint32_t> dependency_order(std::size_t count, InputsOf inputs_of) {
  // Consumers of every layer in one array: those of layer i lie in [first[i], first[i + 1]).
  std::vector<std::uint32_t> first(count + 2);
  std::vector<std::uint32_t> missing(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto& inputs = inputs_of(i);
    missing[i] = static_cast<std::uint32_t>(inputs.size());
    for (auto input : inputs)
      ++first[input + 2];
  }
  for (std::size_t i = 2; i < first.size(); ++i)
    first[i] += first[i - 1];
  std::vector<std::uint32_t> consumers(first.back());
  for (std::size_t i = 0; i < count; ++i)
    for (auto input : inputs_of(i))
      consumers[first[input + 1]++] = static_cast<std::uint32_t>(i);
  std::vector<std::uint32_t> order;
  order.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    if (missing[i] == 0)
      order.push_back(static_cast<std::uint32_t>(i));
  for (std::size_t done = 0; done < order.size(); ++done)
    for (auto at = first[order[done]]; at < first[order[done] + 1]; ++at)
      if (--missing[consumers[at]] == 0)
        order.push_back(consumers[at]);
  return order;
}

std::string called(const std::vector<layer>& layers, std::size_t index) {
  auto& label = layers[index].label;
  return label.empty() ? fmt::format("layer {}", index)
                       : fmt::format("layer {} ({})", index, label);
}

// The layers that Kahn's order leaves out hold a cycle, and each of them has an input that is left
// out, too. So a walk from input to input must come back to a layer already passed.
status describe_cycle(const std::vector<layer>& layers, const std::vector<std::uint32_t>& order) {
  constexpr std::size_t named_max = 16;
  std::vector<bool> left(layers.size(), true);
  for (auto i : order)
    left[i] = false;
  auto is_left = [&](std::uint32_t i) { return left[i]; };
  std::vector<std::uint32_t> path;
  std::vector<std::uint32_t> position(layers.size(), 0);
  auto at = static_cast<std::uint32_t>(std::find(left.begin(), left.end(), true) - left.begin());
  while (position[at] == 0) {
    path.push_back(at);
    position[at] = static_cast<std::uint32_t>(path.size());
    auto& inputs = layers[at].inputs;
    at = *std::find_if(inputs.begin(), inputs.end(), is_left);
  }
  path.erase(path.begin(), path.begin() + (position[at] - 1));
  auto text = "the graph has a cycle: " + called(layers, path[0]);
  for (std::size_t i = 1; i < std::min(path.size(), named_max); ++i)
    text += " is fed by " + called(layers, path[i]);
  if (path.size() > named_max)
    text += fmt::format(" and {} more", path.size() - named_max);
  return {errc::invalid_argument, text + " is fed by " + called(layers, path[0])};
}

/// Bytes that are hashed for one layer. Every field has its length before it, so that no two
/// structures share an encoding. Buffers are kept from layer to layer.
class structure_writer {
public:
  /// Errors: `invalid_argument` when something is given twice or a tensor is not valid.
  status write(const layer& l, const std::vector<layer_id>& ids) {
    bytes_.clear();
    text("millrace layer 1");
    text(l.kind);
    if (auto bad = attributes(l); !bad.ok())
      return bad;
    if (auto bad = tensors(l); !bad.ok())
      return bad;
    out_.varint(l.inputs.size());
    for (auto input : l.inputs)
      out_.raw(ids[input].bytes.data(), ids[input].bytes.size());
    return {};
  }

  layer_id hash() const {
    layer_id id;
    crypto_generichash(
      id.bytes.data(), id.bytes.size(), reinterpret_cast<const unsigned char*>(bytes_.data()),
      bytes_.size(), nullptr, 0);
    return id;
  }

private:
  void text(std::string_view x) {
    out_.varint(x.size());
    out_.raw(x.data(), x.size());
  }

  status attributes(const layer& l) {
    attributes_.clear();
    for (auto& attribute : l.attributes)
      attributes_.push_back(&attribute);
    std::sort(
      attributes_.begin(), attributes_.end(), [](auto* a, auto* b) { return a->first < b->first; });
    out_.varint(attributes_.size());
    const std::string* before = nullptr;
    for (auto* attribute : attributes_) {
      if (before && *before == attribute->first)
        return {errc::invalid_argument, "attribute " + *before + " is given twice"};
      before = &attribute->first;
      text(attribute->first);
      text(attribute->second);
    }
    return {};
  }

  status tensors(const layer& l) {
    tensors_.clear();
    for (auto& tensor : l.tensors)
      tensors_.push_back(&tensor);
    std::sort(tensors_.begin(), tensors_.end(), [](auto* a, auto* b) { return a->name < b->name; });
    out_.varint(tensors_.size());
    const std::string* before = nullptr;
    for (auto* tensor : tensors_) {
      if (auto bad = validate(*tensor); !bad.ok())
        return bad;
      if (before && *before == tensor->name)
        return {errc::invalid_argument, "tensor " + *before + " is given twice"};
      before = &tensor->name;
      text(tensor->name);
      out_.varint(static_cast<std::uint8_t>(tensor->type));
      out_.varint(tensor->shape.size());
      for (auto extent : tensor->shape)
        out_.varint(extent);
    }
    return {};
  }

  byte_buffer bytes_;
  wire_writer out_{bytes_};
  std::vector<const std::pair<std::string, std::string>*> attributes_;
  std::vector<const tensor_desc*> tensors_;
};

status check_inputs(const std::vector<layer>& layers) {
  if (layers.size() > graph_layers_max)
    return {errc::invalid_argument, "a graph may have at most {} layers", graph_layers_max};
  for (std::size_t i = 0; i < layers.size(); ++i)
    for (auto input : layers[i].inputs)
      if (input >= layers.size())
        return {
          errc::invalid_argument, "{} is fed by layer {}, which is not in the graph of {} layers",
          called(layers, i), input, layers.size()};
  return {};
}

// The encoding: version, layers, then per layer inputs * 2 + repeated, the id (or, if repeated, its
// number among the ids written so far), and for every input the distance back to it, zigzag since a
// layer may come before what feeds it.
constexpr std::uint64_t graph_version = 1;

std::uint64_t zigzag(std::int64_t x) {
  return (static_cast<std::uint64_t>(x) << 1) ^ static_cast<std::uint64_t>(x >> 63);
}

std::int64_t unzigzag(std::uint64_t x) {
  return static_cast<std::int64_t>(x >> 1) ^ -static_cast<std::int64_t>(x & 1);
}

class graph_reader {
public:
  explicit graph_reader(std::span<const std::byte> bytes) : in_(bytes) {}

  result<compact_graph> read() {
    std::uint64_t version = 0;
    std::uint64_t count = 0;
    if (in_.varint(version) && version != graph_version)
      return fail(
        errc::unsupported_version,
        "graph: its encoding has version {}, this build reads version {}", version, graph_version);
    in_.varint(count);
    // A layer takes two bytes at least: its header, and a byte that tells its id.
    if (count > graph_layers_max || count > in_.rest().size() / 2)
      stumble("more layers than the bytes that follow can hold");
    if (ok()) {
      graph_.ids.reserve(count);
      graph_.inputs.reserve(count);
    }
    for (std::uint64_t i = 0; ok() && i < count; ++i)
      read_layer(i, count);
    if (ok() && !in_.at_end())
      stumble("bytes after its end");
    auto inputs_of = [&](std::size_t i) -> auto& { return graph_.inputs[i]; };
    if (ok() && dependency_order(count, inputs_of).size() != count)
      stumble("a cycle");
    if (!ok())
      return fail(errc::protocol_error, "graph: {}", fault_ ? fault_ : in_.fault());
    return std::move(graph_);
  }

private:
  bool ok() const { return !fault_ && in_.ok(); }
  void stumble(const char* why) {
    if (ok())
      fault_ = why;
  }

  void read_layer(std::uint64_t index, std::uint64_t count) {
    std::uint64_t header = 0;
    in_.varint(header);
    read_id((header & 1) != 0);
    auto inputs = header >> 1;
    if (inputs > in_.rest().size())
      stumble("more inputs than the bytes that follow can hold");
    if (!ok())
      return;
    auto& out = graph_.inputs.emplace_back();
    out.reserve(inputs);
    for (std::uint64_t i = 0; i < inputs; ++i) {
      std::uint64_t distance = 0;
      // In unsigned numbers a distance too large in either direction lands outside the graph.
      if (in_.varint(distance))
        distance = index - static_cast<std::uint64_t>(unzigzag(distance));
      if (distance >= count)
        stumble("an input outside the graph");
      if (!ok())
        return;
      out.push_back(static_cast<std::uint32_t>(distance));
    }
  }

  void read_id(bool repeated) {
    layer_id id;
    std::uint64_t number = 0;
    if (!repeated) {
      if (in_.raw(id.bytes.data(), id.bytes.size()))
        first_uses_.push_back(static_cast<std::uint32_t>(graph_.ids.size()));
    } else if (in_.varint(number)) {
      if (number >= first_uses_.size())
        return stumble("an id that was not written before");
      id = graph_.ids[first_uses_[number]];
    }
    graph_.ids.push_back(id);
  }

  wire_reader in_;
  compact_graph graph_;
  std::vector<std::uint32_t> first_uses_;
  const char* fault_ = nullptr;
};

} // namespace

std::uint32_t model_graph::add(layer l) {
  MILLRACE_ASSERT(layers_.size() < UINT32_MAX);
  layers_.push_back(std::move(l));
  memo_.set(nullptr);
  return static_cast<std::uint32_t>(layers_.size() - 1);
}

std::string tensor_name(const layer& l, const tensor_desc& tensor) {
  return l.label.empty() ? tensor.name : l.label + "." + tensor.name;
}

layout model_graph::tensors() const {
  layout all;
  for (auto& l : layers_)
    for (auto& tensor : l.tensors)
      all.tensors.emplace_back(tensor).name = tensor_name(l, tensor);
  return all;
}

model_graph model_graph::chain_of(const layout& tensors) {
  model_graph graph;
  std::unordered_map<std::string_view, std::uint32_t> groups;
  for (auto& tensor : tensors.tensors) {
    std::string_view name = tensor.name;
    // A dot at either end separates nothing: the role would be empty, or the name would be lost.
    auto dot = name.rfind('.');
    if (dot == 0 || dot + 1 == name.size())
      dot = std::string_view::npos;
    auto label = dot == std::string_view::npos ? std::string_view{} : name.substr(0, dot);
    auto next = static_cast<std::uint32_t>(graph.layers_.size());
    auto [group, is_new] = groups.try_emplace(label, next);
    if (is_new) {
      layer l{std::string{label}, "Layer", {}, {}, {}};
      if (next > 0)
        l.inputs.push_back(next - 1);
      graph.add(std::move(l));
    }
    auto& role = graph.layers_[group->second].tensors.emplace_back(tensor);
    if (!label.empty())
      role.name.erase(0, dot + 1);
  }
  return graph;
}

layer_description describe(const layer& l) {
  layer_description description{l.kind, l.attributes, l.tensors};
  std::sort(description.attributes.begin(), description.attributes.end());
  std::sort(description.tensors.begin(), description.tensors.end(), [](auto& a, auto& b) {
    return a.name < b.name;
  });
  return description;
}

namespace {

// Chooses the fastest BLAKE2b of this processor.
void prepare_hashing() {
  static const bool ready = sodium_init() >= 0;
  MILLRACE_ASSERT(ready);
}

} // namespace

result<layer_description> proven_description(
  const compact_graph& graph, std::size_t index, std::span<const std::byte> description) {
  auto& id = graph.ids[index];
  auto found = decode<layer_description>(description, "the description of layer " + to_string(id));
  if (!found)
    return found;
  prepare_hashing();
  layer l{{}, found->kind, found->attributes, found->tensors, graph.inputs[index]};
  structure_writer structure;
  auto bad = structure.write(l, graph.ids);
  if (!bad.ok() || structure.hash() != id)
    return fail(
      errc::protocol_error, "the description of layer {} belongs to another layer{}{}",
      to_string(id), bad.ok() ? "" : ": ", bad.detail());
  return found;
}

status check_descriptions(
  std::span<const std::byte> encoded_graph, const std::vector<described_layer>& layers) {
  if (layers.empty())
    return {};
  auto graph = decode_graph(encoded_graph);
  if (!graph)
    return {errc::invalid_argument, "its graph cannot be read: {}", graph.error().detail()};
  std::unordered_map<layer_id, std::size_t> index_of;
  for (std::size_t i = 0; i < graph->ids.size(); ++i)
    index_of.emplace(graph->ids[i], i);
  for (auto& described : layers) {
    auto at = index_of.find(described.id);
    if (at == index_of.end())
      continue;
    if (auto proven = proven_description(*graph, at->second, described.description); !proven)
      return {errc::invalid_argument, proven.error().detail()};
  }
  return {};
}

result<std::vector<layer_id>> identify_layers(const model_graph& graph) {
  auto& layers = graph.layers();
  if (auto bad = check_inputs(layers); !bad.ok())
    return fail(std::move(bad));
  auto inputs_of = [&](std::size_t i) -> auto& { return layers[i].inputs; };
  auto order = dependency_order(layers.size(), inputs_of);
  if (order.size() != layers.size())
    return fail(describe_cycle(layers, order));
  prepare_hashing();
  std::vector<layer_id> ids(layers.size());
  structure_writer structure;
  for (auto i : order) {
    if (auto bad = structure.write(layers[i], ids); !bad.ok())
      return fail(bad.within(called(layers, i)));
    ids[i] = structure.hash();
  }
  return ids;
}

result<compact_graph> compact(const model_graph& graph) {
  auto ids = identify_layers(graph);
  if (!ids)
    return fail(std::move(ids.error()));
  compact_graph out{std::move(*ids), {}};
  out.inputs.reserve(graph.layers().size());
  for (auto& l : graph.layers())
    out.inputs.push_back(l.inputs);
  return out;
}

std::vector<std::byte> encode_graph(const compact_graph& graph) {
  MILLRACE_ASSERT(graph.ids.size() == graph.inputs.size());
  byte_buffer bytes;
  bytes.reserve(4 + 20 * graph.ids.size());
  wire_writer out{bytes};
  out.varint(graph_version);
  out.varint(graph.ids.size());
  std::unordered_map<layer_id, std::uint64_t> numbers;
  numbers.reserve(graph.ids.size());
  for (std::size_t i = 0; i < graph.ids.size(); ++i) {
    auto [number, is_new] = numbers.try_emplace(graph.ids[i], numbers.size());
    out.varint(graph.inputs[i].size() << 1 | (is_new ? 0 : 1));
    if (is_new)
      out.raw(graph.ids[i].bytes.data(), graph.ids[i].bytes.size());
    else
      out.varint(number->second);
    for (auto input : graph.inputs[i]) {
      MILLRACE_ASSERT(input < graph.ids.size());
      out.varint(zigzag(static_cast<std::int64_t>(i) - static_cast<std::int64_t>(input)));
    }
  }
  return bytes;
}

result<compact_graph> decode_graph(std::span<const std::byte> bytes) {
  return graph_reader{bytes}.read();
}

result<std::shared_ptr<const hashed_graph>> hashed(const model_graph& graph) {
  if (auto known = graph.memo_.get())
    return known;
  auto compacted = compact(graph);
  if (!compacted)
    return fail(std::move(compacted.error()));
  auto out = std::make_shared<hashed_graph>();
  out->compact = std::move(*compacted);
  out->encoded = encode_graph(out->compact);
  std::unordered_set<layer_id> seen;
  for (std::size_t i = 0; i < out->compact.ids.size(); ++i)
    if (seen.insert(out->compact.ids[i]).second)
      out->descriptions.emplace_back(out->compact.ids[i], encode(describe(graph.layers()[i])));
  graph.memo_.set(out);
  return out;
}

} // namespace millrace
