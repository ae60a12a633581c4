// The memory whose bytes a stream sends or fills, given out piece by piece. Used by `stream`.
#pragma once

#include <millrace/core/status.hpp>

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::transport::tcp {

enum class flow : std::uint8_t { out, in };

/// Walks through memory. One thread at a time.
class payload {
public:
  virtual ~payload() = default;

  /// Where the next bytes lie, at most `bytes_max`, for one system call that does not wait; then `passed` must be
  /// called. Returns the number of pieces; none: see `failure`.
  virtual std::size_t pieces(std::span<iovec> out, std::uint64_t bytes_max) = 0;
  /// So many of them were moved; nobody touches the memory until the next call of `pieces`.
  virtual void passed(std::uint64_t size_bytes) = 0;

  /// Why there are no more pieces although bytes are missing. The stream goes on with nothing in their place.
  const status& failure() const noexcept { return failure_; }
  void fail(status why) {
    if (failure_.ok())
      failure_ = std::move(why);
  }

private:
  status failure_;
};

} // namespace millrace::transport::tcp
