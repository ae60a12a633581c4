// Decodes architectures and layer descriptions from untrusted bytes. Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/model_graph.hpp>

#include <cstddef>
#include <cstdint>

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(data), size};
  if (auto graph = decode_graph(bytes)) {
    MILLRACE_ASSERT(graph->ids.size() == graph->inputs.size());
    for (auto& inputs : graph->inputs)
      for (auto input : inputs)
        MILLRACE_ASSERT(input < graph->ids.size());
    MILLRACE_ASSERT(decode_graph(encode_graph(*graph)) == graph);
  }
  if (auto description = decode<layer_description>(bytes, "layer"))
    MILLRACE_ASSERT(decode<layer_description>(encode(*description), "layer") == description);
  return 0;
}
