// Stands in for the graph codec of core in trees that do not have it: weak, so that core's own
// wins.
#include <millrace/core/codec.hpp>
#include <millrace/core/model_graph.hpp>

namespace millrace {

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, compact_graph& x) {
  return f(x.ids);
}

[[gnu::weak]] std::vector<std::byte> encode_graph(const compact_graph& graph) {
  return encode(graph);
}

[[gnu::weak]] result<compact_graph> decode_graph(std::span<const std::byte> bytes) {
  auto graph = decode<compact_graph>(bytes, "a graph");
  if (graph)
    graph->inputs.resize(graph->ids.size());
  return graph;
}

} // namespace millrace
