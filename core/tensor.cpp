// Sizes, spellings and checks of tensors. Called by every room.
#include <millrace/core/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

namespace millrace {

namespace {

struct dtype_row {
  std::string_view name;
  std::string_view alias; // numpy and PyTorch
  std::uint32_t bits;
};

constexpr std::array<dtype_row, dtype_count> rows = {{
  {"BOOL", "bool", 8},
  {"F4", "float4_e2m1fn", 4},
  {"F6_E2M3", "float6_e2m3fn", 6},
  {"F6_E3M2", "float6_e3m2fn", 6},
  {"U8", "uint8", 8},
  {"I8", "int8", 8},
  {"F8_E5M2", "float8_e5m2", 8},
  {"F8_E4M3", "float8_e4m3fn", 8},
  {"F8_E8M0", "float8_e8m0fnu", 8},
  {"I16", "int16", 16},
  {"U16", "uint16", 16},
  {"F16", "float16", 16},
  {"BF16", "bfloat16", 16},
  {"I32", "int32", 32},
  {"U32", "uint32", 32},
  {"F32", "float32", 32},
  {"C64", "complex64", 64},
  {"F64", "float64", 64},
  {"I64", "int64", 64},
  {"U64", "uint64", 64},
  {"C128", "complex128", 128},
}};

// Returns the length of a prefix without NUL in which each byte is a character.
std::size_t plain_prefix(std::string_view text) noexcept {
  constexpr std::uint64_t ones = 0x0101010101010101, highs = 0x8080808080808080;
  std::size_t at = 0;
  for (std::uint64_t word; at + sizeof(word) <= text.size(); at += sizeof(word)) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    // A byte of 0 borrows, one above 0x7f has the high bit.
    if (((word | (word - ones)) & highs) != 0)
      break;
  }
  return at;
}

bool known(dtype type) noexcept { return static_cast<std::uint8_t>(type) < dtype_count; }

// Bytes of `shape[first..]` elements; fails on overflow or half bytes.
result<std::uint64_t> dense_bytes(const tensor_desc& tensor, std::size_t first) {
  std::uint64_t bits = bits_per_element(tensor.type);
  bool overflow = false, none = false;
  for (auto i = first; i < tensor.shape.size(); ++i) {
    none |= tensor.shape[i] == 0;
    // A shape that overflows is refused whether or not another extent is 0, as libraries do it.
    overflow |= __builtin_mul_overflow(bits, std::max<std::uint64_t>(tensor.shape[i], 1), &bits);
  }
  if (overflow)
    return fail(errc::invalid_argument, "tensor {}: its size overflows 64 bits", tensor.name);
  if (none)
    return 0;
  if (bits % 8 != 0)
    return fail(
      errc::invalid_argument, "tensor {}: {} does not fill whole bytes", tensor.name,
      describe(tensor));
  return bits / 8;
}

} // namespace

std::string_view to_string(dtype type) noexcept {
  return known(type) ? rows[static_cast<std::uint8_t>(type)].name : "unknown dtype";
}

result<dtype> parse_dtype(std::string_view name) {
  for (std::uint8_t i = 0; i < dtype_count; ++i)
    if (rows[i].name == name || rows[i].alias == name)
      return static_cast<dtype>(i);
  return fail(errc::invalid_argument, "no dtype is called {}", name);
}

std::uint32_t bits_per_element(dtype type) noexcept {
  return known(type) ? rows[static_cast<std::uint8_t>(type)].bits : 8;
}

bool is_complex(dtype type) noexcept { return type == dtype::c64 || type == dtype::c128; }

result<std::uint64_t> size_bytes(const tensor_desc& tensor) { return dense_bytes(tensor, 0); }

result<std::uint64_t> row_bytes(const tensor_desc& tensor) {
  return dense_bytes(tensor, tensor.shape.empty() ? 0 : 1);
}

bool is_utf8(std::string_view text) noexcept {
  auto at = text.begin() + static_cast<std::ptrdiff_t>(plain_prefix(text));
  auto tail = [&](int count, unsigned low, unsigned high) {
    for (; count > 0; --count, low = 0x80, high = 0xbf) {
      if (at == text.end())
        return false;
      auto byte = static_cast<unsigned char>(*at++);
      if (byte < low || byte > high)
        return false;
    }
    return true;
  };
  while (at != text.end()) {
    auto lead = static_cast<unsigned char>(*at++);
    bool good = lead >= 0x01 && lead <= 0x7f;
    if (lead >= 0xc2 && lead <= 0xdf)
      good = tail(1, 0x80, 0xbf);
    else if (lead >= 0xe0 && lead <= 0xef)
      good = tail(2, lead == 0xe0 ? 0xa0 : 0x80, lead == 0xed ? 0x9f : 0xbf);
    else if (lead >= 0xf0 && lead <= 0xf4)
      good = tail(3, lead == 0xf0 ? 0x90 : 0x80, lead == 0xf4 ? 0x8f : 0xbf);
    if (!good)
      return false;
  }
  return true;
}

status validate(const tensor_desc& tensor) {
  if (tensor.name.empty() || tensor.name.size() > tensor_name_bytes_max)
    return {
      errc::invalid_argument, "a tensor's name must have 1 to {} bytes, this one has {}",
      tensor_name_bytes_max, tensor.name.size()};
  if (!is_utf8(tensor.name))
    return {errc::invalid_argument, "a tensor's name must be UTF-8 without NUL"};
  if (!known(tensor.type))
    return {errc::invalid_argument, "tensor {}: unknown dtype", tensor.name};
  if (tensor.shape.size() > tensor_rank_max)
    return {
      errc::invalid_argument, "tensor {}: rank {} is above {}", tensor.name, tensor.shape.size(),
      tensor_rank_max};
  auto bytes = size_bytes(tensor);
  return bytes ? status{} : bytes.error();
}

std::string describe(const tensor_desc& tensor) {
  std::string text{to_string(tensor.type)};
  text += '[';
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  return text + ']';
}

namespace {

// Finds a name that comes twice. Few names are compared with each other, which takes no memory.
class distinct_names {
public:
  explicit distinct_names(std::size_t count) : are_few_(count <= few_.size()) {
    if (!are_few_)
      many_.reserve(count);
  }

  // Returns false if the name was added before.
  bool add(std::string_view name) {
    if (!are_few_)
      return many_.insert(name).second;
    auto end = few_.begin() + static_cast<std::ptrdiff_t>(count_);
    if (std::find(few_.begin(), end, name) != end)
      return false;
    few_[count_++] = name;
    return true;
  }

private:
  std::array<std::string_view, 8> few_{};
  const bool are_few_;
  std::size_t count_ = 0;
  std::unordered_set<std::string_view> many_;
};

} // namespace

status validate(const layout& tensors) {
  if (tensors.tensors.size() > layout_tensors_max)
    return {errc::invalid_argument, "a model may have at most {} tensors", layout_tensors_max};
  distinct_names names{tensors.tensors.size()};
  std::uint64_t sum = 0;
  for (auto& tensor : tensors.tensors) {
    if (auto bad = validate(tensor); !bad.ok())
      return bad;
    if (!names.add(tensor.name))
      return {errc::invalid_argument, "two tensors are called {}", tensor.name};
    if (__builtin_add_overflow(sum, *size_bytes(tensor), &sum) || sum >> 63 != 0)
      return {errc::invalid_argument, "the model's size overflows 63 bits"};
  }
  return {};
}

std::uint64_t size_bytes(const layout& tensors) {
  std::uint64_t sum = 0;
  for (auto& tensor : tensors.tensors)
    sum += size_bytes(tensor).value_or(0);
  return sum;
}

} // namespace millrace
