// Feeds random bytes to the wire codec. What decodes must survive a second round trip unchanged.
#include <millrace/core/assert.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/model.hpp>

using namespace millrace;

namespace {

template <class T>
result<T> round_trip(std::span<const std::byte> in) {
  auto first = decode<T>(in, "fuzz");
  if (!first)
    return first;
  auto written = encode(*first);
  auto second = decode<T>(written, "fuzz again");
  MILLRACE_ASSERT(second.has_value());
  MILLRACE_ASSERT(*first == *second);
  MILLRACE_ASSERT(written == encode(*second));
  return first;
}

// Does what the store does first with a record that it reads. None of it may trust the numbers.
void inspect_record(const model_record& record) {
  if (!validate_model_name(record.spec.name).ok() || !validate(record.spec.tensors).ok())
    return;
  auto summary = summarize(record);
  MILLRACE_ASSERT(summary.tensors == record.spec.tensors.tensors.size());
}

} // namespace

// The first byte chooses the type, the rest is the message.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  auto in = std::as_bytes(std::span{data, size}).subspan(1);
  switch (data[0] % 4) {
  case 0:
    if (auto record = round_trip<model_record>(in))
      inspect_record(*record);
    break;
  case 1:
    if (auto spec = round_trip<model_spec>(in))
      (void)validate(spec->tensors);
    break;
  case 2:
    if (auto handle = round_trip<bulk_handle>(in))
      (void)size_bytes(*handle);
    break;
  default:
    (void)round_trip<std::vector<described_layer>>(in);
    break;
  }
  return 0;
}
