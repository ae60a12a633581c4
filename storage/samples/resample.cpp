// Two passes, along the rows and then along the columns, in whole numbers.
#include <millrace/storage/samples/resample.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace millrace::storage::samples {

namespace {

constexpr int fraction_bits = 32 - 8 - 2;

// For each place of the result, the weights of some places of the source.
struct weights {
  struct place {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
  };
  std::vector<place> places;
  std::vector<std::int32_t> values; // `each` for every place
  std::size_t each = 0;

  const std::int32_t* of(std::size_t place) const { return &values[place * each]; }
  std::uint32_t begin() const { return places.front().first; }
  std::uint32_t end() const { return places.back().first + places.back().count; }
};

// The weights of places `first` and following for the middle `center` of a triangle.
void add_place(weights& to, std::uint32_t in_size, double center, double width) {
  auto first = static_cast<std::uint32_t>(std::max(center - width + 0.5, 0.0));
  auto end = std::min(static_cast<std::uint32_t>(center + width + 0.5), in_size);
  std::vector<double> values;
  double sum = 0;
  for (auto x = first; x < end; ++x) {
    values.push_back(std::max(1.0 - std::abs((x - center + 0.5) / width), 0.0));
    sum += values.back();
  }
  auto at = to.places.size() * to.each;
  for (auto value : values)
    to.values[at++] = static_cast<std::int32_t>(0.5 + value / sum * (1 << fraction_bits));
  to.places.push_back({first, end - first});
}

// From `in_size` places, of which the box has those in [begin, end), to `out_size`.
weights weights_of(std::uint32_t in_size, double begin, double end, std::uint32_t out_size) {
  auto scale = (end - begin) / out_size;
  auto width = std::max(scale, 1.0);
  weights out;
  out.each = static_cast<std::size_t>(std::ceil(width)) * 2 + 1;
  out.values.resize(out.each * out_size);
  out.places.reserve(out_size);
  for (std::uint32_t i = 0; i < out_size; ++i)
    add_place(out, in_size, begin + (i + 0.5) * scale, width);
  return out;
}

std::uint8_t rounded(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> fraction_bits, 0, 255));
}

template <int Channels>
void resample_row(const std::uint8_t* from, const weights& by, std::uint8_t* into) {
  for (std::size_t x = 0; x < by.places.size(); ++x) {
    auto [first, count] = by.places[x];
    auto* weight = by.of(x);
    std::int32_t sums[Channels];
    std::fill_n(sums, Channels, 1 << (fraction_bits - 1));
    auto* pixel = from + std::size_t{first} * Channels;
    for (std::uint32_t i = 0; i < count; ++i, pixel += Channels)
      for (int c = 0; c < Channels; ++c)
        sums[c] += pixel[c] * weight[i];
    for (int c = 0; c < Channels; ++c)
      *into++ = rounded(sums[c]);
  }
}

// `rows` begins with the first row that has a weight.
void resample_columns(
  const std::vector<std::uint8_t>& rows, std::size_t row_bytes, const weights& by,
  std::uint8_t* into) {
  std::vector<std::int32_t> sums(row_bytes);
  for (std::size_t y = 0; y < by.places.size(); ++y, into += row_bytes) {
    std::ranges::fill(sums, 1 << (fraction_bits - 1));
    auto [first, count] = by.places[y];
    for (std::uint32_t i = 0; i < count; ++i) {
      auto weight = by.of(y)[i];
      auto* row = &rows[(first - by.begin() + i) * row_bytes];
      for (std::size_t x = 0; x < row_bytes; ++x)
        sums[x] += row[x] * weight;
    }
    std::ranges::transform(sums, into, rounded);
  }
}

} // namespace

void resample_middle(const pixels& from, image_size size, std::span<std::byte> into) {
  if (from.size == size) {
    std::memcpy(into.data(), from.bytes.get(), into.size());
    return;
  }
  double height = from.size.height, width = from.size.width;
  auto scale = std::min(height / size.height, width / size.width);
  auto box_height = size.height * scale, box_width = size.width * scale;
  auto left = (width - box_width) / 2, top = (height - box_height) / 2;
  auto across = weights_of(from.size.width, left, left + box_width, size.width);
  auto down = weights_of(from.size.height, top, top + box_height, size.height);
  auto row_bytes = std::size_t{size.width} * from.channels;
  std::vector<std::uint8_t> rows((down.end() - down.begin()) * row_bytes);
  auto* source = reinterpret_cast<const std::uint8_t*>(from.bytes.get());
  for (auto y = down.begin(); y < down.end(); ++y) {
    auto* to = &rows[(y - down.begin()) * row_bytes];
    auto* row = source + y * from.row_bytes();
    from.channels == 1 ? resample_row<1>(row, across, to) : resample_row<3>(row, across, to);
  }
  resample_columns(rows, row_bytes, down, reinterpret_cast<std::uint8_t*>(into.data()));
}

} // namespace millrace::storage::samples
