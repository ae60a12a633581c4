// Tests that samples of NPZ and HDF5 files have the bytes that their arrays have, and that files
// which are not what they say are refused, or left out.
#include "opened_samples.hpp"

#include <millrace/storage/archive/hdf5_handles.hpp>
#include <millrace/storage/archive/npy.hpp>
#include <millrace/storage/samples/sample_reader.hpp>
#include <millrace/tests/support/crafted_zip.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/process.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::storage::samples;
using millrace::testing::check_refused;
using millrace::testing::opened;
using millrace::testing::scratch;

namespace {

using bytes = std::vector<std::byte>;

std::size_t field_of(const sample_reader& reader, const std::string& name) {
  auto& fields = reader.fields();
  auto found = std::ranges::find_if(fields, [&](auto& f) { return f.sample.name == name; });
  BOOST_TEST_REQUIRE((found != fields.end()), name);
  return static_cast<std::size_t>(found - fields.begin());
}

bytes read(sample_reader& from, std::size_t field, std::uint64_t first, std::uint64_t count) {
  bytes out(count * *size_bytes(from.fields()[field].sample));
  auto bad = from.read(field, first, count, out);
  BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
  return out;
}

bytes part(const bytes& whole, std::uint64_t samples, std::uint64_t first, std::uint64_t count) {
  auto each = whole.size() / samples;
  auto begin = whole.begin() + static_cast<std::ptrdiff_t>(first * each);
  return {begin, begin + static_cast<std::ptrdiff_t>(count * each)};
}

// An array of numbers 0, 1, ... as u16, as an entry of NPZ.
std::string array_text(const std::vector<std::uint64_t>& shape, std::uint64_t numbers) {
  auto text = archive::write_npy_header({"", dtype::u16, shape});
  for (std::uint64_t i = 0; i < numbers; ++i)
    text += {static_cast<char>(i), static_cast<char>(i >> 8)};
  return text;
}

std::string npz_of(
  const scratch& files, const std::string& name,
  const std::vector<millrace::testing::crafted_entry>& entries) {
  millrace::testing::write_crafted_zip(files / name, entries);
  return files / name;
}

} // namespace

BOOST_AUTO_TEST_SUITE(array_samples)

BOOST_AUTO_TEST_CASE(files_that_numpy_and_h5py_wrote_have_the_bytes_that_they_see) {
  scratch files;
  auto ran = millrace::testing::run_python(
    {ARRAYS_PEER, files.path.string()}, "arrays that NumPy and h5py write");
  if (!ran)
    return;
  std::istringstream lines{ran->out};
  auto seen = 0;
  for (std::string line; std::getline(lines, line); ++seen) {
    std::istringstream parts{line};
    std::string name, field, shape, hex;
    std::getline(std::getline(std::getline(parts, name, '\t'), field, '\t'), shape, '\t') >> hex;
    bytes whole;
    for (std::size_t i = 0; i < hex.size(); i += 2)
      whole.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    auto subject = opened({files / name, files / name});
    BOOST_TEST(subject->samples() == 100u);
    BOOST_TEST(subject->fields().size() == 3u);
    auto at = field_of(*subject, field);
    for (auto [first, count] : std::initializer_list<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 50}, {0, 1}, {1, 7}, {8, 30}, {38, 12}, {3, 2}})
      BOOST_TEST(
        (read(*subject, at, first, count) == part(whole, 50, first, count)), line.substr(0, 60));
    auto both = whole;
    both.insert(both.end(), whole.begin(), whole.end());
    BOOST_TEST((read(*subject, at, 0, 100) == both));
    BOOST_TEST((read(*subject, at, 45, 10) == part(both, 100, 45, 10)));
  }
  BOOST_TEST(seen == 9);
  auto nested = opened({files / "nested.h5"});
  BOOST_TEST(nested->fields()[field_of(*nested, "train/mask")].together == 7u);
  BOOST_TEST(nested->fields()[field_of(*nested, "train/image")].together == 1u);
  check_refused(
    {files / "mixed.h5"}, errc::unsupported, {"mixed.h5", "words", "choose the fields"});
  check_refused(
    {files / "mixed.h5"}, errc::invalid_argument, {"no array c; there are: a, b, words"},
    {.fields = {"c"}});
  check_refused(
    {files / "packed.npz"}, errc::invalid_argument, {"the field label is given twice"},
    {.fields = {"label", "image", "label"}});
  check_refused(
    {files / "mixed.h5"}, errc::invalid_argument, {"a", "b", "different first dimensions"},
    {.fields = {"a", "b"}});
  BOOST_TEST(opened({files / "mixed.h5"}, {.fields = {"b"}})->samples() == 7u);
  check_refused({files / "objects.npz"}, errc::unsupported, {"objects.npz", "pickled"});
  BOOST_TEST(opened({files / "objects.npz"}, {.fields = {"a"}})->samples() == 50u);
  auto two = opened({files / "packed.npz"}, {.fields = {"label", "image"}});
  BOOST_TEST(two->fields()[0].sample.name == "label");
  BOOST_TEST(two->fields()[1].sample.name == "image");
  check_refused(
    {files / "packed.npz"}, errc::invalid_argument,
    {"packed.npz", "no array other; there are: ", "label"}, {.fields = {"other"}});
  check_refused(
    {files / "packed.npz", files / "nested.h5"}, errc::invalid_argument, {"packed.npz", "nested"});
}

BOOST_AUTO_TEST_CASE(a_part_of_a_sample_is_read) {
  scratch files;
  auto path = npz_of(files, "a.npz", {{"x.npy", array_text({3, 100}, 300)}});
  auto subject = opened({path});
  auto whole = read(*subject, 0, 1, 1);
  bytes some(100);
  BOOST_TEST(subject->read_part(0, 1, 64, some).ok());
  BOOST_TEST(std::equal(some.begin(), some.end(), whole.begin() + 64));
  BOOST_TEST((subject->read_part(0, 1, 63, some).code() == errc::invalid_argument));
  BOOST_TEST((subject->read_part(0, 1, 128, some).code() == errc::invalid_argument));
  BOOST_TEST((subject->read_part(0, 3, 0, some).code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(files_that_lie_are_refused_by_name) {
  scratch files;
  check_refused({files.write("a.npz", "no zip")}, errc::corrupt_data, {"a.npz"});
  check_refused({files.write("a.h5", "no hdf5")}, errc::corrupt_data, {"a.h5"});
  // The array promises more than its entry has.
  check_refused(
    {npz_of(files, "b.npz", {{"x.npy", array_text({1000, 100}, 300)}})}, errc::corrupt_data,
    {"b.npz", "x"});
  // The entry promises more than the file has.
  check_refused(
    {npz_of(files, "c.npz", {{"x.npy", array_text({1ull << 30, 100}, 300), 1ull << 40}})},
    errc::corrupt_data, {"c.npz", "x"});
  check_refused(
    {npz_of(files, "d.npz", {{"x.npy", array_text({3, 0}, 0)}})}, errc::invalid_argument,
    {"d.npz", "no bytes"});
  check_refused(
    {npz_of(files, "e.npz", {{"x.npy", array_text({}, 1)}})}, errc::invalid_argument,
    {"e.npz", "no array with samples"});
  check_refused(
    {npz_of(files, "f.npz", {{"x.npy", array_text({3}, 3)}, {"y.npy", array_text({4}, 4)}})},
    errc::invalid_argument, {"f.npz", "different first dimensions"});
  auto good = npz_of(files, "g.npz", {{"x.npy", array_text({3}, 3)}});
  check_refused(
    {good, npz_of(files, "h.npz", {{"x.npy", array_text({3, 2}, 6)}})}, errc::invalid_argument,
    {"g.npz", "h.npz"});
  check_refused({good}, errc::invalid_argument, {"labels"}, {.labels = "folders"});
}

BOOST_AUTO_TEST_CASE(damage_in_the_middle_is_blamed_on_its_file) {
  scratch files;
  auto good = npz_of(files, "a.npz", {{"x.npy", array_text({3, 5000}, 15'000)}});
  auto path = npz_of(files, "b.npz", {{"x.npy", array_text({3, 5000}, 15'000)}});
  auto text = millrace::testing::contents_of(path);
  text[20'000] = static_cast<char>(text[20'000] ^ 1);
  files.write("b.npz", text);
  auto subject = opened({good, path});
  bytes into(60'000);
  BOOST_TEST((subject->read(0, 0, 6, into).code() == errc::corrupt_data));
  BOOST_TEST_REQUIRE(subject->damaged().size() == 1u);
  BOOST_TEST(subject->damaged()[0].path == std::filesystem::canonical(path).string());
  BOOST_TEST(subject->read(0, 0, 3, std::span{into}.first(30'000)).ok());
  std::vector<damaged_file> left_out = subject->damaged();
  auto rest = open_samples({good, path}, {.skips_damaged = true}, &left_out);
  BOOST_TEST_REQUIRE(rest.has_value());
  BOOST_TEST((*rest)->samples() == 3u);
  // The files are the same, whatever of them is left out.
  BOOST_TEST((*rest)->source() == opened({good, path}, {.skips_damaged = true})->source());
}

BOOST_AUTO_TEST_CASE(damaged_files_are_left_out_where_that_is_wanted) {
  scratch files;
  auto good = npz_of(files, "a.npz", {{"x.npy", array_text({3}, 3)}});
  auto bad = files.write("b.npz", "no zip");
  std::vector<damaged_file> left_out;
  auto reader = open_samples({bad, good, files / "none.npz"}, {.skips_damaged = true}, &left_out);
  BOOST_TEST_REQUIRE(reader.has_value());
  BOOST_TEST((*reader)->samples() == 3u);
  BOOST_TEST(left_out.size() == 2u);
  auto here = std::filesystem::current_path().string() + "/";
  left_out.clear();
  BOOST_TEST_REQUIRE(
    open_samples({good, "not-there.npz"}, {.skips_damaged = true}, &left_out).has_value());
  BOOST_TEST(left_out.at(0).path == here + "not-there.npz");
  check_refused({bad}, errc::corrupt_data, {"no file can be read"}, {.skips_damaged = true});
  auto none = files / "none.npz";
  check_refused({none}, errc::not_found, {"no file can be read"}, {.skips_damaged = true});
  // Files of other fields are no damage.
  auto other = npz_of(files, "c.npz", {{"x.npy", array_text({3, 2}, 6)}});
  auto scalar = npz_of(files, "d.npz", {{"x.npy", array_text({}, 1)}});
  check_refused({good, other}, errc::invalid_argument, {"c.npz"}, {.skips_damaged = true});
  check_refused({good, scalar}, errc::invalid_argument, {"d.npz"}, {.skips_damaged = true});
  check_refused(
    {good}, errc::invalid_argument, {"no array y"}, {.fields = {"y"}, .skips_damaged = true});
}

// As tools have it that keep files by their digests.
BOOST_AUTO_TEST_CASE(the_name_of_a_link_says_the_format) {
  scratch files;
  namespace fs = std::filesystem;
  fs::create_directories(files.path / "blobs");
  npz_of(files, "blobs/3fa9", {{"x.npy", array_text({3, 5}, 15)}});
  fs::create_symlink("blobs/3fa9", files / "train.npz");
  auto subject = opened({files / "train.npz"});
  BOOST_TEST(subject->samples() == 3u);
  BOOST_TEST((read(*subject, 0, 2, 1)[2] == std::byte{11}));
  auto all = opened({files.path.string()}, {.kind = sample_kind::arrays});
  BOOST_TEST(all->samples() == 3u);
  BOOST_TEST(all->fields()[0].sample.name == "x");
}

// HDF5 promises arrays of any size without a byte of them.
BOOST_AUTO_TEST_CASE(more_samples_than_63_bits_count_are_refused) {
  scratch files;
  hsize_t extent = std::uint64_t{1} << 60, chunk = 1;
  archive::hdf5_id how{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  H5Pset_chunk(how.get(), 1, &chunk);
  archive::hdf5_id space{H5Screate_simple(1, &extent, nullptr), H5Sclose};
  auto path = files / "a.h5";
  {
    archive::hdf5_id file{
      H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose};
    archive::hdf5_id data{
      H5Dcreate2(file.get(), "x", H5T_STD_U8LE, space.get(), H5P_DEFAULT, how.get(), H5P_DEFAULT),
      H5Dclose};
    BOOST_TEST_REQUIRE(data.ok());
  }
  std::vector<std::string> paths(7, path);
  BOOST_TEST(opened(paths)->samples() == 7 * extent);
  paths.push_back(path);
  check_refused(paths, errc::invalid_argument, {"a.h5", "63 bits"});
}

BOOST_AUTO_TEST_SUITE_END()
