// The parts that the writer and the reader of HDF5 share.
#include <millrace/storage/archive/hdf5_handles.hpp>
#include <millrace/storage/archive/npy.hpp>
#include <millrace/storage/archive/strided.hpp>

#include <charconv>
#include <cstring>

namespace millrace::storage::archive {

namespace {

std::unique_lock<std::recursive_mutex> lock_where_needed() {
  static std::recursive_mutex mutex;
  static const bool is_safe = [] {
    hbool_t safe = false;
    return H5is_library_threadsafe(&safe) >= 0 && safe;
  }();
  return is_safe ? std::unique_lock<std::recursive_mutex>{} : std::unique_lock{mutex};
}

} // namespace

hdf5_quiet::hdf5_quiet() : alone_(lock_where_needed()) {
  H5Eget_auto2(H5E_DEFAULT, &print_, &argument_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  H5PLset_loading_state(0);
}

// Closing an identifier clears the last errors, which the caller may still want to read.
void hdf5_id::release() noexcept {
  if (id_ < 0)
    return;
  auto complaints = H5Eget_num(H5E_DEFAULT) > 0 ? H5Eget_current_stack() : -1;
  close_(id_);
  if (complaints >= 0)
    H5Eset_current_stack(complaints);
}

// Errors that a thread still has when it ends keep libhdf5 from closing at the end of the process,
// and it complains then.
hdf5_quiet::~hdf5_quiet() {
  H5Eset_auto2(H5E_DEFAULT, print_, argument_);
  H5Eclear2(H5E_DEFAULT);
}

namespace {

struct complaint {
  std::string text;
  int error_number = 0;
};

// Takes the innermost message. Drivers write "errno = 28" into theirs.
herr_t collect(unsigned, const H5E_error2_t* error, void* into) {
  auto& found = *static_cast<complaint*>(into);
  if (!error->desc)
    return 0;
  if (found.text.empty())
    found.text = error->desc;
  constexpr std::string_view mark = "errno = ";
  std::string_view text{error->desc};
  if (auto at = text.find(mark); at != std::string_view::npos && found.error_number == 0) {
    text.remove_prefix(at + mark.size());
    std::from_chars(text.data(), text.data() + text.size(), found.error_number);
  }
  return 0;
}

hdf5_id copy_of(hid_t type) { return {H5Tcopy(type), H5Tclose}; }

hdf5_id half_type() {
  auto type = copy_of(H5T_IEEE_F32LE);
  H5Tset_fields(type.get(), 15, 10, 5, 0, 10);
  H5Tset_size(type.get(), 2);
  H5Tset_ebias(type.get(), 15);
  return type;
}

hdf5_id truth_type() {
  hdf5_id type{H5Tenum_create(H5T_STD_I8LE), H5Tclose};
  std::int8_t no = 0, yes = 1;
  H5Tenum_insert(type.get(), "FALSE", &no);
  H5Tenum_insert(type.get(), "TRUE", &yes);
  return type;
}

hdf5_id complex_type(hid_t part) {
  auto bytes = H5Tget_size(part);
  hdf5_id type{H5Tcreate(H5T_COMPOUND, 2 * bytes), H5Tclose};
  H5Tinsert(type.get(), "r", 0, part);
  H5Tinsert(type.get(), "i", bytes, part);
  return type;
}

bool equal(hid_t a, hid_t b) { return H5Tequal(a, b) > 0; }

std::optional<dtype> integer_dtype(hid_t type) {
  bool sign = H5Tget_sign(type) == H5T_SGN_2;
  switch (H5Tget_size(type)) {
  case 1:
    return sign ? dtype::i8 : dtype::u8;
  case 2:
    return sign ? dtype::i16 : dtype::u16;
  case 4:
    return sign ? dtype::i32 : dtype::u32;
  case 8:
    return sign ? dtype::i64 : dtype::u64;
  default:
    return std::nullopt;
  }
}

std::optional<dtype> float_dtype(hid_t type) {
  if (equal(type, H5T_IEEE_F32LE) || equal(type, H5T_IEEE_F32BE))
    return dtype::f32;
  if (equal(type, H5T_IEEE_F64LE) || equal(type, H5T_IEEE_F64BE))
    return dtype::f64;
  auto half = half_type();
  if (equal(type, half.get()))
    return dtype::f16;
  H5Tset_order(half.get(), H5T_ORDER_BE);
  return equal(type, half.get()) ? std::optional{dtype::f16} : std::nullopt;
}

// Accepts two numbers of one type with the names that h5py gives them, and nothing between them.
std::optional<dtype> complex_dtype(hid_t type) {
  if (H5Tget_nmembers(type) != 2)
    return std::nullopt;
  std::optional<dtype> found;
  for (unsigned i = 0; i < 2; ++i) {
    auto* name = H5Tget_member_name(type, i);
    bool named = name && std::strcmp(name, i == 0 ? "r" : "i") == 0;
    H5free_memory(name);
    hdf5_id part{H5Tget_member_type(type, i), H5Tclose};
    auto of_part = named && part.ok() ? float_dtype(part.get()) : std::nullopt;
    if (!of_part || (i == 1 && of_part != found))
      return std::nullopt;
    found = of_part;
  }
  auto bytes = H5Tget_size(type);
  if (found == dtype::f32 && bytes == 8)
    return dtype::c64;
  return found == dtype::f64 && bytes == 16 ? std::optional{dtype::c128} : std::nullopt;
}

} // namespace

status hdf5_status(const std::string& doing, errc otherwise) {
  complaint found;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &found);
  if (found.error_number != 0)
    return status_from_errno(found.error_number, doing);
  return {otherwise, "{}: {}", doing, found.text.empty() ? "libhdf5 refuses" : found.text};
}

hdf5_id hdf5_type_of(dtype type) {
  switch (numpy_type(type)) {
  case dtype::boolean:
    return truth_type();
  case dtype::i8:
    return copy_of(H5T_STD_I8LE);
  case dtype::i16:
    return copy_of(H5T_STD_I16LE);
  case dtype::u16:
    return copy_of(H5T_STD_U16LE);
  case dtype::i32:
    return copy_of(H5T_STD_I32LE);
  case dtype::u32:
    return copy_of(H5T_STD_U32LE);
  case dtype::i64:
    return copy_of(H5T_STD_I64LE);
  case dtype::u64:
    return copy_of(H5T_STD_U64LE);
  case dtype::f16:
    return half_type();
  case dtype::f32:
    return copy_of(H5T_IEEE_F32LE);
  case dtype::f64:
    return copy_of(H5T_IEEE_F64LE);
  case dtype::c64:
    return complex_type(H5T_IEEE_F32LE);
  case dtype::c128:
    return complex_type(H5T_IEEE_F64LE);
  default:
    return copy_of(H5T_STD_U8LE);
  }
}

std::optional<dtype> dtype_of_hdf5(hid_t type) {
  switch (H5Tget_class(type)) {
  case H5T_INTEGER:
    return integer_dtype(type);
  case H5T_FLOAT:
    return float_dtype(type);
  case H5T_ENUM:
    return equal(type, truth_type().get()) ? std::optional{dtype::boolean} : std::nullopt;
  case H5T_COMPOUND:
    return complex_dtype(type);
  default:
    return std::nullopt;
  }
}

bool write_text_attribute(hid_t object, const std::string& name, const std::string& text) {
  hdf5_id type{H5Tcopy(H5T_C_S1), H5Tclose};
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  hdf5_id properties{H5Pcreate(H5P_ATTRIBUTE_CREATE), H5Pclose};
  H5Pset_char_encoding(properties.get(), H5T_CSET_UTF8);
  hdf5_id space{H5Screate(H5S_SCALAR), H5Sclose};
  hdf5_id attribute{
    H5Acreate2(object, name.c_str(), type.get(), space.get(), properties.get(), H5P_DEFAULT),
    H5Aclose};
  auto* value = text.c_str();
  return attribute.ok() && H5Awrite(attribute.get(), type.get(), &value) >= 0;
}

std::optional<std::string> read_text_attribute(hid_t object, const std::string& name) {
  if (H5Aexists(object, name.c_str()) <= 0)
    return std::nullopt;
  hdf5_id attribute{H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose};
  if (!attribute.ok())
    return std::nullopt;
  hdf5_id type{H5Aget_type(attribute.get()), H5Tclose};
  hdf5_id space{H5Aget_space(attribute.get()), H5Sclose};
  if (H5Tget_class(type.get()) != H5T_STRING || H5Sget_simple_extent_npoints(space.get()) != 1)
    return std::nullopt;
  if (H5Tis_variable_str(type.get()) > 0) {
    char* value = nullptr;
    if (H5Aread(attribute.get(), type.get(), &value) < 0)
      return std::nullopt;
    std::string text{value ? value : ""};
    H5free_memory(value);
    return text;
  }
  std::string text(std::min<std::size_t>(H5Tget_size(type.get()), 1u << 16), '\0');
  if (
    text.size() != H5Tget_size(type.get()) || H5Aread(attribute.get(), type.get(), text.data()) < 0)
    return std::nullopt;
  text.resize(std::min(text.size(), text.find('\0')));
  return text;
}

std::optional<hdf5_box> select_box(
  hid_t dataset, const std::vector<hsize_t>& start, const std::vector<hsize_t>& extents) {
  hsize_t count = 1;
  for (auto extent : extents)
    count *= extent;
  hdf5_box box{
    {H5Screate_simple(1, &count, nullptr), H5Sclose}, {H5Dget_space(dataset), H5Sclose}, count};
  if (
    !start.empty() &&
    H5Sselect_hyperslab(
      box.in_file.get(), H5S_SELECT_SET, start.data(), nullptr, extents.data(), nullptr) < 0)
    return {};
  return box;
}

bool for_each_box(
  const std::vector<std::uint64_t>& shape, std::uint64_t first, std::uint64_t count,
  const std::function<bool(const std::vector<hsize_t>&, const std::vector<hsize_t>&)>& each) {
  auto steps = c_order(shape);
  std::vector<hsize_t> start(shape.size()), extents(shape.size());
  while (count > 0) {
    for (std::size_t i = 0; i < shape.size(); ++i)
      start[i] = first / steps[i] % shape[i];
    // The outermost dimension along which whole inner boxes begin here and fit.
    std::size_t along = shape.size();
    while (along > 0 && steps[along - 1] <= count && (along == shape.size() || start[along] == 0))
      --along;
    std::uint64_t covered = 1;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      auto left = shape[i] - start[i];
      extents[i] = i < along ? 1
        : i > along          ? shape[i]
                             : std::min<std::uint64_t>(left, count / steps[i]);
      covered *= extents[i];
    }
    if (!each(start, extents))
      return false;
    first += covered;
    count -= covered;
  }
  return true;
}

} // namespace millrace::storage::archive
