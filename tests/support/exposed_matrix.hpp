// Memory for transport tests: rows with gaps, exposed as one tensor.
// Used by transport tests and the driver contract.
#pragma once

#include "fake_device.hpp"
#include "pattern.hpp"

#include <millrace/transport/fabric.hpp>
#include <millrace/transport/memory/region.hpp>

#include <cstring>
#include <memory>
#include <optional>

namespace millrace::testing {

/// `rows` rows of `row_bytes`, with `gap_bytes` between them (0: dense).
struct matrix_shape {
  std::uint64_t rows = 1;
  std::uint64_t row_bytes = 0;
  std::uint64_t gap_bytes = 0;
  std::optional<transport::arena_sharing> arena = {}; // it lies in one; nothing: on the heap

  std::uint64_t size_bytes() const { return rows * row_bytes; }
};

class exposed_matrix {
public:
  /// `device`: the device whose memory it is, unless it lies in an arena; null: host memory.
  exposed_matrix(
    const matrix_shape& shape, access_mode how, std::uint64_t salt, fake_device* device = nullptr)
    : shape_(shape) {
    auto size = shape.rows * stride();
    std::byte* data = nullptr;
    if (shape.arena) {
      arena_ = transport::arena::create(
                 {.name = "exposed", .size_bytes = size, .lock = false, .sharing = *shape.arena})
                 .value();
      data = arena_->data();
    } else if (device) {
      data = device->allocate(size);
    } else {
      memory_.resize(size);
      data = memory_.data();
    }
    bytes_ = device && !arena_ ? device->shadow(data) : data;
    if (how == access_mode::read)
      fill(salt);
    tensor_view view{
      {"m", dtype::u8, {shape.rows, shape.row_bytes}},
      data,
      {static_cast<std::int64_t>(stride()), 1}};
    region_ = std::move(*transport::expose({view}, how));
    handle_ = region_.handle();
  }

  const bulk_handle& handle() const { return handle_; }
  void withdraw() { region_.withdraw(); }

  void fill(std::uint64_t salt) {
    for (std::uint64_t row = 0; row < shape_.rows; ++row)
      write_pattern(bytes_ + row * stride(), row * shape_.row_bytes, shape_.row_bytes, salt);
  }

  /// Returns the rows, one after the other.
  std::vector<std::byte> dense() const {
    std::vector<std::byte> out(shape_.size_bytes());
    for (std::uint64_t row = 0; row < shape_.rows; ++row)
      std::memcpy(out.data() + row * shape_.row_bytes, bytes_ + row * stride(), shape_.row_bytes);
    return out;
  }

private:
  std::uint64_t stride() const { return shape_.row_bytes + shape_.gap_bytes; }

  matrix_shape shape_;
  std::shared_ptr<transport::arena> arena_;
  std::vector<std::byte> memory_;
  std::byte* bytes_ = nullptr; // host access to the matrix
  transport::region region_;
  bulk_handle handle_;
};

} // namespace millrace::testing
