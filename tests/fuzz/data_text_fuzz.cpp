// Parses the texts that programs give to working sets: the state of a loader, the kind of a
// shuffle, and how images are decoded. Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/runtime/client/loader_state.hpp>
#include <millrace/storage/samples/decoded_reader.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

using namespace millrace;
using namespace millrace::storage::samples;

namespace {

void check_refusal(const status& why) {
  MILLRACE_ASSERT(why.code() == errc::invalid_argument && !why.detail().empty());
}

void fuzz_state(std::string_view text) {
  auto state = loader_state::parse(text);
  if (!state)
    return check_refusal(state.error());
  auto again = loader_state::parse(state->to_json());
  MILLRACE_ASSERT(again && *again == *state && again->to_json() == state->to_json());
}

void fuzz_shuffle(std::string_view text) {
  auto kind = shuffle_kind::parse(text);
  if (!kind)
    return check_refusal(kind.error());
  auto again = shuffle_kind::parse(kind->to_string());
  MILLRACE_ASSERT(again && *again == *kind);
}

void fuzz_decoding(std::string_view text) {
  auto how = parse_decoding(text);
  if (!how)
    return check_refusal(how.error());
  MILLRACE_ASSERT(!how->field.empty() && (how->channels == 1 || how->channels == 3));
  auto& size = how->size;
  MILLRACE_ASSERT(how->is_whole == (size.height == 0 && size.width == 0));
  MILLRACE_ASSERT(size.height <= image_side_max && size.width <= image_side_max);
  auto colors = how->channels == 1 ? "gray" : "rgb";
  auto again = parse_decoding(
    how->is_whole ? fmt::format("{}={}", how->field, colors)
                  : fmt::format("{}={}:{}x{}", how->field, colors, size.height, size.width));
  MILLRACE_ASSERT(again && again->field == how->field && again->size == size);
  MILLRACE_ASSERT(again->channels == how->channels && again->is_whole == how->is_whole);
}

} // namespace

// The first byte chooses the parser, the rest is the text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  std::string_view text{reinterpret_cast<const char*>(data) + 1, size - 1};
  constexpr void (*parsers[])(std::string_view) = {fuzz_state, fuzz_shuffle, fuzz_decoding};
  parsers[data[0] % 3](text);
  return 0;
}
