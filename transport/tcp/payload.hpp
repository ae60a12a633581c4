// The memory whose bytes a stream sends or fills, some at a time.
// Used by `stream`.
#pragma once

#include <millrace/core/status.hpp>

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::transport::tcp {

enum class flow : std::uint8_t { out, in };

/// Walks through memory. Threads: one at a time.
class payload {
public:
  virtual ~payload() = default;

  /// Returns where the next bytes lie, at most `bytes_max`, for one system call that does not wait.
  /// Then `passed` must be called. The result is the number of `iovec`s; 0: see `failure`.
  virtual std::size_t iovecs(std::span<iovec> out, std::uint64_t bytes_max) = 0;
  /// Says how many bytes were moved. The memory is not touched until the next call of `iovecs`.
  virtual void passed(std::uint64_t size_bytes) = 0;

  /// Returns why no more bytes can be reached although some are missing. The stream continues with
  /// filler bytes in their place or drops the bytes.
  const status& failure() const noexcept { return failure_; }
  void fail(status why) {
    if (failure_.ok())
      failure_ = std::move(why);
  }

private:
  status failure_;
};

} // namespace millrace::transport::tcp
