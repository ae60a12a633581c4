// Feeds random text to the readers of manifests and descriptions of flushed steps.
#include <millrace/core/assert.hpp>
#include <millrace/storage/flush/manifest.hpp>

using namespace millrace::storage::flush;

// The first byte chooses the reader, the rest is the text. What is accepted is understood again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  std::string_view text{reinterpret_cast<const char*>(data) + 1, size - 1};
  if (data[0] % 2 == 0) {
    if (auto manifest = parse_flush_manifest(text)) {
      auto again = parse_flush_manifest(to_json(*manifest));
      MILLRACE_ASSERT(again && *again == *manifest);
    }
  } else if (auto description = parse_shard_description(text)) {
    auto again = parse_shard_description(to_json(*description));
    MILLRACE_ASSERT(again && *again == *description);
  }
  return 0;
}
