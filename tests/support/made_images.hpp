// Small images in JPEG and PNG. Used by the tests of samples that are decoded.
#pragma once

#include <millrace/core/assert.hpp>

#include <png.h>
#include <turbojpeg.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace millrace::testing {

/// Returns the pixels, three bytes each, of an image that `seed` makes unlike others.
inline std::string made_pixels(std::uint32_t height, std::uint32_t width, std::uint32_t seed = 0) {
  std::string out;
  for (std::uint32_t y = 0; y < height; ++y)
    for (std::uint32_t x = 0; x < width; ++x)
      for (auto value : {x * 255 / width, y * 255 / height, (x + y + seed * 40) % 256})
        out += static_cast<char>(value);
  return out;
}

inline std::string png_of(const std::string& pixels, std::uint32_t height, std::uint32_t width) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = width, image.height = height;
  image.format = pixels.size() == std::size_t{height} * width ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  std::string out(pixels.size() * 2 + 4096, '\0');
  png_alloc_size_t size = out.size();
  MILLRACE_ASSERT(
    ::png_image_write_to_memory(&image, out.data(), &size, 0, pixels.data(), 0, nullptr) != 0);
  out.resize(size);
  return out;
}

inline std::string jpeg_of(const std::string& pixels, std::uint32_t height, std::uint32_t width) {
  std::unique_ptr<void, int (*)(void*)> maker{::tjInitCompress(), &::tjDestroy};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  MILLRACE_ASSERT(
    ::tjCompress2(
      maker.get(), reinterpret_cast<const unsigned char*>(pixels.data()), static_cast<int>(width),
      0, static_cast<int>(height), TJPF_RGB, &bytes, &size, TJSAMP_420, 90, 0) == 0);
  std::string out{reinterpret_cast<const char*>(bytes), size};
  ::tjFree(bytes);
  return out;
}

} // namespace millrace::testing
