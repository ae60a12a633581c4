// A model's architecture: its leaf layers and their inputs, hashed to ids that do not depend on
// labels. Built by clients, decoded by providers.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/core/inspect.hpp>
#include <millrace/core/model.hpp>
#include <millrace/core/status.hpp>
#include <millrace/core/tensor.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

/// One leaf layer: its structure, and a label that is not part of the structure.
struct layer {
  std::string label;                                           // for display only, never hashed
  std::string kind;                                            // class: "Linear", "Conv2d"
  std::vector<std::pair<std::string, std::string>> attributes; // hyper-parameters, any order
  /// The layer's tensors by role ("weight", "bias"), dtype and shape.
  std::vector<tensor_desc> tensors;
  /// Indices of the layers that feed this one, in the order of its inputs.
  std::vector<std::uint32_t> inputs;
};

/// Returns the name under which a layer's tensor is stored: "<label>.<role>", or the role if there
/// is no label.
std::string tensor_name(const layer& l, const tensor_desc& tensor);

struct hashed_graph;
class model_graph;
result<std::shared_ptr<const hashed_graph>> hashed(const model_graph& graph);

/// An architecture of leaf layers (DStore, section 3). A layer may be added before its inputs.
class model_graph {
public:
  /// Adds a layer and returns its index. Tensors of a model are named "<label>.<role>".
  std::uint32_t add(layer l);

  const std::vector<layer>& layers() const noexcept { return layers_; }
  bool empty() const noexcept { return layers_.empty(); }

  /// Returns all tensors, layer by layer, named as `tensor_name` does.
  layout tensors() const;

  /// Returns a chain of layers, each fed by the one before. Used for a table of tensors whose
  /// architecture is not known. Tensors are grouped by the text before the last dot; those without
  /// a dot share a layer without a label. Groups and their members keep the order of first
  /// appearance.
  static model_graph chain_of(const layout& tensors);

private:
  friend result<std::shared_ptr<const hashed_graph>> hashed(const model_graph& graph);

  // The result computed for the present layers. Copies of a graph share it.
  struct memo {
    memo() = default;
    memo(const memo& other) : value(other.get()) {}
    memo& operator=(const memo& other) {
      if (this != &other)
        set(other.get());
      return *this;
    }
    std::shared_ptr<const hashed_graph> get() const {
      std::lock_guard guard{mutex};
      return value;
    }
    void set(std::shared_ptr<const hashed_graph> v) const {
      std::lock_guard guard{mutex};
      value = std::move(v);
    }
    mutable std::mutex mutex;
    mutable std::shared_ptr<const hashed_graph> value;
  };

  std::vector<layer> layers_;
  memo memo_;
};

/// The structure that an id stands for: one layer without its label and inputs. Immutable.
struct layer_description {
  std::string kind;
  std::vector<std::pair<std::string, std::string>> attributes;
  std::vector<tensor_desc> tensors;

  friend bool operator==(const layer_description&, const layer_description&) = default;
};

/// Returns the description in canonical order: attributes by key, tensors by role. Layers of equal
/// structure then have equal encoded descriptions.
layer_description describe(const layer& l);

/// The largest number of layers in one graph.
inline constexpr std::size_t graph_layers_max = 1u << 20;

/// Computes the identity of every leaf layer of a model from its structure alone.
///
/// Equal structure gives equal ids whatever the labels and the order of construction.
/// Shape:   one id (16 bytes) per leaf layer, in the order of `graph.layers()`.
/// Cost:    O(layers + edges), no recursion.
/// Errors:  `invalid_argument` naming the layers of a cycle, or the layer with a dangling input, an
///          attribute or role given twice, or an invalid tensor.
/// Threads: pure; any thread.
/// Source:  DStore, section 4, Algorithm 1. We chain every input; the printed listing skips those
///          already hashed.
result<std::vector<layer_id>> identify_layers(const model_graph& graph);

/// The architecture as it is sent and stored: for each leaf layer its id and the list of its
/// inputs.
struct compact_graph {
  std::vector<layer_id> ids;
  std::vector<std::vector<std::uint32_t>> inputs; // same length as ids

  friend bool operator==(const compact_graph&, const compact_graph&) = default;
};

/// Returns the ids and inputs of all layers. Errors: as `identify_layers`.
result<compact_graph> compact(const model_graph& graph);

/// Returns the encoded graph, about 18 bytes per layer of a chain. A repeated id is written once,
/// and inputs are written as distances. Both lists must have the same length, and every input must
/// be an index of the graph, as in a graph from `compact`.
std::vector<std::byte> encode_graph(const compact_graph& graph);

/// Reads a graph that `encode_graph` wrote, from untrusted bytes. Every input of the result is an
/// index of the graph, and the graph has no cycle.
///
/// Cost:    O(bytes), no recursion; allocates at most some 40 times the input.
/// Errors:  `protocol_error` with the fault; `unsupported_version`.
result<compact_graph> decode_graph(std::span<const std::byte> bytes);

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, layer_description& x) {
  return f(x.kind, x.attributes, x.tensors);
}

/// Reads the description of a layer of the graph, and computes its id anew: from the description
/// and from the ids of the layer's inputs. So a false description is refused.
/// `index`: the layer's index in the graph.
/// Errors:  `protocol_error` for bytes that are no description, or that belong to another id.
result<layer_description> proven_description(
  const compact_graph& graph, std::size_t index, std::span<const std::byte> description);

/// Checks all descriptions of layers of the graph as `proven_description` does. Ignores others.
/// Errors:  `invalid_argument` naming the layer.
status check_descriptions(
  std::span<const std::byte> encoded_graph, const std::vector<described_layer>& layers);

/// The parts of an architecture that are sent with every model that has it.
struct hashed_graph {
  compact_graph compact;
  std::vector<std::byte> encoded; // the bytes of `compact`
  /// The description of every distinct id, encoded, in the order of first appearance.
  std::vector<std::pair<layer_id, std::vector<std::byte>>> descriptions;
};

/// Returns the hashed graph. It is computed once per state of the graph. Any thread.
/// Errors: as `identify_layers`.
result<std::shared_ptr<const hashed_graph>> hashed(const model_graph& graph);

} // namespace millrace
