// Reads, shuffles and splits the digits.
#include "dataset.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>

namespace train_digits {

using millrace::errc;
using millrace::fail;

namespace {

constexpr int side = 8;
constexpr int pixels = side * side;
constexpr float pixel_max = 16;
constexpr int digits = 10;

// One line of the file: the pixels, then the class.
using record = std::array<int, pixels + 1>;

bool parse_record(const char* line, record& out) {
  const char* end = line + std::char_traits<char>::length(line);
  for (std::size_t i = 0; i < out.size(); ++i) {
    auto [next, bad] = std::from_chars(line, end, out[i]);
    auto limit = i == pixels ? digits - 1 : static_cast<int>(pixel_max);
    if (bad != std::errc{} || out[i] < 0 || out[i] > limit)
      return false;
    line = next + (next != end && *next == ',');
  }
  return line == end || *line == '\n';
}

samples to_samples(std::vector<record>::const_iterator first, std::size_t count) {
  samples out;
  out.images.resize(static_cast<Eigen::Index>(count), pixels);
  for (Eigen::Index i = 0; i < out.images.rows(); ++i, ++first) {
    for (int p = 0; p < pixels; ++p)
      out.images(i, p) = static_cast<float>((*first)[static_cast<std::size_t>(p)]) / pixel_max;
    out.classes.push_back(first->back());
  }
  return out;
}

millrace::result<std::vector<record>> read_records(const std::string& path) {
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file{gzopen(path.c_str(), "rb"), gzclose};
  if (!file)
    return fail(errc::io_error, "cannot open " + path);
  std::vector<record> records;
  std::array<char, 1024> line;
  while (gzgets(file.get(), line.data(), static_cast<int>(line.size()))) {
    records.emplace_back();
    if (!parse_record(line.data(), records.back()))
      return fail(
        errc::corrupt_data,
        path + ":" + std::to_string(records.size()) + ": not 64 pixels (0 to 16) and a class");
  }
  int problem = Z_OK;
  gzerror(file.get(), &problem);
  if (problem != Z_OK && problem != Z_STREAM_END)
    return fail(errc::corrupt_data, path + " is cut off or damaged");
  if (records.size() < 5)
    return fail(errc::corrupt_data, path + " has too few images to set a fifth aside");
  return records;
}

} // namespace

samples head_of(const samples& all, Eigen::Index count) {
  count = std::min(count, all.size());
  return {all.images.topRows(count), {all.classes.begin(), all.classes.begin() + count}};
}

samples even_or_odd(samples digits) {
  for (auto& c : digits.classes)
    c %= 2;
  return digits;
}

samples with_shifts(const samples& all) {
  constexpr std::array<std::array<int, 2>, 5> moves{{{0, 0}, {-1, 0}, {1, 0}, {0, -1}, {0, 1}}};
  samples out;
  out.images = matrix::Zero(all.size() * static_cast<Eigen::Index>(moves.size()), pixels);
  Eigen::Index to = 0;
  for (auto [down, right] : moves)
    for (Eigen::Index i = 0; i < all.size(); ++i, ++to) {
      Eigen::Map<const matrix> image{all.images.row(i).data(), side, side};
      Eigen::Map<matrix> moved{out.images.row(to).data(), side, side};
      auto rows = side - std::abs(down);
      auto columns = side - std::abs(right);
      moved.block(std::max(down, 0), std::max(right, 0), rows, columns) =
        image.block(std::max(-down, 0), std::max(-right, 0), rows, columns);
      out.classes.push_back(all.classes[static_cast<std::size_t>(i)]);
    }
  return out;
}

millrace::result<dataset> read_digits(const std::string& path, std::uint32_t seed) {
  auto records = read_records(path);
  if (!records)
    return fail(records.error());
  std::mt19937 random{seed};
  std::shuffle(records->begin(), records->end(), random);
  auto test = records->size() / 5;
  return dataset{
    to_samples(records->begin() + static_cast<std::ptrdiff_t>(test), records->size() - test),
    to_samples(records->begin(), test)};
}

} // namespace train_digits
