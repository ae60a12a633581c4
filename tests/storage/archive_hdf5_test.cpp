// Reads HDF5 files of other programs. What is no tensor, or lies elsewhere, is refused by name; a
// tensor is read.
#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/archive/hdf5_handles.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/tensors_in_memory.hpp>

#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <fstream>
#include <vector>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::storage::archive;
using namespace millrace::testing;

namespace {

// A file under construction. It is closed before it is read.
struct crafted {
  scratch_directory dir;
  std::string path = dir.path() + "/file.h5";
  hdf5_id file{H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose};

  hid_t root() const { return file.get(); }

  hdf5_id group(hid_t parent, const char* name) const {
    return {H5Gcreate2(parent, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose};
  }

  hdf5_id dataset(
    const char* name, hid_t type, const std::vector<hsize_t>& shape,
    hid_t properties = H5P_DEFAULT) const {
    hdf5_id space{
      H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose};
    return {
      H5Dcreate2(root(), name, type, space.get(), H5P_DEFAULT, properties, H5P_DEFAULT), H5Dclose};
  }

  result<std::unique_ptr<tensor_source>> read() {
    BOOST_TEST_REQUIRE(file.close());
    return open_archive(path, archive_format::hdf5);
  }

  // The file as it is now is refused, with these words.
  void refused(errc code, const std::string& words) {
    auto got = read();
    BOOST_TEST_REQUIRE(!got, words);
    BOOST_TEST((got.error().code() == code), got.error().to_string());
    BOOST_TEST(got.error().detail().find(words) != std::string::npos, got.error().to_string());
  }
};

hdf5_id properties() { return {H5Pcreate(H5P_DATASET_CREATE), H5Pclose}; }

} // namespace

BOOST_AUTO_TEST_SUITE(hdf5_archives)

BOOST_AUTO_TEST_CASE(links_to_elsewhere_are_refused_by_name) {
  crafted soft;
  H5Lcreate_soft("/nowhere", soft.root(), "to", H5P_DEFAULT, H5P_DEFAULT);
  soft.refused(errc::unsupported, "to is a link to elsewhere");
  crafted external;
  H5Lcreate_external("/etc/passwd", "/", external.root(), "out", H5P_DEFAULT, H5P_DEFAULT);
  external.refused(errc::unsupported, "out is a link to elsewhere");
}

// libhdf5 complains at the end of the process of a thread that had errors when it ended.
BOOST_AUTO_TEST_CASE(a_refused_file_leaves_no_errors_behind) {
  crafted cut;
  cut.dataset("w", H5T_STD_U8LE, {4096});
  BOOST_TEST_REQUIRE(cut.file.close());
  std::filesystem::resize_file(cut.path, 600);
  for (int i = 0; i < 2; ++i) {
    auto got = open_archive(cut.path, archive_format::hdf5);
    BOOST_TEST_REQUIRE(!got);
    BOOST_TEST((got.error().code() == errc::corrupt_data), got.error().to_string());
    BOOST_TEST(got.error().detail().find("truncated") != std::string::npos);
    BOOST_TEST(H5Eget_num(H5E_DEFAULT) == 0);
  }
}

BOOST_AUTO_TEST_CASE(bytes_in_other_files_are_refused_by_name) {
  crafted external;
  auto stored = properties();
  H5Pset_external(stored.get(), "/etc/passwd", 0, 16);
  external.dataset("w", H5T_STD_U8LE, {16}, stored.get());
  external.refused(errc::unsupported, "the bytes of w lie in other files");
  crafted pieced;
  stored = properties();
  hsize_t extent = 16;
  hdf5_id space{H5Screate_simple(1, &extent, nullptr), H5Sclose};
  H5Pset_virtual(stored.get(), space.get(), "/etc/passwd", "x", space.get());
  pieced.dataset("w", H5T_STD_U8LE, {16}, stored.get());
  pieced.refused(errc::unsupported, "the bytes of w lie in other files");
}

BOOST_AUTO_TEST_CASE(groups_in_a_circle_or_too_deep_end) {
  crafted circle;
  auto outer = circle.group(circle.root(), "outer");
  H5Lcreate_hard(circle.root(), "/", outer.get(), "back", H5P_DEFAULT, H5P_DEFAULT);
  outer = {};
  circle.refused(errc::corrupt_data, "in a circle");
  crafted deep;
  std::vector<hdf5_id> groups;
  for (int i = 0; i < 40; ++i)
    groups.push_back(deep.group(groups.empty() ? deep.root() : groups.back().get(), "g"));
  groups.clear();
  deep.refused(errc::corrupt_data, "too deep");
}

BOOST_AUTO_TEST_CASE(elements_that_no_tensor_has_are_refused_by_name) {
  struct point {
    double x;
    char text[3];
  };
  hdf5_id compound{H5Tcreate(H5T_COMPOUND, sizeof(point)), H5Tclose};
  H5Tinsert(compound.get(), "x", HOFFSET(point, x), H5T_NATIVE_DOUBLE);
  hdf5_id text{H5Tcopy(H5T_C_S1), H5Tclose};
  H5Tset_size(text.get(), H5T_VARIABLE);
  hdf5_id opaque{H5Tcreate(H5T_OPAQUE, 4), H5Tclose};
  hsize_t three = 3;
  hdf5_id array{H5Tarray_create2(H5T_STD_U8LE, 1, &three), H5Tclose};
  for (auto type : {compound.get(), text.get(), opaque.get(), array.get(), H5T_STD_REF_OBJ}) {
    crafted f;
    f.dataset("odd", type, {2});
    f.refused(errc::unsupported, "odd has elements that no tensor has");
  }
  crafted none;
  hdf5_id space{H5Screate(H5S_NULL), H5Sclose};
  hdf5_id empty{
    H5Dcreate2(
      none.root(), "empty", H5T_STD_U8LE, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
    H5Dclose};
  empty = {};
  none.refused(errc::unsupported, "empty has elements that no tensor has");
}

BOOST_AUTO_TEST_CASE(a_shape_beyond_all_bounds_is_refused) {
  crafted f;
  auto chunked = properties();
  const hsize_t chunk[] = {1, 1};
  H5Pset_chunk(chunked.get(), 2, chunk);
  f.dataset("huge", H5T_STD_U64LE, {1ull << 40, 1ull << 40}, chunked.get());
  f.refused(errc::corrupt_data, "huge");
}

// The attributes are ours, and the file was changed.
BOOST_AUTO_TEST_CASE(a_dtype_that_contradicts_its_tensor_is_refused) {
  struct claim {
    const char* type;
    std::vector<std::uint64_t> shape;
  };
  const std::vector<claim> wrong = {
    {"F99", {4}},
    {"BF16", {5}},
    {"F32", {4}},
    {"BF16", {1ull << 62, 8}},
    {"BF16", std::vector<std::uint64_t>(40, 1)}};
  for (auto& one : wrong) {
    crafted f;
    BOOST_TEST_REQUIRE(write_text_attribute(f.root(), hdf5_format_attribute, "1"));
    auto dataset = f.dataset("w", H5T_STD_U16LE, {4});
    BOOST_TEST_REQUIRE(write_text_attribute(dataset.get(), hdf5_dtype_attribute, one.type));
    hsize_t rank = one.shape.size();
    hdf5_id space{H5Screate_simple(1, &rank, nullptr), H5Sclose};
    hdf5_id attribute{
      H5Acreate2(
        dataset.get(), hdf5_shape_attribute, H5T_STD_U64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose};
    H5Awrite(attribute.get(), H5T_NATIVE_UINT64, one.shape.data());
    attribute = {};
    dataset = {};
    f.refused(errc::corrupt_data, "the dtype beside w contradicts it");
  }
}

BOOST_AUTO_TEST_CASE(big_endian_and_compressed_chunks_are_read) {
  crafted f;
  std::vector<std::uint32_t> numbers(1000);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<std::uint32_t>(i * 77'777);
  auto packed = properties();
  const hsize_t chunk[] = {7, 64};
  H5Pset_chunk(packed.get(), 2, chunk);
  H5Pset_shuffle(packed.get());
  H5Pset_deflate(packed.get(), 6);
  auto inner = f.dataset("w", H5T_STD_U32BE, {10, 100}, packed.get());
  H5Dwrite(inner.get(), H5T_NATIVE_UINT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data());
  inner = {};
  auto read = f.read();
  BOOST_TEST_REQUIRE(read.has_value(), why(read));
  auto& tensors = (*read)->tensors().tensors;
  BOOST_TEST_REQUIRE(tensors.size() == 1u);
  BOOST_TEST((tensors[0].type == dtype::u32));
  auto bytes = read_tensor(**read, 0);
  BOOST_TEST_REQUIRE(bytes.has_value(), why(bytes));
  BOOST_TEST(
    std::memcmp(bytes->data(), numbers.data(), numbers.size() * sizeof(std::uint32_t)) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
