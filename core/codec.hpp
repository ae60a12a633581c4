// The wire codec: writes and reads values through their `inspect` functions. Little endian,
// integers as LEB128, structs length-prefixed. Used by channels and for stored records.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/core/status.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace {

using byte_buffer = std::vector<std::byte>;

/// Limits of one decoding, checked before memory is allocated.
struct decode_limits {
  std::uint32_t depth_max = 16;
  /// The most memory that decoded containers may take, whatever their length fields say.
  std::uint64_t decoded_bytes_max = 64u << 20;
};

/// Appends values to a buffer. Cannot fail.
class wire_writer {
public:
  using result_type = bool;
  static constexpr bool reads_state = true;
  static constexpr bool writes_state = false;

  explicit wire_writer(byte_buffer& out) : out_(out) {}

  template <class... Ts>
  bool operator()(Ts&&... xs) {
    (put(xs), ...);
    return true;
  }

  void raw(const void* data, std::size_t size_bytes);
  void varint(std::uint64_t value);

private:
  template <class T>
  void put(const T& x);
  template <class Tag>
  void put(const id128<Tag>& x) {
    raw(x.bytes.data(), x.bytes.size());
  }
  void put(const std::string& x) { varint(x.size()), raw(x.data(), x.size()); }
  template <class T, class A>
  void put(const std::vector<T, A>& xs);
  template <class A, class B>
  void put(const std::pair<A, B>& x) {
    put(x.first), put(x.second);
  }
  void put_struct_length(std::size_t at);

  byte_buffer& out_;
};

/// Reads values from untrusted bytes. The first fault is kept, and later reads do nothing.
///
/// Never reads outside `in`, never allocates more than the limits allow, never recurses deeper than
/// `depth_max`. Unknown fields at the end of a struct are skipped; missing ones keep their
/// defaults.
class wire_reader {
public:
  using result_type = bool;
  static constexpr bool reads_state = false;
  static constexpr bool writes_state = true;

  explicit wire_reader(std::span<const std::byte> in, decode_limits limits = {})
    : at_(in.data()), end_(in.data() + in.size()), limits_(limits),
      budget_(limits.decoded_bytes_max) {}

  template <class... Ts>
  bool operator()(Ts&... xs) {
    (get_field(xs), ...);
    return ok();
  }

  bool ok() const noexcept { return fault_ == nullptr; }
  /// Returns why reading failed, or null if it did not.
  const char* fault() const noexcept { return fault_; }
  /// True if the bytes would take more memory than the limits allow; they may be well formed.
  bool over_budget() const noexcept { return over_budget_; }
  bool at_end() const noexcept { return at_ == end_; }
  std::span<const std::byte> rest() const noexcept { return {at_, end_}; }

  bool raw(void* data, std::size_t size_bytes);
  bool varint(std::uint64_t& value);

private:
  // Fields that a struct of an older version does not have keep their defaults.
  template <class T>
  void get_field(T& x) {
    if (ok() && !(depth_ > 0 && at_ == end_))
      get(x);
  }
  template <class T>
  void get(T& x);
  template <class Tag>
  void get(id128<Tag>& x) {
    raw(x.bytes.data(), x.bytes.size());
  }
  void get(std::string& x);
  template <class T, class A>
  void get(std::vector<T, A>& xs);
  template <class A, class B>
  void get(std::pair<A, B>& x) {
    get(x.first), get(x.second);
  }
  template <class T, std::size_t N>
  void get_array(std::array<T, N>& xs) {
    for (auto& x : xs)
      get(x);
  }
  template <class T>
  void get_struct(T& x);
  bool charge(std::uint64_t size_bytes);
  void stumble(const char* why) noexcept {
    if (!fault_)
      fault_ = why;
  }

  const std::byte* at_;
  const std::byte* end_;
  decode_limits limits_;
  std::uint64_t budget_;
  std::uint32_t depth_ = 0;
  const char* fault_ = nullptr;
  bool over_budget_ = false;
};

/// Returns the bytes of one value.
template <class T>
byte_buffer encode(const T& value) {
  byte_buffer out;
  wire_writer{out}(value);
  return out;
}

/// Reads one value that must fill `in` exactly.
/// Errors:  `protocol_error` naming `what` and the fault.
template <class T>
result<T> decode(std::span<const std::byte> in, std::string_view what, decode_limits limits = {}) {
  T value{};
  wire_reader reader{in, limits};
  reader(value);
  if (!reader.ok())
    return fail(errc::protocol_error, "{}: {}", what, reader.fault());
  if (!reader.at_end())
    return fail(errc::protocol_error, "{}: extra bytes at its end", what);
  return value;
}

namespace detail {

template <class T>
struct is_std_array : std::false_type {};
template <class T, std::size_t N>
struct is_std_array<std::array<T, N>> : std::true_type {};

// True for elements of one byte, which are copied together.
template <class T>
inline constexpr bool is_byte_like =
  std::is_same_v<T, std::byte> || std::is_same_v<T, std::uint8_t>;

} // namespace detail

template <class T>
void wire_writer::put(const T& x) {
  static_assert(!std::is_floating_point_v<T>, "bit-cast floating-point values to integers");
  if constexpr (std::is_same_v<T, bool> || detail::is_byte_like<T>) {
    out_.push_back(static_cast<std::byte>(x));
  } else if constexpr (std::is_enum_v<T>) {
    put(static_cast<std::underlying_type_t<T>>(x));
  } else if constexpr (std::is_integral_v<T>) {
    static_assert(std::is_unsigned_v<T>, "messages carry unsigned integers");
    varint(x);
  } else if constexpr (detail::is_std_array<T>::value) {
    for (auto& element : x)
      put(element);
  } else {
    auto length_at = out_.size();
    out_.resize(length_at + 4);
    inspect(*this, const_cast<T&>(x));
    put_struct_length(length_at);
  }
}

template <class T, class A>
void wire_writer::put(const std::vector<T, A>& xs) {
  varint(xs.size());
  if constexpr (detail::is_byte_like<T>) {
    raw(xs.data(), xs.size());
  } else {
    for (auto& x : xs)
      put(x);
  }
}

template <class T>
void wire_reader::get(T& x) {
  if constexpr (std::is_same_v<T, bool>) {
    std::uint8_t value = 0;
    if (raw(&value, 1) && value > 1)
      return stumble("a truth value that is neither 0 nor 1");
    x = value != 0;
  } else if constexpr (detail::is_byte_like<T>) {
    raw(&x, 1);
  } else if constexpr (std::is_enum_v<T>) {
    std::underlying_type_t<T> value{};
    get(value);
    x = static_cast<T>(value);
  } else if constexpr (std::is_integral_v<T>) {
    std::uint64_t value = 0;
    if (!varint(value))
      return;
    if (value > std::numeric_limits<T>::max())
      return stumble("a number too large for its field");
    x = static_cast<T>(value);
  } else if constexpr (detail::is_std_array<T>::value) {
    get_array(x);
  } else {
    get_struct(x);
  }
}

template <class T, class A>
void wire_reader::get(std::vector<T, A>& xs) {
  std::uint64_t count = 0;
  if (!varint(count))
    return;
  // Every element takes at least one byte.
  if (count > static_cast<std::uint64_t>(end_ - at_))
    return stumble("a list longer than the bytes that follow");
  if (!charge(count * sizeof(T)))
    return;
  xs.clear();
  if constexpr (detail::is_byte_like<T>) {
    auto* first = reinterpret_cast<const T*>(at_);
    xs.assign(first, first + count);
    at_ += count;
  } else {
    xs.reserve(count);
    for (std::uint64_t i = 0; i < count && ok(); ++i) {
      xs.emplace_back();
      get(xs.back());
    }
  }
}

template <class T>
void wire_reader::get_struct(T& x) {
  std::array<std::uint8_t, 4> raw_length{};
  if (!raw(raw_length.data(), raw_length.size()))
    return;
  std::uint32_t length = raw_length[0] | raw_length[1] << 8 | raw_length[2] << 16 |
    static_cast<std::uint32_t>(raw_length[3]) << 24;
  if (length > static_cast<std::uint64_t>(end_ - at_))
    return stumble("a record longer than the bytes that follow");
  if (depth_ == limits_.depth_max)
    return stumble("records nested too deeply");
  auto outer_end = end_;
  end_ = at_ + length;
  ++depth_;
  inspect(*this, x);
  --depth_;
  at_ = end_;
  end_ = outer_end;
}

} // namespace millrace
