// Splits bytes to be sent into parts that fill a TLS record each. Used by `session`.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

namespace millrace::net::tls {

/// Short parts that follow each other share a record, because every record costs an encryption, a
/// tag and a header.
class record_cutter {
public:
  static constexpr std::size_t record_bytes_max = 16 * 1024;
  /// The bytes to encrypt before one system call sends them.
  static constexpr std::size_t batch_bytes = 4 * record_bytes_max;

  explicit record_cutter(std::span<const iovec> parts) : parts_(parts) { skip_empty(); }

  bool at_end() const noexcept { return parts_.empty(); }

  /// The next part; valid until the next call.
  std::span<const std::byte> next() {
    auto first = rest_of_part();
    if (first.size() >= record_bytes_max || parts_.size() == 1) {
      auto part = first.first(std::min(first.size(), record_bytes_max));
      advance(part.size());
      return part;
    }
    std::size_t size = 0;
    while (!at_end() && size < record_.size()) {
      auto part = rest_of_part();
      auto taken = std::min(part.size(), record_.size() - size);
      std::memcpy(record_.data() + size, part.data(), taken);
      size += taken;
      advance(taken);
    }
    return std::span{record_}.first(size);
  }

private:
  std::span<const std::byte> rest_of_part() const noexcept {
    return std::span{static_cast<const std::byte*>(parts_[0].iov_base), parts_[0].iov_len}.subspan(
      begin_);
  }
  void advance(std::size_t size) noexcept {
    begin_ += size;
    skip_empty();
  }
  void skip_empty() noexcept {
    while (!parts_.empty() && begin_ == parts_[0].iov_len) {
      parts_ = parts_.subspan(1);
      begin_ = 0;
    }
  }

  std::span<const iovec> parts_;
  std::size_t begin_ = 0;
  std::array<std::byte, record_bytes_max> record_;
};

} // namespace millrace::net::tls
