// Feeds random text to the reader of configurations. Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/runtime/configuration.hpp>

#include <cstddef>
#include <cstdint>

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto parsed = parse_configuration({reinterpret_cast<const char*>(data), size}, "fuzz.yaml");
  if (!parsed) {
    MILLRACE_ASSERT(parsed.error().code() == errc::invalid_argument);
    MILLRACE_ASSERT(parsed.error().detail().starts_with("fuzz.yaml:"));
    return 0;
  }
  MILLRACE_ASSERT(!parsed->nodes.empty());
  for (auto& node : parsed->nodes) {
    auto picked = parsed->for_node(node.name);
    MILLRACE_ASSERT(picked && !picked->node.listen.empty() && !node.addresses().empty());
  }
  return 0;
}
