// Reads samples of crafted HDF5 files: groups, links, datasets of all kinds, and the attributes of
// our own files. Run by libFuzzer.
//
// libhdf5 writes them. Of files whose bytes are changed behind it, it leaks memory and reads beyond
// its buffers within seconds (1.10.8), which docs/data.md warns of. So what is tried here is the
// reader over it, and files that are cut short.
#include <millrace/core/assert.hpp>
#include <millrace/storage/archive/hdf5_handles.hpp>
#include <millrace/storage/samples/sample_reader.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

using namespace millrace;
using namespace millrace::storage::archive;
using namespace millrace::storage::samples;
using millrace::testing::is_pattern;
using millrace::testing::pattern;

namespace {

constexpr std::uint64_t bytes_max = 1u << 16; // of a dataset that is written

// The bytes of an input, one by one; 0 after the last.
class script {
public:
  explicit script(std::span<const std::uint8_t> in) : in_(in) {}

  bool is_over() const { return in_.empty(); }
  std::uint8_t next() {
    auto byte = in_.empty() ? std::uint8_t{0} : in_.front();
    in_ = in_.subspan(in_.empty() ? 0 : 1);
    return byte;
  }

private:
  std::span<const std::uint8_t> in_;
};

// Writes a file by a script. `written` has the salts of the patterns in datasets of numbers.
class crafted_hdf5 {
public:
  crafted_hdf5(const std::string& path, script by)
    : file_(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose), by_(by) {
    groups_.emplace_back(H5Gopen2(file_.get(), "/", H5P_DEFAULT), H5Gclose);
    paths_.emplace_back();
    while (!by_.is_over() && groups_.size() < 40)
      step();
  }

  std::map<std::string, std::uint8_t> written;

private:
  void step();
  void begin_group();
  void add_dataset();
  void write(hid_t dataset, dtype of, std::uint64_t elements, const std::string& path);
  void mark_dataset(hid_t dataset);
  hdf5_id properties(const std::vector<hsize_t>& shape);

  std::string name() { return std::string(1, static_cast<char>('a' + by_.next() % 6)); }
  hid_t group() const { return groups_.back().get(); }

  hdf5_id file_;
  script by_;
  std::vector<hdf5_id> groups_; // the present one, and those around it
  std::vector<std::string> paths_;
};

void crafted_hdf5::step() {
  switch (by_.next() % 8) {
  case 0:
    return begin_group();
  case 1:
    if (groups_.size() > 1)
      groups_.pop_back(), paths_.pop_back();
    return;
  case 2:
    H5Lcreate_soft("/a", group(), name().c_str(), H5P_DEFAULT, H5P_DEFAULT);
    return;
  case 3:
    H5Lcreate_external("/dev/null", "/", group(), name().c_str(), H5P_DEFAULT, H5P_DEFAULT);
    return;
  case 4:
    H5Lcreate_hard(file_.get(), "/", group(), name().c_str(), H5P_DEFAULT, H5P_DEFAULT);
    return;
  case 5:
    write_text_attribute(file_.get(), by_.next() % 2 == 0 ? hdf5_format_attribute : "a", name());
    return;
  default:
    return add_dataset();
  }
}

void crafted_hdf5::begin_group() {
  auto called = name();
  hdf5_id made{
    H5Gcreate2(group(), called.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose};
  if (!made.ok())
    return;
  groups_.push_back(std::move(made));
  paths_.push_back(paths_.back() + called + "/");
}

// Chunks, filters, and how much of it is written later.
hdf5_id crafted_hdf5::properties(const std::vector<hsize_t>& shape) {
  hdf5_id out{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  auto how = by_.next();
  if (how % 2 == 0 || shape.empty())
    return out;
  std::vector<hsize_t> chunk;
  chunk.reserve(shape.size());
  for (auto extent : shape)
    chunk.push_back(std::min<hsize_t>(by_.next() % 16 + 1, std::max<hsize_t>(extent, 1)));
  H5Pset_chunk(out.get(), static_cast<int>(chunk.size()), chunk.data());
  if ((how & 2) != 0)
    H5Pset_shuffle(out.get());
  if ((how & 4) != 0)
    H5Pset_deflate(out.get(), 1);
  if ((how & 8) != 0)
    H5Pset_fletcher32(out.get());
  return out;
}

void crafted_hdf5::add_dataset() {
  auto called = name();
  constexpr dtype types[] = {dtype::u8,  dtype::i16, dtype::f16, dtype::f32,
                             dtype::i64, dtype::f64, dtype::c64, dtype::boolean};
  auto which = by_.next();
  auto of = types[which % 8];
  auto type = which >= 0xf0 ? hdf5_id{H5Tcreate(H5T_OPAQUE, 4), H5Tclose} : hdf5_type_of(of);
  if (which % 16 >= 8 && H5Tget_class(type.get()) == H5T_INTEGER)
    H5Tset_order(type.get(), H5T_ORDER_BE);
  std::vector<hsize_t> shape(by_.next() % 4);
  std::uint64_t elements = 1;
  for (auto& extent : shape) {
    auto wide = by_.next();
    extent = wide == 0xff ? hsize_t{1} << by_.next() % 64 : wide % 20;
    elements = extent > bytes_max ? bytes_max + 1
                                  : std::min<std::uint64_t>(elements * extent, bytes_max + 1);
  }
  hdf5_id space{H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose};
  auto how = properties(shape);
  hdf5_id dataset{
    H5Dcreate2(
      group(), called.c_str(), type.get(), space.get(), H5P_DEFAULT, how.get(), H5P_DEFAULT),
    H5Dclose};
  if (!dataset.ok())
    return;
  write(dataset.get(), of, elements, paths_.back() + called);
  mark_dataset(dataset.get());
}

// Not all bytes are numbers of the other types.
void crafted_hdf5::write(hid_t dataset, dtype of, std::uint64_t elements, const std::string& path) {
  auto salt = by_.next();
  hdf5_id stored{H5Dget_type(dataset), H5Tclose};
  auto bytes = elements * H5Tget_size(stored.get());
  if (bytes == 0 || bytes > bytes_max || H5Tget_class(stored.get()) != H5T_INTEGER)
    return;
  auto contents = pattern(bytes, salt);
  auto in_memory = hdf5_type_of(of);
  if (H5Dwrite(dataset, in_memory.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, contents.data()) >= 0)
    written[path] = salt;
}

// As in our own files. Often it contradicts the dataset.
void crafted_hdf5::mark_dataset(hid_t dataset) {
  auto mark = by_.next();
  if (mark < 0xc0)
    return;
  constexpr const char* names[] = {"BF16", "F8_E4M3", "I4", "F32", "none"};
  write_text_attribute(dataset, hdf5_dtype_attribute, names[mark % 5]);
  hsize_t rank = by_.next() % 40;
  std::vector<std::uint64_t> extents(rank, by_.next());
  hdf5_id space{H5Screate_simple(1, &rank, nullptr), H5Sclose};
  hdf5_id attribute{
    H5Acreate2(dataset, hdf5_shape_attribute, H5T_STD_U64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
    H5Aclose};
  H5Awrite(attribute.get(), H5T_STD_U64LE, extents.data());
}

// Reads a field whole, and its samples one by one.
void check_field(sample_reader& from, std::size_t field, const std::uint8_t* salt, bool is_whole) {
  auto& about = from.fields()[field].sample;
  auto each = size_bytes(about);
  MILLRACE_ASSERT(each && *each > 0 && validate(about).ok());
  if (*each > bytes_max || from.samples() > bytes_max / *each)
    return;
  std::vector<std::byte> all(*each * from.samples()), again(all.size());
  auto read = from.read(field, 0, from.samples(), all);
  MILLRACE_ASSERT(read.ok() || !read.detail().empty());
  MILLRACE_ASSERT(read.ok() || !is_whole);
  if (!read.ok())
    return;
  MILLRACE_ASSERT(salt == nullptr || is_pattern(all, 0, *salt));
  for (std::uint64_t i = 0; i < from.samples(); ++i)
    MILLRACE_ASSERT(from.read(field, i, 1, std::span{again}.subspan(i * *each, *each)).ok());
  MILLRACE_ASSERT(all == again);
}

const std::string& path_of_file() {
  static const testing::scratch_directory files{"/dev/shm"};
  static const auto path = files.path() + "/fuzzed.h5";
  return path;
}

} // namespace

// The first byte says whether the file is cut short, and the second one where.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2)
    return 0;
  auto& path = path_of_file();
  std::map<std::string, std::uint8_t> written;
  {
    hdf5_quiet quiet;
    written = crafted_hdf5{path, script{{data + 2, size - 2}}}.written;
  }
  auto is_whole = data[0] % 4 != 0;
  if (!is_whole)
    std::filesystem::resize_file(path, std::filesystem::file_size(path) * data[1] / 256);
  auto samples = open_samples({path});
  if (!samples) {
    MILLRACE_ASSERT(!samples.error().detail().empty());
    return 0;
  }
  for (std::size_t i = 0; i < (*samples)->fields().size(); ++i) {
    auto salt = written.find((*samples)->fields()[i].sample.name);
    check_field(**samples, i, salt == written.end() ? nullptr : &salt->second, is_whole);
  }
  return 0;
}
