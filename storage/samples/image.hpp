// Images in JPEG and PNG: their sizes and their pixels. Used by the reader that decodes samples.
#pragma once

#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace millrace::storage::samples {

/// The largest width and height of what is decoded.
inline constexpr std::uint32_t image_side_max = 65'535;

struct image_size {
  std::uint32_t height = 0;
  std::uint32_t width = 0;

  friend bool operator==(const image_size&, const image_size&) = default;
};

/// Pixels, row after row, without gaps.
struct pixels {
  image_size size;
  std::uint32_t channels = 0; // 1: gray, 3: red, green and blue
  std::unique_ptr<std::byte[]> bytes;

  std::size_t row_bytes() const noexcept { return std::size_t{size.width} * channels; }
};

/// Reads the size of an image from its header.
/// Errors:  `corrupt_data` for what is neither JPEG nor PNG, or damaged.
/// Threads: any.
result<image_size> image_size_of(std::span<const std::byte> file);

/// Returns a digest of what this process makes of a JPEG: of its pixels, gray and in colors, at its
/// size and at half of it. Other versions of the library may decode otherwise. PNG has no choice.
/// Errors:  throws `std::bad_alloc`.
/// Threads: any.
std::uint64_t decoder_mark();

/// Decodes an image to gray or to colors, 8 bits each. Of 16 bits the upper 8 are taken, palettes
/// are resolved, transparency is left out, and CMYK is taken as Adobe writes it. Orientations in
/// EXIF and profiles of colors are not applied.
///
/// `least`: if not 0x0, a size that suffices: a JPEG is decoded to the smallest of 1/8, 2/8, ...,
/// 8/8 of its size that is not below it.
/// Errors:  `corrupt_data` saying what is wrong, for a file that is cut short, too; an image with
///          more than `pixels_max` pixels, before memory is taken for them.
/// Threads: any.
result<pixels> decode_image(
  std::span<const std::byte> file, std::uint32_t channels, std::uint64_t pixels_max,
  image_size least = {});

} // namespace millrace::storage::samples
