// Decodes untrusted images, and resamples what they are. Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/storage/samples/resample.hpp>

#include <cstdint>
#include <vector>

using namespace millrace;
using namespace millrace::storage::samples;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3)
    return 0;
  constexpr std::uint64_t pixels_max = 1u << 16;
  auto channels = data[0] % 2 == 0 ? 1u : 3u;
  image_size wanted{data[1] + 1u, data[2] + 1u};
  auto file = std::as_bytes(std::span{data, size}.subspan(3));
  auto about = image_size_of(file);
  auto image = decode_image(file, channels, pixels_max, data[0] % 4 < 2 ? wanted : image_size{});
  if (!image) {
    MILLRACE_ASSERT(!image.error().detail().empty());
    return 0;
  }
  MILLRACE_ASSERT(about.has_value() && image->channels == channels);
  MILLRACE_ASSERT(image->size.height <= about->height && image->size.width <= about->width);
  MILLRACE_ASSERT(std::uint64_t{about->height} * about->width <= pixels_max);
  std::vector<std::byte> out(std::size_t{wanted.height} * wanted.width * channels);
  resample_middle(*image, wanted, out);
  return 0;
}
