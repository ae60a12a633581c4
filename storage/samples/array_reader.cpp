// Reads through the sources of archives, of which one is open at a time: libhdf5 does one thing at
// a time, and an entry of NPZ is one stream.
#include <millrace/core/working_set.hpp>
#include <millrace/storage/archive/formats.hpp>
#include <millrace/storage/samples/array_reader.hpp>
#include <millrace/storage/samples/sample_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace millrace::storage::samples {

namespace {

using archive::tensor_source;
using names = std::vector<std::string>;

struct array_file : sample_file {
  bool is_npz = false;
  std::vector<read_field> fields;
  std::vector<std::uint32_t> tensors; // of the fields
  std::uint64_t samples = 0;
  std::uint64_t first = 0; // the number of its first sample, among those of all files
  status misfit;           // why its arrays cannot be fields; never left out
};

bool is_npz(std::string_view name) { return name.ends_with(".npz"); }

// `there` gets names of arrays where some are wanted, for an error.
result<std::unique_ptr<tensor_source>> open_source(
  const array_file& file, const names& fields, names* there = nullptr) {
  archive::tensor_filter wanted;
  if (!fields.empty())
    wanted = [&](std::string_view name) {
      if (there && there->size() < set_fields_max)
        there->emplace_back(name);
      return std::ranges::find(fields, name) != fields.end();
    };
  return file.is_npz ? archive::open_npz(file.path, wanted) : archive::open_hdf5(file.path, wanted);
}

// Returns the numbers of the arrays that are taken.
result<std::vector<std::uint32_t>> choose_arrays(
  const layout& tensors, const names& fields, const names& there) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < tensors.tensors.size() && fields.empty(); ++i)
    if (!tensors.tensors[i].shape.empty())
      out.push_back(i);
  for (auto& field : fields) {
    auto found = std::ranges::find(tensors.tensors, field, &tensor_desc::name);
    if (found == tensors.tensors.end())
      return fail(
        errc::invalid_argument, "there is no array {}; there are: {}", field,
        fmt::join(there, ", "));
    out.push_back(static_cast<std::uint32_t>(found - tensors.tensors.begin()));
  }
  if (out.empty())
    return fail(errc::invalid_argument, "there is no array with samples");
  return out;
}

status check_array(const tensor_desc& array, const tensor_desc& first) {
  if (array.shape.empty())
    return {errc::invalid_argument, "the array {} is a scalar, and has no samples", array.name};
  if (array.shape.front() != first.shape.front())
    return {
      errc::invalid_argument,
      "the arrays {}, {}, and {}, {}, have different first dimensions; choose the fields",
      first.name,
      describe(first),
      array.name,
      describe(array)};
  auto bytes = row_bytes(array);
  if (!bytes)
    return bytes.error();
  return *bytes > 0 ? status{}
                    : status{
                        errc::invalid_argument, "the array {} is {}: its samples have no bytes",
                        array.name, describe(array)};
}

status add_fields(
  array_file& file, const tensor_source& source, const names& fields, const names& there) {
  auto& arrays = source.tensors().tensors;
  auto chosen = choose_arrays(source.tensors(), fields, there);
  if (!chosen)
    return chosen.error();
  file.tensors = std::move(*chosen);
  for (auto i : file.tensors) {
    if (auto bad = check_array(arrays[i], arrays[file.tensors.front()]); !bad.ok())
      return bad;
    read_field field{.sample = arrays[i], .together = source.rows_together(i)};
    field.sample.shape.erase(field.sample.shape.begin());
    file.fields.push_back(std::move(field));
  }
  file.samples = arrays[file.tensors.front()].shape.front();
  return {};
}

result<array_file> open_array_file(const named_file& file, const names& fields) {
  array_file out;
  static_cast<sample_file&>(out) = file;
  out.is_npz = is_npz(file.name);
  names there;
  auto source = open_source(out, fields, &there);
  if (!source) {
    auto why = source.error().within(out.path);
    auto is_for_all = fields.empty() && !out.is_npz && why.code() == errc::unsupported;
    return fail(is_for_all ? status{why.code(), "{}; choose the fields", why.detail()} : why);
  }
  if (auto bad = add_fields(out, **source, fields, there); !bad.ok())
    out.misfit = bad.within(out.path);
  return out;
}

std::string text_of(const std::vector<read_field>& fields) {
  std::string all;
  for (auto& field : fields)
    all += (all.empty() ? "" : ", ") + field.sample.name + " " + describe(field.sample);
  return all;
}

// Gives the fields of a file the order of those of the first one.
status arrange(array_file& file, const array_file& first) {
  auto sorted = file;
  sorted.fields.clear(), sorted.tensors.clear();
  for (auto& wanted : first.fields)
    for (std::size_t i = 0; i < file.fields.size(); ++i)
      if (file.fields[i].sample == wanted.sample) {
        sorted.fields.push_back(file.fields[i]);
        sorted.tensors.push_back(file.tensors[i]);
      }
  if (sorted.fields.size() != first.fields.size() || file.fields.size() != first.fields.size())
    return {
      errc::invalid_argument,
      "the samples of {} are {}; those of {} are {}",
      first.path,
      text_of(first.fields),
      file.path,
      text_of(file.fields)};
  file = std::move(sorted);
  return {};
}

// Checks that files belong together, and numbers their samples.
status arrange_all(std::vector<array_file>& files) {
  std::uint64_t next = 0;
  for (auto& file : files) {
    if (!file.misfit.ok())
      return file.misfit;
    if (auto bad = arrange(file, files.front()); !bad.ok())
      return bad;
    file.first = next;
    auto after = sample_after(file, next, file.samples);
    if (!after)
      return after.error();
    next = *after;
  }
  return {};
}

class array_reader final : public sample_reader {
public:
  array_reader(std::vector<array_file> files, names fields)
    : files_(std::move(files)), wanted_(std::move(fields)) {}

  std::uint64_t samples() const noexcept override {
    return files_.back().first + files_.back().samples;
  }
  const std::vector<read_field>& fields() const noexcept override { return files_.front().fields; }
  bool prefers_order() const noexcept override { return true; }

protected:
  status read_range(
    std::size_t field, std::uint64_t first, std::uint64_t offset,
    std::span<std::byte> into) override {
    auto each = *size_bytes(fields()[field].sample);
    std::lock_guard guard{mutex_};
    while (!into.empty()) {
      auto& file = file_with(files_, first);
      if (auto known = blamed(file.path); !known.ok())
        return known; // reading it again up to the damage would take as long
      auto begin = (first - file.first) * each + offset;
      auto bytes = into.first(std::min<std::uint64_t>(into.size(), file.samples * each - begin));
      if (auto bad = read_from(file, file.tensors[field], begin, bytes); !bad.ok()) {
        source_ = nullptr;
        return blame(file.path, bad.within(file.path));
      }
      first = file.first + file.samples, offset = 0;
      into = into.subspan(bytes.size());
    }
    return {};
  }

private:
  status read_from(
    const array_file& file, std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) {
    if (auto bad = open(file); !bad.ok())
      return bad;
    auto bad = source_->read(tensor, offset, into);
    return bad.ok() ? check_unchanged(file) : bad;
  }

  status open(const array_file& file) {
    if (source_ && opened_ == &file)
      return {};
    source_ = nullptr; // before the next one is there
    if (auto bad = check_unchanged(file); !bad.ok())
      return bad;
    auto source = open_source(file, wanted_);
    if (!source)
      return source.error();
    source_ = std::move(*source);
    opened_ = &file;
    return check_unchanged(file);
  }

  const std::vector<array_file> files_;
  const names wanted_;
  std::mutex mutex_; // for what follows
  std::unique_ptr<tensor_source> source_;
  const array_file* opened_ = nullptr;
};

} // namespace

bool holds_arrays(std::string_view name) noexcept {
  return is_npz(name) || name.ends_with(".h5") || name.ends_with(".hdf5");
}

result<std::unique_ptr<sample_reader>> open_arrays(
  const std::vector<named_file>& given, const std::vector<std::string>& fields, opening& how) {
  auto files =
    open_each<array_file>(given, how, [&](auto& file) { return open_array_file(file, fields); });
  if (!files)
    return fail(files.error());
  if (auto bad = arrange_all(*files); !bad.ok())
    return fail(bad);
  return std::make_unique<array_reader>(std::move(*files), fields);
}

} // namespace millrace::storage::samples
