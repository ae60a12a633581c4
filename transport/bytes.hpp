// Fixed-width numbers in fixed-size messages, little endian.
// Used by drivers whose messages the codec does not make.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace millrace::transport {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie");

/// Writes numbers one after the other. The caller has made the room.
class byte_writer {
public:
  explicit byte_writer(std::byte* at) noexcept : at_(at) {}

  void raw(const void* data, std::size_t size_bytes) noexcept {
    std::memcpy(at_, data, size_bytes);
    at_ += size_bytes;
  }
  template <class T>
  void number(T x) noexcept {
    raw(&x, sizeof(x));
  }
  std::byte* at() const noexcept { return at_; }

private:
  std::byte* at_;
};

/// Reads numbers one after the other. The caller knows that the bytes are there.
class byte_reader {
public:
  explicit byte_reader(const std::byte* at) noexcept : at_(at) {}

  void raw(void* data, std::size_t size_bytes) noexcept {
    std::memcpy(data, at_, size_bytes);
    at_ += size_bytes;
  }
  template <class T>
  T number() noexcept {
    T x{};
    raw(&x, sizeof(x));
    return x;
  }

private:
  const std::byte* at_;
};

} // namespace millrace::transport
