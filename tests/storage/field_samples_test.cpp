// Tests that files .npy which are given as fields are samples of several fields, and that files
// which do not belong together are refused, or left out together.
#include "opened_samples.hpp"

#include <millrace/storage/samples/field_files.hpp>
#include <millrace/tests/support/npy_file.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <chrono>
#include <filesystem>

using namespace millrace;
using namespace millrace::storage::samples;
using namespace millrace::testing;

namespace {

using bytes = std::vector<std::byte>;
using words = std::vector<std::string>;

constexpr std::uint64_t image_bytes = 12;

// Images whose bytes are those of the pattern from the sample `first` on.
std::string images(
  const scratch_directory& dir, const std::string& name, std::uint64_t first, std::uint64_t count) {
  auto all = pattern((first + count) * image_bytes, 1);
  return write_npy(
    dir.path() + "/" + name, {"", dtype::u8, {count, 3, 4}},
    std::span{all}.subspan(first * image_bytes));
}

// Labels that are the numbers of the samples.
std::string labels(
  const scratch_directory& dir, const std::string& name, std::uint64_t first, std::uint64_t count) {
  std::vector<std::int64_t> all;
  for (std::uint64_t i = 0; i < count; ++i)
    all.push_back(static_cast<std::int64_t>(first + i));
  return write_npy(
    dir.path() + "/" + name, {"", dtype::i64, {count}}, std::as_bytes(std::span{all}));
}

// Reads all samples of both fields. `numbers`: those of the samples as they were written.
void check_samples(
  sample_reader& from, const std::vector<std::uint64_t>& numbers, std::size_t image = 0) {
  BOOST_TEST_REQUIRE(from.samples() == numbers.size());
  bytes seen(numbers.size() * image_bytes);
  BOOST_TEST_REQUIRE(from.read(image, 0, numbers.size(), seen).ok());
  std::vector<std::int64_t> label(numbers.size());
  BOOST_TEST_REQUIRE(
    from.read(1 - image, 0, numbers.size(), std::as_writable_bytes(std::span{label})).ok());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::span one{seen.data() + i * image_bytes, image_bytes};
    BOOST_TEST(is_pattern(one, numbers[i] * image_bytes, 1));
    BOOST_TEST(label[i] == static_cast<std::int64_t>(numbers[i]));
  }
}

std::vector<std::uint64_t> numbers(std::uint64_t first, std::uint64_t end) {
  std::vector<std::uint64_t> out;
  for (auto i = first; i < end; ++i)
    out.push_back(i);
  return out;
}

// Three files of each field: 5, 2 and 4 samples.
struct three_files {
  scratch_directory dir;
  words image = {
    images(dir, "image-0.npy", 0, 5), images(dir, "image-1.npy", 5, 2),
    images(dir, "image-2.npy", 7, 4)};
  words label = {
    labels(dir, "label-0.npy", 0, 5), labels(dir, "label-1.npy", 5, 2),
    labels(dir, "label-2.npy", 7, 4)};
  words all = {"image=" + dir.path() + "/image-{0..2}.npy", "label=" + dir.path() + "/label-*.npy"};
};

// The directory of the process, for names without a slash.
class in_directory {
public:
  explicit in_directory(const std::string& path) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(path);
  }
  ~in_directory() { std::filesystem::current_path(before_); }
  in_directory(const in_directory&) = delete;
  in_directory& operator=(const in_directory&) = delete;

private:
  const std::filesystem::path before_;
};

} // namespace

BOOST_AUTO_TEST_SUITE(field_samples)

BOOST_AUTO_TEST_CASE(files_of_each_field_follow_each_other) {
  three_files of;
  auto reader = opened(of.all);
  BOOST_TEST_REQUIRE(reader->fields().size() == 2u);
  BOOST_TEST((reader->fields()[0].sample == tensor_desc{"image", dtype::u8, {3, 4}}));
  BOOST_TEST((reader->fields()[1].sample == tensor_desc{"label", dtype::i64, {}}));
  check_samples(*reader, numbers(0, 11));
  bytes some(3 * image_bytes);
  BOOST_TEST(reader->read(0, 4, 3, some).ok()); // of two files
  BOOST_TEST(is_pattern(some, 4 * image_bytes, 1));
  // However they are given, fields have the order in which they come first.
  words mixed = {"label=" + of.label[0], "image=" + of.image[0], "image=" + of.image[1],
                 "label=" + of.label[1], "label=" + of.label[2], "image=" + of.image[2]};
  auto other = opened(mixed);
  BOOST_TEST(other->fields()[0].sample.name == "label");
  check_samples(*other, numbers(0, 11), 1);
  // Another order of the files is another one of the samples.
  words turned = {
    "image=" + of.image[2], "image=" + of.image[0], "label=" + of.label[2], "label=" + of.label[0]};
  auto swapped = opened(turned);
  BOOST_TEST(swapped->samples() == 9u);
  std::int64_t first = 0;
  BOOST_TEST(swapped->read(1, 0, 1, std::as_writable_bytes(std::span{&first, 1})).ok());
  BOOST_TEST(first == 7);
}

BOOST_AUTO_TEST_CASE(the_source_tells_what_was_given) {
  three_files of;
  auto source = opened(of.all)->source();
  BOOST_TEST(opened(of.all)->source() == source);
  words one = {"image=" + of.image[0], "label=" + of.label[0]};
  words renamed = {"image=" + of.image[0], "class=" + of.label[0]};
  words again = {
    "image=" + of.image[0], "label=" + of.label[0], "image=" + of.image[1], "label=" + of.label[1]};
  BOOST_TEST(opened(one)->source() != source);
  BOOST_TEST(opened(one)->source() != opened(renamed)->source());
  BOOST_TEST(opened(again)->source() != opened(one)->source());
  auto before = opened(one)->source();
  labels(of.dir, "label-0.npy", 1, 5); // written anew
  std::filesystem::last_write_time(
    of.label[0], std::filesystem::file_time_type::clock::now() + std::chrono::hours{1});
  BOOST_TEST(opened(one)->source() != before);
}

BOOST_AUTO_TEST_CASE(fields_are_chosen_and_others_are_not_looked_at) {
  three_files of;
  of.all.emplace_back("mask=" + of.dir.path() + "/nowhere-{0..2}.npy");
  auto reader = opened(of.all, {.fields = {"label", "image"}});
  BOOST_TEST(reader->fields()[0].sample.name == "label");
  check_samples(*reader, numbers(0, 11), 1);
  auto one = opened(of.all, {.fields = {"label"}});
  BOOST_TEST(one->fields().size() == 1u);
  BOOST_TEST(one->samples() == 11u);
  BOOST_TEST(one->source() != reader->source());
  check_refused(
    of.all, errc::invalid_argument, {"field x", "image, label, mask"}, {.fields = {"x"}});
  check_refused(of.all, errc::not_found, {"nowhere-0.npy"});
}

BOOST_AUTO_TEST_CASE(files_of_different_samples_are_refused_and_both_named) {
  three_files of;
  auto longer = labels(of.dir, "longer.npy", 5, 3);
  check_refused(
    {"image=" + of.image[0], "image=" + of.image[1], "label=" + of.label[0], "label=" + longer},
    errc::invalid_argument,
    {of.image[1], "2 samples of the field image", longer, "3 of the field label"});
  // As many in all do not suffice.
  check_refused(
    {"image=" + of.image[0], "image=" + of.image[1], "label=" + of.label[1],
     "label=" + of.label[0]},
    errc::invalid_argument, {of.image[0], of.label[1]});
  check_refused(
    {"image=" + of.image[0], "image=" + of.image[1], "label=" + of.label[0]},
    errc::invalid_argument, {"field image has 2 files", "field label has 1"});
  // Files of one field are equal.
  check_refused(
    {"image=" + of.image[0], "image=" + of.label[1], "label=" + of.label[0],
     "label=" + of.label[1]},
    errc::invalid_argument, {of.image[0], of.label[1], "U8[3, 4]", "I64"});
  check_refused(
    {"image=" + of.image[0], of.label[0]}, errc::invalid_argument,
    {"image=" + of.image[0] + " is given with a field", of.label[0]});
  check_refused(
    {of.image[0], "label=" + of.label[0]}, errc::invalid_argument,
    {"label=" + of.label[0] + " is given with a field", of.image[0]});
  auto scalar = write_npy(of.dir.path() + "/scalar.npy", {"", dtype::i64, {}}, bytes(8));
  check_refused(
    {"image=" + of.image[0], "label=" + scalar}, errc::invalid_argument, {scalar, "scalar"});
  check_refused(
    {"image=" + of.image[0], "label=" + of.dir.path() + "/labels.csv"}, errc::invalid_argument,
    {"labels.csv", ".npy"});
  check_refused(
    {"image=" + of.image[0], "label=" + of.label[0]}, errc::invalid_argument, {"label=labels.npy"},
    {.labels = "folders"});
  check_refused(
    {"image=" + of.image[0]}, errc::invalid_argument, {"the kind is `files`"},
    {.kind = sample_kind::files});
  words many;
  for (int i = 0; i < 65; ++i)
    many.push_back(fmt::format("f{}={}", i, of.label[0]));
  check_refused(many, errc::invalid_argument, {"f64=", "64 fields at most"});
}

BOOST_DATA_TEST_CASE(
  a_damaged_file_is_named_and_left_out_with_those_of_the_other_fields,
  boost::unit_test::data::make({"image-1.npy", "label-1.npy"}), name) {
  three_files of;
  auto path = of.dir.path() + "/" + name;
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  check_refused(of.all, errc::corrupt_data, {path, "shorter"});
  std::vector<damaged_file> left_out;
  auto reader = opened(of.all, {.skips_damaged = true}, &left_out);
  check_samples(*reader, {0, 1, 2, 3, 4, 7, 8, 9, 10});
  BOOST_TEST_REQUIRE(left_out.size() == 1u);
  BOOST_TEST(left_out[0].path == std::filesystem::canonical(path).string());
  // What is left out already, though it could be read.
  three_files others;
  left_out = {{std::filesystem::canonical(others.dir.path() + "/" + name).string(), {}}};
  auto without = opened(others.all, {.skips_damaged = true}, &left_out);
  check_samples(*without, {0, 1, 2, 3, 4, 7, 8, 9, 10});
  BOOST_TEST(left_out.size() == 1u);
  BOOST_TEST(without->source() == opened(others.all)->source());
}

BOOST_AUTO_TEST_CASE(a_file_that_is_not_there_is_left_out_with_those_of_the_other_fields) {
  three_files of;
  std::filesystem::remove(of.label[0]);
  std::filesystem::remove(of.image[2]);
  of.all[1] = "label=" + of.dir.path() + "/label-{0..2}.npy";
  check_refused(of.all, errc::not_found, {"image-2.npy"});
  std::vector<damaged_file> left_out;
  check_samples(*opened(of.all, {.skips_damaged = true}, &left_out), {5, 6});
  BOOST_TEST(left_out.size() == 2u);
  std::filesystem::remove(of.image[1]);
  check_refused(of.all, errc::not_found, {"no file can be read"}, {.skips_damaged = true});
}

BOOST_AUTO_TEST_CASE(a_file_that_changes_is_blamed) {
  three_files of;
  auto reader = opened(of.all);
  labels(of.dir, "label-1.npy", 0, 1);
  bytes into(11 * image_bytes);
  BOOST_TEST(reader->read(0, 0, 11, into).ok());
  BOOST_TEST(reader->damaged().empty());
  bytes numbers_of(11 * sizeof(std::int64_t));
  auto bad = reader->read(1, 0, 11, numbers_of);
  BOOST_TEST((bad.code() == errc::corrupt_data), bad.to_string());
  BOOST_TEST_REQUIRE(reader->damaged().size() == 1u);
  BOOST_TEST(reader->damaged()[0].path == std::filesystem::canonical(of.label[1]).string());
}

// A name is that of a file first.
BOOST_AUTO_TEST_CASE(files_whose_names_have_the_sign_are_read) {
  scratch_directory dir;
  in_directory here{dir.path()};
  labels(dir, "label=0.npy", 0, 3);
  labels(dir, "label=1.npy", 3, 2);
  labels(dir, "0.npy", 7, 1);
  for (auto& names :
       {words{"label=0.npy", "label=1.npy"}, words{"label=*.npy"}, words{"label={0,1}.npy"},
        words{"./label={0,1}.npy"}, words{dir.path() + "/label={0,1}.npy"}}) {
    auto reader = opened(names);
    BOOST_TEST(reader->fields()[0].sample.name == "x", names[0]);
    BOOST_TEST(reader->samples() == 5u, names[0]);
  }
  BOOST_TEST(opened({"x=label=0.npy"})->samples() == 3u);
  BOOST_TEST(opened({"y=./0.npy"})->fields()[0].sample.name == "y");
  std::filesystem::remove("label=0.npy");
  auto pair = opened({"label=0.npy"});
  BOOST_TEST(pair->fields()[0].sample.name == "label");
  BOOST_TEST(pair->samples() == 1u);
  // No field has such a name, so these are names of files.
  for (auto* name : {"=0.npy", "a b=0.npy", "a/b=0.npy", "label=", "*=0.npy"})
    BOOST_TEST(!open_samples({name}).has_value(), name);
  auto sorted = sort_by_fields({"a-1.b_c=0.npy", "d=label=*.npy", "a-1.b_c=0.npy"});
  BOOST_TEST_REQUIRE(sorted.has_value());
  BOOST_TEST_REQUIRE(sorted->size() == 2u);
  BOOST_TEST((*sorted)[0].field == "a-1.b_c");
  BOOST_TEST((*sorted)[0].files.size() == 2u);
  BOOST_TEST((*sorted)[1].files == words{"label=1.npy"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
