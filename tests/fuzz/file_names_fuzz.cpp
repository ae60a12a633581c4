// Expands braces in names of files, and parses files of labels. Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/storage/samples/label_file.hpp>
#include <millrace/storage/samples/name_patterns.hpp>

#include <cstddef>
#include <cstdint>

using namespace millrace;
using namespace millrace::storage::samples;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text{reinterpret_cast<const char*>(data), size};
  if (auto names = expand_braces(text))
    MILLRACE_ASSERT(!names->empty() && names->size() <= expanded_names_max);
  else
    MILLRACE_ASSERT(names.error().code() == errc::invalid_argument);
  if (auto labels = parse_labels(text))
    MILLRACE_ASSERT(!labels->contains(""));
  else
    MILLRACE_ASSERT(labels.error().code() == errc::corrupt_data);
  return 0;
}
