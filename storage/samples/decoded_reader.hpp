// Samples whose images are decoded while they are read. Made by `open_samples`.
#pragma once

#include <millrace/storage/samples/image.hpp>
#include <millrace/storage/samples/opening.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::storage::samples {

/// Of images that the threads of one reader decode at once. One that has more is decoded alone.
inline constexpr std::uint64_t pixels_at_once = std::uint64_t{1} << 29;
inline constexpr std::uint64_t image_file_bytes_at_once = std::uint64_t{1} << 30;

/// As what the images of a field are decoded.
struct decoding {
  std::string field;
  std::uint32_t channels = 3;
  bool is_whole = false; // the size is that of the images, which all have the same
  image_size size = {};
};

/// Reads "FIELD=rgb:HEIGHTxWIDTH", "FIELD=gray:SIDE", "FIELD=rgb".
/// Errors:  `invalid_argument` with the text.
/// Threads: pure.
result<decoding> parse_decoding(std::string_view text);

/// Makes a reader whose fields of images are u8 [height, width, channels]. The images are decoded
/// from the bytes of `from`, which vary, by the threads that read. With a size, the middle of each
/// image is resampled to it, see `resample_middle`. Otherwise the first image is decoded here for
/// its size.
///
/// Cost:    of a read, an image at a time: its file, its pixels, and the sample. Reads wait where
///          they would have more than `pixels_at_once`, or `image_file_bytes_at_once`, together.
/// Errors:  `invalid_argument` for a field that is not there, is given twice or has no bytes that
///          vary; `corrupt_data` with the file of a damaged image. With `options.skips_damaged`,
///          the first image is left out where it is damaged: then there is no reader, and the
///          samples are opened again without it.
/// Threads: blocks the caller.
result<std::unique_ptr<sample_reader>> open_decoded(
  std::unique_ptr<sample_reader> from, const sample_options& options, opening& how);

} // namespace millrace::storage::samples
