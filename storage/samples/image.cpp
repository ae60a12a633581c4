// libjpeg-turbo and libpng decode from memory. libpng leaves by a long jump, so what it may jump
// over has no destructors.
#include <millrace/core/digest.hpp>
#include <millrace/storage/samples/image.hpp>

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace::storage::samples {

namespace {

using file_bytes = std::span<const std::byte>;

bool is_jpeg(file_bytes file) {
  constexpr unsigned char start[] = {0xff, 0xd8, 0xff};
  return file.size() > sizeof(start) && std::memcmp(file.data(), start, sizeof(start)) == 0;
}

bool is_png(file_bytes file) {
  constexpr unsigned char start[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  return file.size() > sizeof(start) && std::memcmp(file.data(), start, sizeof(start)) == 0;
}

// What this process lacks is no damage.
status decoding_error(std::string_view format, std::string_view why) {
  auto lacks_memory =
    why.find("memory") != std::string_view::npos || why.find("Memory") != std::string_view::npos;
  return lacks_memory ? status{errc::no_space, "decoding a {}: {}", format, why}
                      : status{errc::corrupt_data, "the {} is damaged: {}", format, why};
}

status check_size(image_size size, std::uint64_t pixels_max) {
  if (size.width == 0 || size.height == 0)
    return {errc::corrupt_data, "the image has no pixels"};
  auto count = std::uint64_t{size.width} * size.height;
  if (count > pixels_max || size.width > image_side_max || size.height > image_side_max)
    return {
      errc::corrupt_data,
      "the image has {} x {} pixels; at most {} are decoded, see image_pixels_max", size.width,
      size.height, pixels_max};
  return {};
}

pixels make_pixels(image_size size, std::uint32_t channels) {
  auto count = std::size_t{size.width} * size.height * channels;
  return {size, channels, std::make_unique_for_overwrite<std::byte[]>(count)};
}

unsigned value(std::byte of) { return std::to_integer<unsigned>(of); }

std::byte gray_of(const std::byte* rgb) {
  auto sum = value(rgb[0]) * 19595 + value(rgb[1]) * 38470 + value(rgb[2]) * 7471 + 0x8000;
  return static_cast<std::byte>(sum >> 16);
}

pixels to_gray(const pixels& from) {
  auto out = make_pixels(from.size, 1);
  for (std::size_t i = 0; i < std::size_t{from.size.width} * from.size.height; ++i)
    out.bytes[i] = gray_of(&from.bytes[3 * i]);
  return out;
}

// ---- JPEG

struct free_decoder {
  void operator()(void* one) const noexcept { ::tjDestroy(one); }
};
using jpeg_decoder = std::unique_ptr<void, free_decoder>;

struct jpeg_header {
  image_size size;
  bool is_cmyk = false;
  bool has_gaps = false;
};

status jpeg_error(const jpeg_decoder& of) {
  return decoding_error("JPEG", ::tjGetErrorStr2(of.get()));
}

// Real files have bytes between their segments, or behind their pixels, which all decoders skip.
bool only_skips_bytes(const jpeg_decoder& of, std::string_view before) {
  std::string_view why = ::tjGetErrorStr2(of.get());
  return ::tjGetErrorCode(of.get()) == TJERR_WARNING &&
    why.find("extraneous bytes before marker " + std::string{before}) != std::string_view::npos;
}

// Returns the file without the bytes between the segments up to the first scan. libjpeg keeps its
// first warning alone, so that one about them would hide that the pixels are cut short.
std::vector<std::byte> without_gaps(file_bytes file) {
  auto byte = [&](std::size_t at) { return std::to_integer<unsigned>(file[at]); };
  std::vector<std::byte> out{file.begin(), file.begin() + 2};
  std::size_t at = 2;
  while (at + 4 <= file.size()) {
    auto code = byte(at + 1);
    if (byte(at) != 0xff || code == 0 || code == 0xff) {
      ++at;
      continue;
    }
    auto has_length = code != 0x01 && (code < 0xd0 || code > 0xd9);
    if (!has_length || code == 0xda) // a scan
      break;
    auto length = std::min<std::size_t>(2 + byte(at + 2) * 256 + byte(at + 3), file.size() - at);
    auto segment = file.subspan(at, length);
    out.insert(out.end(), segment.begin(), segment.end());
    at += length;
  }
  out.insert(out.end(), file.begin() + static_cast<std::ptrdiff_t>(at), file.end());
  return out;
}

const unsigned char* data_of(file_bytes file) {
  return reinterpret_cast<const unsigned char*>(file.data());
}

result<jpeg_header> read_header(const jpeg_decoder& decoder, file_bytes file) {
  int width = 0, height = 0, sampling = 0, space = 0;
  auto is_odd =
    ::tjDecompressHeader3(
      decoder.get(), data_of(file), file.size(), &width, &height, &sampling, &space) != 0;
  if (is_odd && !only_skips_bytes(decoder, ""))
    return fail(jpeg_error(decoder));
  if (width <= 0 || height <= 0) // it has tables alone
    return fail(errc::corrupt_data, "the JPEG is damaged: it has no image");
  image_size size{static_cast<std::uint32_t>(height), static_cast<std::uint32_t>(width)};
  return jpeg_header{size, space == TJCS_CMYK || space == TJCS_YCCK, is_odd};
}

// The smallest of 1/8, 2/8 and so on that suffices.
image_size scaled_size(image_size whole, image_size least) {
  if (least == image_size{})
    return whole;
  for (auto eighths = 1u; eighths < 8; ++eighths) {
    image_size scaled{(whole.height * eighths + 7) / 8, (whole.width * eighths + 7) / 8};
    if (scaled.height >= least.height && scaled.width >= least.width)
      return scaled;
  }
  return whole;
}

// The values are those of Adobe, of which 255 is no ink.
pixels from_cmyk(const pixels& from) {
  auto out = make_pixels(from.size, 3);
  for (std::size_t i = 0; i < std::size_t{from.size.width} * from.size.height; ++i)
    for (std::size_t c = 0; c < 3; ++c) {
      auto product = value(from.bytes[4 * i + c]) * value(from.bytes[4 * i + 3]) + 128;
      out.bytes[3 * i + c] = static_cast<std::byte>((product + (product >> 8)) >> 8);
    }
  return out;
}

result<pixels> decode_jpeg(
  file_bytes file, std::uint32_t channels, std::uint64_t pixels_max, image_size least) {
  jpeg_decoder decoder{::tjInitDecompress()};
  if (!decoder)
    return fail(errc::no_space, "no memory for decoding a JPEG");
  auto header = read_header(decoder, file);
  if (!header)
    return fail(header.error());
  if (auto bad = check_size(header->size, pixels_max); !bad.ok())
    return fail(bad);
  auto size = scaled_size(header->size, least);
  auto out = make_pixels(size, header->is_cmyk ? 4 : channels);
  auto format = header->is_cmyk ? TJPF_CMYK : channels == 1 ? TJPF_GRAY : TJPF_RGB;
  std::vector<std::byte> clean;
  if (header->has_gaps) {
    clean = without_gaps(file);
    file = clean;
  }
  // A file that is cut short gives a warning. Nothing comes after the marker of the end, 0xd9. So
  // many scans as are refused have no use.
  if (
    ::tjDecompress2(
      decoder.get(), data_of(file), file.size(), reinterpret_cast<unsigned char*>(out.bytes.get()),
      static_cast<int>(size.width), 0, static_cast<int>(size.height), format,
      TJFLAG_LIMITSCANS) != 0 &&
    !only_skips_bytes(decoder, "0xd9"))
    return fail(jpeg_error(decoder));
  if (!header->is_cmyk)
    return out;
  auto rgb = from_cmyk(out);
  return channels == 1 ? to_gray(rgb) : std::move(rgb);
}

constexpr std::uint32_t mark_side = 48;

struct free_file {
  void operator()(unsigned char* one) const noexcept { ::tjFree(one); }
};

// Returns a JPEG of colors that change from pixel to pixel, with fewer samples of them than pixels.
std::vector<std::byte> make_jpeg(std::uint32_t side) {
  std::vector<unsigned char> rgb(std::size_t{3} * side * side);
  for (std::size_t i = 0; i < rgb.size(); ++i)
    rgb[i] = static_cast<unsigned char>(i * 2654435761u >> 24);
  jpeg_decoder encoder{::tjInitCompress()};
  unsigned char* made = nullptr;
  unsigned long bytes = 0;
  auto failed = !encoder ||
    ::tjCompress2(
      encoder.get(), rgb.data(), static_cast<int>(side), 0, static_cast<int>(side), TJPF_RGB, &made,
      &bytes, TJSAMP_420, 75, 0) != 0;
  std::unique_ptr<unsigned char, free_file> file{made};
  if (failed)
    throw std::bad_alloc{};
  auto* first = reinterpret_cast<const std::byte*>(made);
  return {first, first + bytes};
}

// ---- PNG

// A PNG that is being read. Its functions return false where libpng jumped back.
class png_reading {
public:
  explicit png_reading(file_bytes file) : left_(file) {
    png_ = ::png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &note_error, &ignore_warning);
    info_ = png_ ? ::png_create_info_struct(png_) : nullptr;
  }
  png_reading(const png_reading&) = delete;
  png_reading& operator=(const png_reading&) = delete;
  ~png_reading() { ::png_destroy_read_struct(&png_, &info_, nullptr); }

  bool read_header() {
    if (!info_)
      return false;
    if (setjmp(png_jmpbuf(png_)))
      return false;
    ::png_set_read_fn(png_, this, &take);
    ::png_set_user_limits(png_, image_side_max, image_side_max);
    ::png_set_chunk_malloc_max(png_, chunk_bytes_max);
    // Profiles and texts are not looked at.
    ::png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    ::png_read_info(png_, info_);
    return true;
  }

  image_size size() const {
    return {::png_get_image_height(png_, info_), ::png_get_image_width(png_, info_)};
  }
  bool is_gray() const { return (::png_get_color_type(png_, info_) & PNG_COLOR_MASK_COLOR) == 0; }

  // `into` has the rows, of one channel or three.
  bool read_rows(png_bytep into, std::size_t row_bytes, bool to_colors) {
    if (setjmp(png_jmpbuf(png_)))
      return false;
    ::png_set_expand(png_); // palettes, and less than 8 bits
    ::png_set_strip_16(png_);
    ::png_set_strip_alpha(png_);
    if (to_colors)
      ::png_set_gray_to_rgb(png_);
    auto passes = ::png_set_interlace_handling(png_);
    ::png_read_update_info(png_, info_);
    if (::png_get_rowbytes(png_, info_) != row_bytes)
      ::png_error(png_, "the rows have another length");
    for (auto pass = 0; pass < passes; ++pass)
      for (png_uint_32 y = 0; y < ::png_get_image_height(png_, info_); ++y)
        ::png_read_row(png_, into + y * row_bytes, nullptr);
    ::png_read_end(png_, nullptr);
    return true;
  }

  status error() const { return decoding_error("PNG", why_.data()); }

private:
  static constexpr png_alloc_size_t chunk_bytes_max = 8u << 20;

  static void note_error(png_structp png, png_const_charp why) {
    auto& self = *static_cast<png_reading*>(::png_get_error_ptr(png));
    std::strncpy(self.why_.data(), why, self.why_.size() - 1);
    ::png_longjmp(png, 1);
  }
  static void ignore_warning(png_structp, png_const_charp) {}

  static void take(png_structp png, png_bytep into, std::size_t count) {
    auto& self = *static_cast<png_reading*>(::png_get_io_ptr(png));
    if (count > self.left_.size())
      ::png_error(png, "it is cut short");
    std::memcpy(into, self.left_.data(), count);
    self.left_ = self.left_.subspan(count);
  }

  file_bytes left_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::array<char, 128> why_{"no memory"};
};

result<pixels> decode_png(file_bytes file, std::uint32_t channels, std::uint64_t pixels_max) {
  png_reading reading{file};
  if (!reading.read_header())
    return fail(reading.error());
  if (auto bad = check_size(reading.size(), pixels_max); !bad.ok())
    return fail(bad);
  auto to_colors = channels == 3;
  auto out = make_pixels(reading.size(), to_colors || !reading.is_gray() ? 3 : 1);
  if (!reading.read_rows(reinterpret_cast<png_bytep>(out.bytes.get()), out.row_bytes(), to_colors))
    return fail(reading.error());
  return out.channels == channels ? std::move(out) : to_gray(out);
}

} // namespace

result<image_size> image_size_of(std::span<const std::byte> file) {
  if (is_png(file)) {
    png_reading reading{file};
    return reading.read_header() ? result<image_size>{reading.size()} : fail(reading.error());
  }
  if (!is_jpeg(file))
    return fail(errc::corrupt_data, "it is neither JPEG nor PNG");
  jpeg_decoder decoder{::tjInitDecompress()};
  if (!decoder)
    return fail(errc::no_space, "no memory for decoding a JPEG");
  auto header = read_header(decoder, file);
  return header ? result<image_size>{header->size} : fail(header.error());
}

std::uint64_t decoder_mark() {
  static const auto mark = [] {
    running_digest all;
    auto file = make_jpeg(mark_side);
    for (auto channels : {1u, 3u})
      for (auto least : {image_size{}, image_size{mark_side / 2, mark_side / 2}})
        if (auto out = decode_image(file, channels, mark_side * mark_side, least))
          all.add(out->bytes.get(), out->row_bytes() * out->size.height);
    return all.value();
  }();
  return mark;
}

result<pixels> decode_image(
  std::span<const std::byte> file, std::uint32_t channels, std::uint64_t pixels_max,
  image_size least) {
  if (is_png(file))
    return decode_png(file, channels, pixels_max);
  if (is_jpeg(file))
    return decode_jpeg(file, channels, pixels_max, least);
  return fail(errc::corrupt_data, "it is neither JPEG nor PNG");
}

} // namespace millrace::storage::samples
