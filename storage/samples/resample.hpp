// Images of another size. Used by the reader that decodes samples.
#pragma once

#include <millrace/storage/samples/image.hpp>

#include <cstddef>
#include <span>

namespace millrace::storage::samples {

/// Resamples the largest box in the middle of an image that has the proportions of `size`, so that
/// it has that size. The filter is a triangle, which is as wide as the pixels of the larger of both
/// images: bilinear and without aliases, with the arithmetic of Pillow's `resize(size, BILINEAR,
/// box)`.
/// Shape:   `into` has the pixels of `size`, with the channels of the image.
/// Threads: pure; any.
void resample_middle(const pixels& from, image_size size, std::span<std::byte> into);

} // namespace millrace::storage::samples
