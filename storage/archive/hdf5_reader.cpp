// Reads HDF5: every dataset of numbers, in groups of any depth, chunked or not.
#include <millrace/storage/archive/formats.hpp>
#include <millrace/storage/archive/hdf5_handles.hpp>
#include <millrace/storage/archive/hdf5_names.hpp>
#include <millrace/storage/archive/npy.hpp>

#include <algorithm>
#include <set>

namespace millrace::storage::archive {

namespace {

constexpr unsigned depth_max = 32;

struct stored_dataset {
  hdf5_id id;
  hdf5_id type; // in memory
  std::vector<std::uint64_t> shape;
  std::uint64_t chunk_rows = 1;
};

class hdf5_source final : public tensor_source {
public:
  explicit hdf5_source(hdf5_id file) : file_(std::move(file)) {}
  ~hdf5_source() override {
    hdf5_quiet quiet;
    datasets_.clear();
    file_ = hdf5_id{};
  }

  status list(const tensor_filter& wanted);

  std::uint64_t rows_together(std::uint32_t tensor) const override {
    return datasets_[tensor].chunk_rows;
  }

  const layout& tensors() const noexcept override { return tensors_; }
  const text_pairs& metadata() const noexcept override { return metadata_; }

  status read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) override {
    if (auto bad = check_range(tensors_, tensor, offset, into.size()); !bad.ok())
      return bad;
    hdf5_quiet quiet;
    auto& data = datasets_[tensor];
    auto element = H5Tget_size(data.type.get());
    auto* to = into.data();
    bool good = for_each_box(
      data.shape, offset / element, into.size() / element,
      [&](auto& start, auto& extents) { return read_box(data, start, extents, to); });
    return good ? status{} : hdf5_status("reading " + tensors_.tensors[tensor].name);
  }

private:
  static herr_t visit(hid_t group, const char* name, const H5L_info_t* about, void* self);
  static bool read_box(
    const stored_dataset& data, const std::vector<hsize_t>& start,
    const std::vector<hsize_t>& extents, std::byte*& to);
  static herr_t visit_attribute(hid_t object, const char* name, const H5A_info_t*, void* self);

  bool wants(const std::string& name) const { return !*wanted_ || (*wanted_)(name); }
  status list_group(hid_t group);
  status add_object(hid_t object, std::string name);
  status add_dataset(hdf5_id dataset, std::string name);
  status restore_type(hid_t dataset, tensor_desc& tensor);

  hdf5_id file_;
  layout tensors_;
  std::vector<stored_dataset> datasets_; // closed before the file
  text_pairs metadata_;

  // Used while listing.
  const tensor_filter* wanted_ = nullptr;
  bool ours_ = false;
  std::string prefix_;
  unsigned depth_ = 0;
  std::set<haddr_t> groups_;
  status why_;
};

herr_t hdf5_source::visit(hid_t group, const char* name, const H5L_info_t* about, void* self) {
  auto& source = *static_cast<hdf5_source*>(self);
  auto full = source.prefix_ + (source.ours_ ? unescape_hdf5_name(name) : name);
  if (about->type != H5L_TYPE_HARD && !source.wants(full))
    return 0;
  if (about->type != H5L_TYPE_HARD) {
    source.why_ = {errc::unsupported, "{} is a link to elsewhere; copy what it points to", full};
    return -1;
  }
  hdf5_id object{H5Oopen(group, name, H5P_DEFAULT), H5Oclose};
  source.why_ =
    object.ok() ? source.add_object(object.get(), full) : hdf5_status("opening " + full);
  return source.why_.ok() ? 0 : -1;
}

status hdf5_source::add_object(hid_t object, std::string name) {
  switch (H5Iget_type(object)) {
  case H5I_GROUP: {
    auto outer = std::exchange(prefix_, name + "/");
    auto bad = list_group(object);
    prefix_ = std::move(outer);
    return bad;
  }
  case H5I_DATASET: {
    if (!wants(name))
      return {};
    H5Iinc_ref(object);
    return add_dataset({object, H5Oclose}, std::move(name));
  }
  default:
    return {}; // a named type has no bytes
  }
}

status hdf5_source::list_group(hid_t group) {
  H5O_info_t about;
  if (H5Oget_info2(group, &about, H5O_INFO_BASIC) < 0)
    return hdf5_status("examining the group " + prefix_);
  if (depth_ == depth_max || !groups_.insert(about.addr).second)
    return {errc::corrupt_data, "groups in a circle, or too deep, at {}", prefix_};
  ++depth_;
  H5G_info_t links;
  hdf5_id properties{H5Gget_create_plist(group), H5Pclose};
  unsigned order = 0;
  bool ordered = properties.ok() && H5Pget_link_creation_order(properties.get(), &order) >= 0 &&
    (order & H5P_CRT_ORDER_INDEXED) != 0;
  auto by = ordered ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME;
  bool good = H5Gget_info(group, &links) >= 0 && links.nlinks <= layout_tensors_max &&
    H5Literate(group, by, H5_ITER_INC, nullptr, visit, this) >= 0;
  --depth_;
  if (!why_.ok())
    return why_;
  return good ? status{} : hdf5_status("listing the group " + prefix_);
}

std::uint64_t chunk_rows(hid_t properties, std::size_t rank) {
  std::vector<hsize_t> chunk(rank);
  auto is_chunked = rank > 0 && H5Pget_layout(properties) == H5D_CHUNKED &&
    H5Pget_chunk(properties, static_cast<int>(rank), chunk.data()) >= 0;
  return is_chunked ? std::max<std::uint64_t>(chunk.front(), 1) : 1;
}

status hdf5_source::add_dataset(hdf5_id dataset, std::string name) {
  // Both would read files other than the named one.
  hdf5_id properties{H5Dget_create_plist(dataset.get()), H5Pclose};
  if (
    !properties.ok() || H5Pget_external_count(properties.get()) != 0 ||
    H5Pget_layout(properties.get()) == H5D_VIRTUAL)
    return {errc::unsupported, "the bytes of {} lie in other files", name};
  hdf5_id type{H5Dget_type(dataset.get()), H5Tclose};
  hdf5_id space{H5Dget_space(dataset.get()), H5Sclose};
  auto rank = space.ok() ? H5Sget_simple_extent_ndims(space.get()) : -1;
  auto found = type.ok() ? dtype_of_hdf5(type.get()) : std::nullopt;
  if (!found || rank < 0 || H5Sget_simple_extent_type(space.get()) == H5S_NULL)
    return {errc::unsupported, "{} has elements that no tensor has", name};
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  tensor_desc tensor{std::move(name), *found, {extents.begin(), extents.end()}};
  auto shape = tensor.shape;
  if (auto bad = validate(tensor); !bad.ok())
    return {errc::corrupt_data, bad.detail()};
  if (ours_)
    if (auto bad = restore_type(dataset.get(), tensor); !bad.ok())
      return bad;
  if (tensors_.tensors.size() == layout_tensors_max)
    return {errc::corrupt_data, "more than {} datasets", layout_tensors_max};
  tensors_.tensors.push_back(std::move(tensor));
  auto rows = chunk_rows(properties.get(), extents.size());
  datasets_.push_back({std::move(dataset), hdf5_type_of(*found), std::move(shape), rows});
  return {};
}

// Restores the dtype and shape of a tensor whose dtype HDF5 lacks.
status hdf5_source::restore_type(hid_t dataset, tensor_desc& tensor) {
  auto name = read_text_attribute(dataset, hdf5_dtype_attribute);
  if (!name)
    return {};
  auto type = parse_dtype(*name);
  hdf5_id attribute{H5Aopen(dataset, hdf5_shape_attribute, H5P_DEFAULT), H5Aclose};
  hdf5_id space{attribute.ok() ? H5Aget_space(attribute.get()) : -1, H5Sclose};
  auto rank = space.ok() ? H5Sget_simple_extent_npoints(space.get()) : -1;
  auto contradicts = status{errc::corrupt_data, "the dtype beside {} contradicts it", tensor.name};
  if (!type || rank < 0 || rank > static_cast<hssize_t>(tensor_rank_max))
    return contradicts;
  tensor_desc original{tensor.name, *type, {}};
  original.shape.resize(static_cast<std::size_t>(rank));
  if (H5Aread(attribute.get(), H5T_STD_U64LE, original.shape.data()) < 0)
    return contradicts;
  auto bytes = size_bytes(original);
  if (!bytes || *bytes != *size_bytes(tensor) || numpy_type(*type) != tensor.type)
    return contradicts;
  tensor = std::move(original);
  return {};
}

bool hdf5_source::read_box(
  const stored_dataset& data, const std::vector<hsize_t>& start,
  const std::vector<hsize_t>& extents, std::byte*& to) {
  auto box = select_box(data.id.get(), start, extents);
  if (!box)
    return false;
  auto* into = to;
  to += box->count * H5Tget_size(data.type.get());
  return H5Dread(
           data.id.get(), data.type.get(), box->in_memory.get(), box->in_file.get(), H5P_DEFAULT,
           into) >= 0;
}

herr_t hdf5_source::visit_attribute(hid_t object, const char* name, const H5A_info_t*, void* self) {
  auto& source = *static_cast<hdf5_source*>(self);
  if (auto text = read_text_attribute(object, name);
      text && std::string_view{name} != hdf5_format_attribute)
    source.metadata_.emplace_back(name, std::move(*text));
  return 0;
}

status hdf5_source::list(const tensor_filter& wanted) {
  wanted_ = &wanted;
  ours_ = read_text_attribute(file_.get(), hdf5_format_attribute).has_value();
  auto by = ours_ ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME;
  hdf5_id root{H5Gopen2(file_.get(), "/", H5P_DEFAULT), H5Gclose};
  if (!root.ok())
    return hdf5_status("opening the root group");
  if (H5Aiterate2(root.get(), by, H5_ITER_INC, nullptr, visit_attribute, this) < 0)
    return hdf5_status("reading metadata");
  return list_group(root.get());
}

} // namespace

result<std::unique_ptr<tensor_source>> open_hdf5(
  const std::string& path, const tensor_filter& wanted) {
  hdf5_quiet quiet;
  hdf5_id file{H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose};
  if (!file.ok())
    return fail(hdf5_status("reading an HDF5 file"));
  auto source = std::make_unique<hdf5_source>(std::move(file));
  if (auto bad = source->list(wanted); !bad.ok())
    return fail(bad);
  return source;
}

} // namespace millrace::storage::archive
