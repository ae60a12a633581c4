// Reads the file of an image, decodes and resamples it, one after another.
#include <millrace/storage/samples/decode_budget.hpp>
#include <millrace/storage/samples/decoded_reader.hpp>
#include <millrace/storage/samples/resample.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

namespace millrace::storage::samples {

namespace {

constexpr std::uint64_t file_bytes_more = 1u << 20; // for what is no pixels
constexpr std::uint64_t pixel_bytes_max = 8;        // 16 bits of red, green, blue and opacity
constexpr std::size_t kept_samples_max = 4;

std::optional<std::uint32_t> parse_side(std::string_view text) {
  std::uint32_t side = 0;
  auto [last, bad] = std::from_chars(text.data(), text.data() + text.size(), side);
  auto good = bad == std::errc{} && last == text.data() + text.size();
  return good && side > 0 && side <= image_side_max ? std::optional{side} : std::nullopt;
}

// A side, or height and width.
std::optional<image_size> parse_size(std::string_view text) {
  auto cross = std::min(text.find('x'), text.size());
  auto height = parse_side(text.substr(0, cross));
  auto width = cross == text.size() ? height : parse_side(text.substr(cross + 1));
  return height && width ? std::optional{image_size{*height, *width}} : std::nullopt;
}

// Checks that the file of an image is not larger than such an image can be.
status check_length(
  const sample_reader& from, std::size_t field, std::uint64_t sample, std::uint64_t pixels_max) {
  auto length = from.lengths(field)[sample];
  if (length > file_bytes_more && (length - file_bytes_more) / pixel_bytes_max > pixels_max)
    return {
      errc::corrupt_data,
      "the image has {} bytes, more than {} pixels can have, see image_pixels_max", length,
      pixels_max};
  return {};
}

// A sample of which a part was read.
struct kept_sample {
  std::size_t field = 0;
  std::uint64_t sample = 0;
  std::vector<std::byte> bytes;
};

class decoded_reader final : public sample_reader {
public:
  decoded_reader(
    std::unique_ptr<sample_reader> from, std::vector<std::optional<decoding>> fields,
    std::uint64_t pixels_max)
    : from_(std::move(from)), decodings_(std::move(fields)), pixels_max_(pixels_max),
      fields_(from_->fields()) {
    set_source(from_->source());
    for (std::size_t f = 0; f < fields_.size(); ++f)
      if (auto& how = decodings_[f])
        fields_[f] = {
          {how->field, dtype::u8, {how->size.height, how->size.width, how->channels}}, false};
  }

  std::uint64_t samples() const noexcept override { return from_->samples(); }
  const std::vector<read_field>& fields() const noexcept override { return fields_; }
  std::span<const std::uint64_t> lengths(std::size_t field) const noexcept override {
    return decodings_[field] ? std::span<const std::uint64_t>{} : from_->lengths(field);
  }
  std::string path_of(std::uint64_t sample) const override { return from_->path_of(sample); }
  bool computes() const noexcept override { return true; }
  bool prefers_order() const noexcept override { return from_->prefers_order(); }

protected:
  status read_range(
    std::size_t field, std::uint64_t first, std::uint64_t offset,
    std::span<std::byte> into) override {
    if (!decodings_[field])
      return blame_as(*from_, read_range_of(*from_, field, first, offset, into));
    auto each = *size_bytes(fields_[field].sample);
    for (; !into.empty(); ++first, offset = 0) {
      auto bytes = into.first(std::min<std::uint64_t>(into.size(), each - offset));
      auto bad = bytes.size() == each ? decode(field, first, bytes)
                                      : decode_part(field, first, offset, bytes);
      if (!bad.ok())
        return bad;
      into = into.subspan(bytes.size());
    }
    return {};
  }

private:
  status decode(std::size_t field, std::uint64_t sample, std::span<std::byte> into) {
    auto path = from_->path_of(sample);
    if (auto bad = check_length(*from_, field, sample, pixels_max_); !bad.ok())
      return blame(path, bad.within(path));
    auto length = from_->lengths(field)[sample];
    auto bytes = file_bytes_.take(length);
    std::vector<std::byte> file(length);
    if (auto bad = from_->read(field, sample, 1, file); !bad.ok())
      return blame_as(*from_, bad);
    auto pixels = pixels_.take(pixels_of(file));
    auto bad = decode_file(*decodings_[field], file, into);
    return bad.ok() ? bad : blame(path, bad.within(path));
  }

  // None of what cannot be decoded.
  static std::uint64_t pixels_of(std::span<const std::byte> file) {
    auto size = image_size_of(file);
    return size ? std::uint64_t{size->height} * size->width : 0;
  }

  status decode_file(
    const decoding& how, std::span<const std::byte> file, std::span<std::byte> into) const {
    if (how.is_whole)
      if (auto bad = check_equal(how.size, image_size_of(file)); !bad.ok())
        return bad;
    auto image = decode_image(file, how.channels, pixels_max_, how.size);
    if (!image)
      return image.error();
    resample_middle(*image, how.size, into);
    return {};
  }

  static status check_equal(image_size wanted, const result<image_size>& size) {
    if (!size)
      return size.error();
    if (*size != wanted)
      return {errc::corrupt_data,
              "the image has {} x {} pixels, and the first one {} x {}; give a size for both",
              size->height,
              size->width,
              wanted.height,
              wanted.width};
    return {};
  }

  // A sample that is larger than what is read at once is kept until it is read.
  status decode_part(
    std::size_t field, std::uint64_t sample, std::uint64_t offset, std::span<std::byte> into) {
    auto whole = find_kept(field, sample);
    if (!whole) {
      auto made = std::make_shared<kept_sample>();
      made->field = field, made->sample = sample;
      made->bytes.resize(*size_bytes(fields_[field].sample));
      if (auto bad = decode(field, sample, made->bytes); !bad.ok())
        return bad;
      keep(made);
      whole = std::move(made);
    }
    std::memcpy(into.data(), whole->bytes.data() + offset, into.size());
    return {};
  }

  std::shared_ptr<const kept_sample> find_kept(std::size_t field, std::uint64_t sample) {
    std::lock_guard guard{mutex_};
    auto found = std::ranges::find_if(
      kept_, [&](auto& one) { return one->field == field && one->sample == sample; });
    return found == kept_.end() ? nullptr : *found;
  }

  void keep(std::shared_ptr<const kept_sample> one) {
    std::lock_guard guard{mutex_};
    if (kept_.size() == kept_samples_max)
      kept_.erase(kept_.begin());
    kept_.push_back(std::move(one));
  }

  const std::unique_ptr<sample_reader> from_;
  const std::vector<std::optional<decoding>> decodings_; // by field
  const std::uint64_t pixels_max_;
  std::vector<read_field> fields_;
  decode_budget file_bytes_{image_file_bytes_at_once};
  decode_budget pixels_{pixels_at_once}; // taken after that of the file
  std::mutex mutex_;                     // for what follows
  std::vector<std::shared_ptr<const kept_sample>> kept_;
};

// Returns the number of the field that is decoded.
result<std::size_t> field_with(const sample_reader& from, const std::string& name) {
  auto& fields = from.fields();
  auto found = std::ranges::find_if(fields, [&](auto& one) { return one.sample.name == name; });
  if (found == fields.end())
    return fail(errc::invalid_argument, "decoding {}: there is no such field", name);
  if (!found->varies || found->sample.type != dtype::u8)
    return fail(
      errc::invalid_argument, "decoding {}: it is {}, and images are bytes that vary", name,
      describe(found->sample));
  return static_cast<std::size_t>(found - fields.begin());
}

// Returns the size of the first image.
result<image_size> first_size(
  sample_reader& from, std::size_t field, const sample_options& options) {
  if (auto bad = check_length(from, field, 0, options.image_pixels_max); !bad.ok())
    return fail(bad);
  std::vector<std::byte> file(from.lengths(field)[0]);
  if (auto bad = from.read(field, 0, 1, file); !bad.ok())
    return fail(bad);
  auto image = decode_image(file, 3, options.image_pixels_max);
  return image ? result<image_size>{image->size} : fail(image.error());
}

using decodings = std::vector<std::optional<decoding>>;

result<decodings> decodings_of(const sample_reader& from, const sample_options& options) {
  decodings out(from.fields().size());
  for (auto& text : options.decode) {
    auto how = parse_decoding(text);
    auto field = how ? field_with(from, how->field) : fail(how.error());
    if (!field)
      return fail(field.error());
    if (std::uint64_t{how->size.height} * how->size.width > options.image_pixels_max)
      return fail(
        errc::invalid_argument, "decoding {}: the size has more pixels than image_pixels_max, {}",
        text, options.image_pixels_max);
    if (out[*field])
      return fail(errc::invalid_argument, "decoding {}: it is given twice", how->field);
    out[*field] = std::move(*how);
  }
  return out;
}

} // namespace

result<decoding> parse_decoding(std::string_view text) {
  auto equals = text.rfind('=');
  auto bad = fail(
    errc::invalid_argument,
    "decoding {}: give FIELD=rgb or FIELD=gray, and a size where images differ, as x=rgb:224 or "
    "x=gray:28x32 (height and width, up to {})",
    text, image_side_max);
  if (equals == std::string_view::npos || equals == 0)
    return bad;
  decoding out{.field = std::string{text.substr(0, equals)}};
  auto form = text.substr(equals + 1);
  auto colon = std::min(form.find(':'), form.size());
  auto colors = form.substr(0, colon);
  if (colors != "rgb" && colors != "gray")
    return bad;
  out.channels = colors == "gray" ? 1 : 3;
  out.is_whole = colon == form.size();
  if (out.is_whole)
    return out;
  auto size = parse_size(form.substr(colon + 1));
  if (!size)
    return bad;
  out.size = *size;
  return out;
}

result<std::unique_ptr<sample_reader>> open_decoded(
  std::unique_ptr<sample_reader> from, const sample_options& options, opening& how) {
  auto fields = decodings_of(*from, options);
  if (!fields)
    return fail(fields.error());
  for (std::size_t f = 0; f < fields->size(); ++f) {
    auto& one = (*fields)[f];
    if (!one || !one->is_whole)
      continue;
    auto size = first_size(*from, f, options);
    if (size) {
      one->size = *size;
      continue;
    }
    auto path = from->path_of(0);
    if (auto bad = how.give_up(path, size.error().within(path)); !bad.ok())
      return fail(bad);
    return std::unique_ptr<sample_reader>{};
  }
  return std::make_unique<decoded_reader>(
    std::move(from), std::move(*fields), options.image_pixels_max);
}

} // namespace millrace::storage::samples
