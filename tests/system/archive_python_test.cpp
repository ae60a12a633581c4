// Exchanges archives with other programs. PyTorch, NumPy and h5py read what we write, and we read
// what they write.
#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/archive/npy.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/tensors_in_memory.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <iostream>
#include <optional>
#include <sstream>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::storage;
using namespace millrace::storage::archive;

namespace {

// What the peer prints; null when it lacks its library.
std::optional<std::vector<std::string>> peer(
  const std::string& verb, const std::string& format, const std::string& path) {
  auto ran = run_python({ARCHIVE_PEER, verb, format, path}, "archives across programs, " + format);
  if (!ran)
    return std::nullopt;
  std::vector<std::string> lines;
  std::istringstream in{ran->out};
  for (std::string line; std::getline(in, line);)
    lines.push_back(line);
  return lines;
}

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (auto byte : bytes) {
    text += digits[static_cast<unsigned>(byte) >> 4];
    text += digits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

std::string line_of(const tensor_desc& tensor, const std::vector<std::byte>& bytes) {
  std::string line = tensor.name + "\t" + std::string{to_string(tensor.type)} + "\t";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    line += (i == 0 ? "" : ",") + std::to_string(tensor.shape[i]);
  return line + '\t' + hex(bytes);
}

// The peer's lines with our spelling of dtypes.
std::vector<std::string> ours(std::vector<std::string> lines) {
  for (auto& line : lines) {
    if (line.find("\tjson\t") != std::string::npos)
      continue;
    auto begin = line.find('\t') + 1;
    auto end = line.find('\t', begin);
    auto type = parse_dtype(line.substr(begin, end - begin));
    BOOST_TEST_REQUIRE(type.has_value(), line);
    line.replace(begin, end - begin, to_string(*type));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

void compare(std::vector<std::string> found, std::vector<std::string> expected) {
  std::sort(found.begin(), found.end());
  std::sort(expected.begin(), expected.end());
  BOOST_TEST(found == expected, boost::test_tools::per_element());
}

// Writes tensors of these dtypes and has the peer read them. `shown`: as which dtype the peer sees
// one.
template <class Shown>
void we_write(
  archive_format format, const std::vector<dtype>& types, Shown shown,
  const std::string& file = "file") {
  scratch dir;
  tensors_in_memory source;
  for (auto type : types)
    source.add({"layer." + std::string{to_string(type)}, type, {3, 4, 2}});
  source.add({"scalar", dtype::f32, {}});
  source.add({"none", dtype::f32, {0, 3}});
  source.add({"größe", dtype::i64, {2}});
  source.say("epoch", "3");
  auto wrote = write_archive(format, dir / file, source);
  BOOST_TEST_REQUIRE(wrote.ok(), wrote.to_string());
  std::vector<std::string> expected;
  for (std::uint32_t i = 0; i < source.tensors().tensors.size(); ++i) {
    auto tensor = source.tensors().tensors[i];
    tensor.type = shown(tensor.type);
    if (bits_per_element(source.tensors().tensors[i].type) < 8)
      tensor.shape = {source.bytes(i).size()};
    expected.push_back(line_of(tensor, source.bytes(i)));
  }
  if (auto found = peer("read", std::string{to_string(format)}, dir / file))
    compare(ours(*found), expected);
}

// `what`: the peer's word for what it writes.
void they_write(const std::string& what, const std::string& file = "file") {
  scratch dir;
  auto expected = peer("write", what, dir / file);
  if (!expected)
    return;
  auto source = open_archive(dir / file);
  BOOST_TEST_REQUIRE(source.has_value(), (source ? "" : source.error().to_string()));
  std::vector<std::string> found;
  for (std::uint32_t i = 0; i < (*source)->tensors().tensors.size(); ++i) {
    auto bytes = read_tensor(**source, i, 192);
    BOOST_TEST_REQUIRE(bytes.has_value());
    found.push_back(line_of((*source)->tensors().tensors[i], *bytes));
  }
  // Other programs keep texts of their own there; values of pickles are compared.
  if (what == "trainer" || what == "optimizer")
    for (auto& [name, text] : (*source)->metadata())
      found.push_back(name + "\tjson\t\t" + hex(std::as_bytes(std::span{text})));
  compare(found, ours(*expected));
}

std::vector<dtype> all_types() {
  std::vector<dtype> all;
  for (std::uint8_t i = 0; i < dtype_count; ++i)
    all.push_back(static_cast<dtype>(i));
  return all;
}

dtype as_is(dtype type) { return type; }

} // namespace

BOOST_AUTO_TEST_SUITE(archives_across_programs)

BOOST_AUTO_TEST_CASE(pytorch_loads_what_we_write_with_weights_only) {
  using enum dtype;
  we_write(
    archive_format::torch, {boolean, u8, i8, i16, i32, i64, f16, bf16, f32, f64, c64, c128}, as_is);
}

BOOST_AUTO_TEST_CASE(what_pytorch_saves_is_read) { they_write("torch"); }

BOOST_AUTO_TEST_CASE(what_a_training_script_saves_is_read) {
  they_write("trainer");
  they_write("optimizer");
}

BOOST_AUTO_TEST_CASE(files_from_before_pytorch_1_6_are_refused_with_a_way_to_convert_them) {
  scratch dir;
  if (!peer("write", "legacy", dir / "a.pt"))
    return;
  auto source = open_archive(dir / "a.pt");
  BOOST_TEST((source.error().code() == errc::unsupported));
  BOOST_TEST(source.error().detail().find("torch.save(torch.load(") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(numpy_loads_what_we_write) {
  we_write(archive_format::npz, all_types(), archive::numpy_type);
}

BOOST_AUTO_TEST_CASE(what_numpy_saves_is_read) {
  they_write("npz");
  they_write("npz", "compressed");
}

BOOST_AUTO_TEST_CASE(h5py_reads_what_we_write) {
  we_write(archive_format::hdf5, all_types(), archive::numpy_type);
}

BOOST_AUTO_TEST_CASE(what_h5py_writes_is_read) { they_write("hdf5"); }

BOOST_AUTO_TEST_CASE(safetensors_are_as_the_format_says) {
  using enum dtype;
  we_write(archive_format::safetensors, {boolean, f8_e4m3, bf16, f32, i64}, as_is);
  they_write("safetensors");
}

BOOST_AUTO_TEST_SUITE_END()
