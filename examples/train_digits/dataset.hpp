// Images of handwritten digits as matrices, one image per row.
// Read once by every phase of train_digits.
#pragma once

#include <millrace/core/status.hpp>

#include <Eigen/Core>

#include <cstdint>
#include <string>
#include <vector>

namespace train_digits {

/// Row-major, like tensors, so a dense tensor view fits it. (Eigen's own default is column-major.)
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Images with their classes.
struct samples {
  matrix images; // one image per row, values 0 to 1
  std::vector<int> classes;

  Eigen::Index size() const { return images.rows(); }
};

/// Returns the first `count` of them.
samples head_of(const samples& all, Eigen::Index count);

/// Returns the same images with other classes: even digits (class 0) and odd digits (class 1).
samples even_or_odd(samples digits);

/// Returns the images, and each of them moved by one pixel up, down, left and right: five times as
/// many.
samples with_shifts(const samples& all);

struct dataset {
  samples train;
  samples test;
};

/// Reads a gzipped CSV with 64 pixels and a class per line, shuffles it, and keeps a fifth for
/// testing.
/// Errors:  `io_error` with the path; `corrupt_data` with path and line.
millrace::result<dataset> read_digits(const std::string& path, std::uint32_t seed);

} // namespace train_digits
