// Tests that samples of .npy files have the bytes that their arrays have, in every layout, and that
// files which are not what they say are refused.
#include "opened_samples.hpp"

#include <millrace/storage/samples/npy_reader.hpp>
#include <millrace/tests/support/process.hpp>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <thread>

using namespace millrace;
using namespace millrace::storage::samples;
using millrace::testing::check_refused;
using millrace::testing::opened;
using millrace::testing::scratch;

namespace {

using bytes = std::vector<std::byte>;

// How a file is written. Element `i` of the array, in C order, is the number `i + first`.
struct written {
  std::vector<std::uint64_t> shape = {6, 2, 3};
  bool fortran = false;
  bool big_endian = false;
  int version = 1;
  std::uint16_t first = 0;
};

std::string header(const std::string& descr, const written& how) {
  std::string text = "{'descr': '" + descr +
    "', 'fortran_order': " + (how.fortran ? "True" : "False") + ", 'shape': (";
  for (auto extent : how.shape)
    text += std::to_string(extent) + ",";
  text += "), }\n";
  std::string out = "\x93NUMPY";
  out += {static_cast<char>(how.version), '\0', static_cast<char>(text.size()), '\0'};
  if (how.version > 1)
    out += {'\0', '\0'};
  return out + text;
}

std::uint64_t count_of(const std::vector<std::uint64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>{});
}

// The place in C order of an element that has the place `at` in Fortran order.
std::uint64_t c_place(std::uint64_t at, const std::vector<std::uint64_t>& shape) {
  std::uint64_t place = 0, step = count_of(shape);
  for (auto extent : shape) {
    step /= extent;
    place += at % extent * step;
    at /= extent;
  }
  return place;
}

std::string array_of(const written& how) {
  auto out = header(how.big_endian ? ">u2" : "<u2", how);
  for (std::uint64_t i = 0; i < count_of(how.shape); ++i) {
    auto value = static_cast<std::uint16_t>((how.fortran ? c_place(i, how.shape) : i) + how.first);
    auto low = static_cast<char>(value), high = static_cast<char>(value >> 8);
    out += how.big_endian ? high : low;
    out += how.big_endian ? low : high;
  }
  return out;
}

bytes numbers(std::uint16_t first, std::uint64_t count) {
  bytes out;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto value = static_cast<std::uint16_t>(first + i);
    out.push_back(static_cast<std::byte>(value));
    out.push_back(static_cast<std::byte>(value >> 8));
  }
  return out;
}

std::uint64_t sample_bytes(const sample_reader& of) {
  return *size_bytes(of.fields().at(0).sample);
}

bytes read(sample_reader& from, std::uint64_t first, std::uint64_t count) {
  bytes out(count * sample_bytes(from));
  auto bad = from.read(0, first, count, out);
  BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
  return out;
}

// Compares every range of samples with the same range of the whole array.
void check_ranges(sample_reader& subject, const bytes& whole) {
  auto each = sample_bytes(subject);
  BOOST_REQUIRE(subject.samples() * each == whole.size());
  for (std::uint64_t first = 0; first <= subject.samples(); ++first)
    for (std::uint64_t count = 0; count <= subject.samples() - first; ++count) {
      auto begin = whole.begin() + static_cast<std::ptrdiff_t>(first * each);
      bytes expected(begin, begin + static_cast<std::ptrdiff_t>(count * each));
      BOOST_TEST((read(subject, first, count) == expected), first << " " << count);
    }
}

} // namespace

BOOST_AUTO_TEST_SUITE(npy_samples)

BOOST_AUTO_TEST_CASE(every_layout_gives_the_same_samples) {
  scratch files;
  for (auto& shape : std::vector<std::vector<std::uint64_t>>{{6, 2, 3}, {5, 4}, {7}, {1, 3, 2}})
    for (auto fortran : {false, true})
      for (auto big_endian : {false, true})
        for (auto version : {1, 2, 3}) {
          auto path = files.write("a.npy", array_of({shape, fortran, big_endian, version}));
          auto subject = opened({path});
          auto& field = subject->fields().at(0).sample;
          BOOST_TEST(field.name == "x");
          BOOST_TEST((field.type == dtype::u16));
          BOOST_TEST((field.shape == std::vector(shape.begin() + 1, shape.end())));
          check_ranges(*subject, numbers(0, count_of(shape)));
        }
}

BOOST_AUTO_TEST_CASE(a_file_in_fortran_order_is_read_in_blocks_of_any_size) {
  scratch files;
  auto path = files.write("a.npy", array_of({{7, 2, 3}, true, true}));
  for (auto block_bytes : {1, 12, 13, 25, 36, 60, 84, 1000}) {
    auto subject = *open_npy({path}, static_cast<std::uint64_t>(block_bytes));
    check_ranges(*subject, numbers(0, 42));
  }
}

BOOST_AUTO_TEST_CASE(samples_of_several_files_follow_each_other) {
  scratch files;
  auto a = files.write("a.npy", array_of({{3, 2, 3}}));
  auto none = files.write("none.npy", array_of({{0, 2, 3}}));
  auto b = files.write("b.npy", array_of({{1, 2, 3}, true, false, 2, 18}));
  auto c = files.write("c.npy", array_of({{4, 2, 3}, true, true, 3, 24}));
  auto subject = opened({none, a, none, b, c, none});
  BOOST_TEST(subject->samples() == 8u);
  check_ranges(*subject, numbers(0, 48));
  BOOST_TEST(opened({none})->samples() == 0u);
}

BOOST_AUTO_TEST_CASE(a_range_that_is_not_there_is_refused) {
  scratch files;
  auto subject = opened({files.write("a.npy", array_of({}))});
  bytes into(24);
  auto code = [&](std::size_t field, std::uint64_t first, std::uint64_t count) {
    return subject->read(field, first, count, into).code();
  };
  BOOST_TEST((code(0, 4, 2) == errc::ok));
  BOOST_TEST((code(1, 0, 2) == errc::invalid_argument));
  BOOST_TEST((code(0, 5, 2) == errc::invalid_argument));
  BOOST_TEST((code(0, ~0ull, 2) == errc::invalid_argument));
  BOOST_TEST((code(0, 2, ~0ull) == errc::invalid_argument));
  BOOST_TEST((code(0, 0, 1) == errc::invalid_argument));
  BOOST_TEST((code(0, 0, 3) == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(what_is_no_regular_file_is_refused_without_waiting) {
  scratch files;
  auto fifo = files / "fifo.npy";
  BOOST_REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  check_refused({fifo}, errc::invalid_argument, {fifo, "no regular file"});
  auto folder = files / "folder.npy";
  std::filesystem::create_directory(folder);
  check_refused({folder}, errc::invalid_argument, {folder, "no files"});
  check_refused({files / "missing.npy"}, errc::not_found, {"missing.npy"});
  check_refused({}, errc::invalid_argument, {"no files"});
  check_refused({files / "a.npy", files / "b.csv"}, errc::unsupported, {"b.csv", ".npy"});
}

BOOST_AUTO_TEST_CASE(a_file_that_is_shorter_than_its_header_says_is_refused_with_both_sizes) {
  scratch files;
  auto text = array_of({{6, 2, 3}});
  text.pop_back();
  check_refused(
    {files.write("a.npy", text)}, errc::corrupt_data, {"a.npy", "72 bytes", "the file 71"});
  // Not even the header is whole.
  for (std::size_t length : {0, 5, 9, 11, 40})
    check_refused(
      {files.write("a.npy", text.substr(0, length))}, errc::corrupt_data, {"a.npy", "NPY header"});
  // More bytes than any file has.
  auto huge = std::uint64_t{1} << 40;
  for (auto& shape : std::vector<std::vector<std::uint64_t>>{{huge, huge}, {0, huge, huge}, {huge}})
    check_refused({files.write("a.npy", header("<u2", {shape}))}, errc::corrupt_data, {"a.npy"});
}

BOOST_AUTO_TEST_CASE(what_has_no_samples_is_refused) {
  scratch files;
  check_refused(
    {files.write("a.npy", array_of({{}}))}, errc::invalid_argument, {"a.npy", "scalar"});
  check_refused(
    {files.write("a.npy", array_of({{6, 0}}))}, errc::invalid_argument, {"a.npy", "no bytes"});
  check_refused(
    {files.write("a.npy", header("|O", {{2}}))}, errc::unsupported, {"a.npy", "pickled"});
  check_refused(
    {files.write("a.npy", header("<M8[ns]", {{0}}))}, errc::unsupported, {"a.npy", "<M8[ns]"});
}

BOOST_AUTO_TEST_CASE(files_of_different_samples_are_refused_by_name) {
  scratch files;
  auto a = files.write("a.npy", array_of({{6, 2, 3}}));
  for (auto& other :
       {array_of({{6, 3, 2}}), array_of({{6, 6}}), array_of({{6}}), header("<i2", {{0, 2, 3}})})
    check_refused({a, files.write("b.npy", other)}, errc::invalid_argument, {"a.npy", "b.npy"});
}

BOOST_AUTO_TEST_CASE(a_file_that_changed_gives_an_error_and_no_signal) {
  scratch files;
  for (auto fortran : {false, true}) {
    auto text = array_of({{6, 2, 3}, fortran});
    auto code = [&](auto change) {
      auto path = files.write("a.npy", text);
      auto subject = opened({path});
      // The last block of a Fortran file is in memory.
      BOOST_TEST((read(*subject, 0, 6) == numbers(0, 36)));
      change(path);
      bytes into(72);
      return subject->read(0, 0, 6, into).code();
    };
    auto nothing = [](auto&) {};
    BOOST_TEST((code(nothing) == errc::ok));
    auto cut = [&](auto& path) { std::filesystem::resize_file(path, text.size() - 1); };
    BOOST_TEST((code(cut) == errc::corrupt_data));
    auto longer = [&](auto& path) { std::filesystem::resize_file(path, text.size() + 1); };
    BOOST_TEST((code(longer) == errc::corrupt_data));
    auto touched = [](auto& path) {
      timespec times[] = {{1, 0}, {1, 0}};
      BOOST_REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
    };
    BOOST_TEST((code(touched) == errc::corrupt_data));
    // With the time of the former one.
    auto replaced = [&](auto& path) {
      auto time = std::filesystem::last_write_time(path);
      auto other = files.write("other", text);
      std::filesystem::last_write_time(other, time);
      std::filesystem::rename(other, path);
    };
    BOOST_TEST((code(replaced) == errc::corrupt_data));
    auto removed = [](auto& path) { std::filesystem::remove(path); };
    BOOST_TEST((code(removed) == errc::not_found));
  }
}

BOOST_AUTO_TEST_CASE(the_source_tells_files_and_their_states_apart) {
  scratch files;
  auto a = files.write("a.npy", array_of({}));
  auto b = files.write("b.npy", array_of({}));
  auto source = [](const std::vector<std::string>& paths) { return opened(paths)->source(); };
  auto one = source({a});
  BOOST_TEST(one == source({a}));
  BOOST_TEST(one == source({std::filesystem::relative(a).string()}));
  BOOST_TEST(one != source({b}));
  BOOST_TEST(source({a, b}) != source({b, a}));
  std::filesystem::last_write_time(a, std::filesystem::file_time_type{});
  BOOST_TEST(one != source({a}));
}

BOOST_AUTO_TEST_CASE(threads_read_different_samples_at_once) {
  scratch files;
  auto c = files.write("c.npy", array_of({{50, 2, 3}}));
  auto fortran = files.write("f.npy", array_of({{50, 2, 3}, true, true, 1, 300}));
  auto subject = *open_npy({c, fortran}, 12 * 7);
  BOOST_TEST(subject->prefers_order());
  BOOST_TEST(!opened({c})->prefers_order());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t begin = 0; begin < 4; ++begin)
    threads.emplace_back([&, begin] {
      for (auto first = begin; first < 98; ++first) {
        bytes into(36);
        auto bad = subject->read(0, first, 3, into);
        wrong += !bad.ok() || into != numbers(static_cast<std::uint16_t>(first * 6), 18);
      }
    });
  for (auto& thread : threads)
    thread.join();
  BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(files_that_numpy_wrote_have_the_bytes_that_numpy_sees) {
  scratch files;
  auto ran =
    millrace::testing::run_python({NPY_PEER, files.path.string()}, "arrays that NumPy writes");
  if (!ran)
    return;
  std::istringstream lines{ran->out};
  auto seen = 0;
  for (std::string line; std::getline(lines, line); ++seen) {
    std::istringstream parts{line};
    std::string name, shape, hex;
    std::getline(std::getline(std::getline(parts, name, '\t'), shape, '\t'), hex);
    auto subject = opened({files / name});
    auto ours = std::to_string(subject->samples());
    for (auto extent : subject->fields()[0].sample.shape)
      ours += "," + std::to_string(extent);
    BOOST_TEST(ours == shape, name);
    bytes whole;
    for (std::size_t i = 0; i < hex.size(); i += 2)
      whole.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    BOOST_TEST((read(*subject, 0, subject->samples()) == whole), name);
  }
  BOOST_TEST(seen == 39);
  check_refused({files / "objects.npy"}, errc::unsupported, {"objects.npy", "pickled"});
}

BOOST_AUTO_TEST_SUITE_END()
