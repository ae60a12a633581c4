// Images of handwritten digits as matrices, one image a row. Read once by every phase of
// train_digits.
#pragma once

#include <millrace/core/status.hpp>

#include <Eigen/Core>

#include <cstdint>
#include <string>
#include <vector>

namespace train_digits {

/// Row-major, as tensors are: a dense tensor view fits it. (Eigen's own default is column-major.)
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Images with their classes.
struct samples {
  matrix images; // one a row, values 0 to 1
  std::vector<int> classes;

  Eigen::Index size() const { return images.rows(); }
};

/// The first `count` of them.
samples head_of(const samples& all, Eigen::Index count);

/// The same images for another question: is the digit even (class 0) or odd (class 1)?
samples even_or_odd(samples digits);

/// The images, and each of them moved by one pixel up, down, left and right: five times as many.
samples with_shifts(const samples& all);

struct dataset {
  samples train;
  samples test;
};

/// Reads a gzipped CSV of 64 pixels and a class a line, shuffles it, keeps a fifth for testing.
///
/// Errors: `io_error` with the path; `corrupt_data` with path and line.
millrace::result<dataset> read_digits(const std::string& path, std::uint32_t seed);

} // namespace train_digits
