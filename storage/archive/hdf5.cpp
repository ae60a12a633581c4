// Writes HDF5: one contiguous dataset per tensor in the root group, metadata as the root's
// attributes.
#include <millrace/storage/archive/formats.hpp>
#include <millrace/storage/archive/hdf5_handles.hpp>
#include <millrace/storage/archive/hdf5_names.hpp>
#include <millrace/storage/archive/npy.hpp>
#include <millrace/storage/io/file_io.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace millrace::storage::archive {

namespace {

// Writes the extents, 64 bits each, as an attribute.
bool write_shape(hid_t dataset, const std::vector<std::uint64_t>& shape) {
  hsize_t rank = shape.size();
  hdf5_id space{H5Screate_simple(1, &rank, nullptr), H5Sclose};
  hdf5_id attribute{
    H5Acreate2(dataset, hdf5_shape_attribute, H5T_STD_U64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
    H5Aclose};
  return attribute.ok() && H5Awrite(attribute.get(), H5T_STD_U64LE, shape.data()) >= 0;
}

hdf5_id space_of(const std::vector<std::uint64_t>& shape) {
  if (shape.empty())
    return {H5Screate(H5S_SCALAR), H5Sclose};
  std::vector<hsize_t> extents(shape.begin(), shape.end());
  return {H5Screate_simple(static_cast<int>(shape.size()), extents.data(), nullptr), H5Sclose};
}

class hdf5_writer {
public:
  hdf5_writer(hid_t file, tensor_source& source, meter& done)
    : file_(file), source_(source), done_(done) {}

  status write_metadata() {
    bool good = write_text_attribute(file_, hdf5_format_attribute, "1");
    for (auto& [key, value] : source_.metadata()) {
      if (key == hdf5_format_attribute)
        return {errc::unsupported, "metadata may not be called {} in HDF5", key};
      if (!good)
        break;
      good = write_text_attribute(file_, key, value);
    }
    return good ? status{} : hdf5_status("writing metadata", errc::io_error);
  }

  status write_tensor(std::uint32_t index) {
    auto& tensor = source_.tensors().tensors[index];
    auto shape = tensor.shape;
    if (bits_per_element(tensor.type) < 8)
      shape = {size_bytes(tensor).value_or(0)};
    auto type = hdf5_type_of(tensor.type);
    auto space = space_of(shape);
    auto dataset = create(tensor.name, type.get(), space.get());
    auto wrong = [&] { return hdf5_status("writing " + tensor.name, errc::io_error); };
    if (!dataset.ok())
      return wrong();
    if (numpy_type(tensor.type) != tensor.type) {
      std::string name{to_string(tensor.type)};
      if (
        !write_text_attribute(dataset.get(), hdf5_dtype_attribute, name) ||
        !write_shape(dataset.get(), tensor.shape))
        return wrong();
    }
    auto element = H5Tget_size(type.get());
    return for_each_step(source_, index, buffer_, [&](std::uint64_t offset, auto bytes) {
      bool wrote = for_each_box(
        shape, offset / element, bytes.size() / element, [&](auto& start, auto& extents) {
          return write_box(dataset.get(), type.get(), start, extents, bytes);
        });
      return wrote ? done_.add(size_at_end(bytes)) : wrong();
    });
  }

private:
  hdf5_id create(const std::string& name, hid_t type, hid_t space) {
    hdf5_id links{H5Pcreate(H5P_LINK_CREATE), H5Pclose};
    H5Pset_char_encoding(links.get(), H5T_CSET_UTF8);
    hdf5_id properties{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
    // Every byte is written, so the space need not be filled with zeros first.
    H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER);
    H5Pset_obj_track_times(properties.get(), false);
    auto escaped = escape_hdf5_name(name);
    return {
      H5Dcreate2(file_, escaped.c_str(), type, space, links.get(), properties.get(), H5P_DEFAULT),
      H5Dclose};
  }

  // Boxes come in the order of their bytes.
  bool write_box(
    hid_t dataset, hid_t type, const std::vector<hsize_t>& start,
    const std::vector<hsize_t>& extents, std::span<const std::byte> step) {
    auto box = select_box(dataset, start, extents);
    if (!box)
      return false;
    auto* from = step.data() + at_;
    at_ += box->count * H5Tget_size(type);
    return H5Dwrite(dataset, type, box->in_memory.get(), box->in_file.get(), H5P_DEFAULT, from) >=
      0;
  }

  std::uint64_t size_at_end(std::span<const std::byte> step) {
    at_ = 0;
    return step.size();
  }

  hid_t file_;
  tensor_source& source_;
  meter& done_;
  std::vector<std::byte> buffer_;
  std::uint64_t at_ = 0; // in the step
};

// *Problem*: when libhdf5 runs out of space at the end of a file, it cannot close the file, and
// crashes when the process ends. So space is reserved where the file system supports that: before
// libhdf5 makes the file, to detect a full device; and after, because making the file gives the
// space back.
status reserve(const std::string& path, const tensor_source& source) {
  auto bytes = size_bytes(source.tensors()) + (1u << 20);
  for (auto& tensor : source.tensors().tensors)
    bytes += 4096 + 2 * tensor.name.size();
  for (auto& [key, value] : source.metadata())
    bytes += 1024 + key.size() + value.size();
  auto file = io::open_file(path, O_WRONLY);
  if (!file)
    return file.error();
  if (
    ::fallocate(file->get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) != 0 &&
    errno == ENOSPC)
    return {errc::no_space, "no room for {} bytes", bytes};
  return {};
}

} // namespace

status write_hdf5(const std::string& path, tensor_source& source, meter& done) {
  hdf5_quiet quiet;
  if (auto bad = reserve(path, source); !bad.ok())
    return bad;
  hdf5_id properties{H5Pcreate(H5P_FILE_CREATE), H5Pclose};
  // The order of tensors and of metadata is kept.
  constexpr auto kept = H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED;
  // Equal tensors make equal files.
  H5Pset_obj_track_times(properties.get(), false);
  H5Pset_link_creation_order(properties.get(), kept);
  H5Pset_attr_creation_order(properties.get(), kept);
  hdf5_id file{H5Fcreate(path.c_str(), H5F_ACC_TRUNC, properties.get(), H5P_DEFAULT), H5Fclose};
  if (!file.ok())
    return hdf5_status("creating an HDF5 file", errc::io_error);
  if (auto bad = reserve(path, source); !bad.ok())
    return bad;
  hdf5_writer writer{file.get(), source, done};
  if (auto bad = writer.write_metadata(); !bad.ok())
    return bad;
  for (std::uint32_t i = 0; i < source.tensors().tensors.size(); ++i)
    if (auto bad = writer.write_tensor(i); !bad.ok())
      return bad;
  if (!file.close())
    return hdf5_status("closing an HDF5 file", errc::io_error);
  // Gives back the space that was reserved beyond the end.
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0 || ::truncate(path.c_str(), about.st_size) != 0)
    return status_from_errno(errno, "closing an HDF5 file");
  return {};
}

} // namespace millrace::storage::archive
