// Writes and parses NumPy's header: a Python literal, of which only the three known keys are
// accepted.
#include <millrace/storage/archive/npy.hpp>

#include <array>
#include <charconv>
#include <optional>

namespace millrace::storage::archive {

namespace {

constexpr std::string_view magic = "\x93NUMPY";

struct code_row {
  dtype type;
  std::string_view code;
};
constexpr std::array<code_row, 15> codes = {{
  {dtype::boolean, "b1"},
  {dtype::i8, "i1"},
  {dtype::u8, "u1"},
  {dtype::i16, "i2"},
  {dtype::u16, "u2"},
  {dtype::i32, "i4"},
  {dtype::u32, "u4"},
  {dtype::i64, "i8"},
  {dtype::u64, "u8"},
  {dtype::f16, "f2"},
  {dtype::f32, "f4"},
  {dtype::f64, "f8"},
  {dtype::c64, "c8"},
  {dtype::c128, "c16"},
  {dtype::boolean, "?"},
}};

std::string code_of(dtype type) {
  for (auto& row : codes)
    if (row.type == type)
      return (bits_per_element(type) == 8 ? "|" : "<") + std::string{row.code};
  return "|u1";
}

/// Reads the literal's text, token by token.
class literal_reader {
public:
  explicit literal_reader(std::string_view text) : text_(text) {}

  bool take(char c) {
    skip_space();
    if (text_.empty() || text_.front() != c)
      return false;
    text_.remove_prefix(1);
    return true;
  }

  bool take(std::string_view word) {
    skip_space();
    if (!text_.starts_with(word))
      return false;
    text_.remove_prefix(word.size());
    return true;
  }

  std::optional<std::string_view> take_text() {
    skip_space();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"'))
      return std::nullopt;
    auto end = text_.find(text_.front(), 1);
    if (end == std::string_view::npos)
      return std::nullopt;
    auto inside = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return inside.find('\\') == std::string_view::npos ? std::optional{inside} : std::nullopt;
  }

  std::optional<std::uint64_t> take_number() {
    skip_space();
    std::uint64_t value = 0;
    auto [end, bad] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (bad != std::errc{})
      return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    take('L'); // Python 2 wrote it after large numbers
    return value;
  }

  bool at_end() {
    skip_space();
    return text_.empty();
  }

  std::string_view rest() const { return text_; }

private:
  void skip_space() {
    auto begin = text_.find_first_not_of(" \t\n\r");
    text_.remove_prefix(begin == std::string_view::npos ? text_.size() : begin);
  }

  std::string_view text_;
};

tl::unexpected<status> wrong(const std::string& what) {
  return fail(errc::corrupt_data, "NPY header: {}", what);
}

result<bool> parse_descr(literal_reader& in, npy_header& header) {
  auto text = in.take_text();
  if (!text)
    return fail(
      errc::unsupported, "NPY header: records of several fields ({}); store each field as an array",
      in.rest().substr(0, 40));
  auto unsupported =
    fail(errc::unsupported, "NPY header: elements of type '{}'", text->substr(0, 40));
  auto order = text->empty() ? '\0' : text->front();
  auto code = *text;
  if (order == '<' || order == '>' || order == '|' || order == '=')
    code.remove_prefix(1);
  if (code == "O")
    return fail(
      errc::unsupported,
      "NPY header: elements that are Python objects; they are pickled, and "
      "reading them would run code of the file");
  for (auto& row : codes)
    if (row.code == code) {
      header.tensor.type = row.type;
      header.big_endian = order == '>' && bits_per_element(row.type) > 8;
      return true;
    }
  return unsupported;
}

result<bool> parse_order(literal_reader& in, npy_header& header) {
  header.fortran_order = in.take("True");
  if (!header.fortran_order && !in.take("False"))
    return wrong("fortran_order is neither True nor False");
  return true;
}

result<bool> parse_shape(literal_reader& in, npy_header& header) {
  if (!in.take('('))
    return wrong("the shape is no tuple");
  while (!in.take(')')) {
    auto extent = in.take_number();
    if (!extent)
      return wrong("an extent of the shape is no number");
    header.tensor.shape.push_back(*extent);
    if (header.tensor.shape.size() > tensor_rank_max)
      return wrong(fmt::format("a rank above {}", tensor_rank_max));
    if (!in.take(',')) {
      if (!in.take(')'))
        return wrong("the shape does not end");
      break;
    }
  }
  return true;
}

result<npy_header> parse_literal(std::string_view text) {
  literal_reader in{text};
  npy_header header;
  if (!in.take('{'))
    return wrong("no dictionary");
  unsigned seen = 0;
  while (!in.take('}')) {
    auto key = in.take_text();
    if (!key || !in.take(':'))
      return wrong("no key where one is due");
    auto bit = *key == "descr" ? 1u : *key == "fortran_order" ? 2u : *key == "shape" ? 4u : 0u;
    if (bit == 0 || (seen & bit) != 0)
      return wrong("the key " + std::string{key->substr(0, 40)});
    seen |= bit;
    auto value = bit == 1u ? parse_descr(in, header)
      : bit == 2u          ? parse_order(in, header)
                           : parse_shape(in, header);
    if (!value)
      return fail(value.error());
    if (!in.take(',')) {
      if (!in.take('}'))
        return wrong("the dictionary does not end");
      break;
    }
  }
  if (seen != 7 || !in.at_end())
    return wrong("it is not descr, fortran_order and shape");
  return header;
}

} // namespace

dtype numpy_type(dtype type) noexcept {
  for (auto& row : codes)
    if (row.type == type)
      return type;
  return bits_per_element(type) == 16 ? dtype::u16 : dtype::u8;
}

std::string write_npy_header(const tensor_desc& tensor) {
  auto shape = tensor.shape;
  if (bits_per_element(tensor.type) < 8)
    shape = {size_bytes(tensor).value_or(0)};
  auto text =
    "{'descr': '" + code_of(numpy_type(tensor.type)) + "', 'fortran_order': False, 'shape': (";
  for (auto extent : shape)
    text += fmt::format("{}, ", extent);
  if (shape.size() > 1)
    text.resize(text.size() - 2);
  text += "), }";
  // Magic, version and length take 10 bytes. The newline at the end of the header takes one.
  text.resize((10 + text.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  text += '\n';
  std::string header{magic};
  header +=
    {'\x01', '\x00', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return header + text;
}

result<npy_header> parse_npy_header(std::string_view text) {
  if (text.size() < 12 || !text.starts_with(magic))
    return wrong("the magic is missing");
  auto byte = [&](std::size_t at) {
    return static_cast<std::uint64_t>(static_cast<unsigned char>(text[at]));
  };
  if (byte(6) < 1 || byte(6) > 3 || byte(7) != 0)
    return fail(errc::unsupported_version, "NPY header of version {}.{}", byte(6), byte(7));
  std::uint64_t begin = byte(6) == 1 ? 10 : 12;
  auto length = byte(8) | byte(9) << 8 | (byte(6) == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > npy_header_bytes_max - begin || length > text.size() - begin)
    return wrong(fmt::format("a length of {}", length));
  auto header = parse_literal(text.substr(begin, length));
  if (header)
    header->data_offset = begin + length;
  return header;
}

} // namespace millrace::storage::archive
