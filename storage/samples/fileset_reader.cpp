// Keeps names, sizes and labels in memory, and opens a file whenever its bytes are read.
#include <millrace/core/digest.hpp>
#include <millrace/storage/samples/fileset_reader.hpp>
#include <millrace/storage/samples/label_file.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace::storage::samples {

namespace {

enum class part : std::uint8_t { bytes, path, label };

struct part_row {
  part which;
  const char* name;
};
constexpr part_row part_rows[] = {{part::bytes, "x"}, {part::path, "path"}, {part::label, "label"}};

read_field field_of(const part_row& row) {
  auto varies = row.which != part::label;
  auto type = varies ? dtype::u8 : dtype::i64;
  return {
    {row.name, type, varies ? std::vector<std::uint64_t>{0} : std::vector<std::uint64_t>{}},
    varies};
}

class fileset_reader final : public sample_reader {
public:
  fileset_reader(
    std::vector<named_file> files, std::vector<std::int64_t> labels, std::vector<part_row> parts)
    : files_(std::move(files)), labels_(std::move(labels)), parts_(std::move(parts)) {
    for (auto& row : parts_) {
      fields_.push_back(field_of(row));
      auto& lengths = lengths_.emplace_back();
      for (auto& file : files_)
        if (row.which != part::label)
          lengths.push_back(length_of(file, row.which));
    }
  }

  std::uint64_t samples() const noexcept override { return files_.size(); }
  const std::vector<read_field>& fields() const noexcept override { return fields_; }
  std::span<const std::uint64_t> lengths(std::size_t field) const noexcept override {
    return lengths_[field];
  }
  std::string path_of(std::uint64_t sample) const override { return files_[sample].path; }

protected:
  status read_range(
    std::size_t field, std::uint64_t first, std::uint64_t offset,
    std::span<std::byte> into) override {
    for (; !into.empty(); ++first, offset = 0) {
      auto left = length_of(files_[first], parts_[field].which) - offset;
      auto bytes = into.first(std::min<std::uint64_t>(into.size(), left));
      if (auto bad = read_one(parts_[field].which, first, offset, bytes); !bad.ok())
        return bad;
      into = into.subspan(bytes.size());
    }
    return {};
  }

private:
  static std::uint64_t length_of(const named_file& file, part which) {
    return which == part::bytes ? file.state.size_bytes
      : which == part::path     ? file.name.size()
                                : sizeof(std::int64_t);
  }

  status read_one(
    part which, std::uint64_t sample, std::uint64_t offset, std::span<std::byte> into) {
    auto& file = files_[sample];
    if (which == part::bytes) {
      auto bad = read_file(file, offset, into);
      return bad.ok() ? bad : blame(file.path, std::move(bad));
    }
    auto* from = which == part::path ? static_cast<const void*>(file.name.data())
                                     : static_cast<const void*>(&labels_[sample]);
    std::memcpy(into.data(), static_cast<const std::byte*>(from) + offset, into.size());
    return {};
  }

  static status read_file(const named_file& file, std::uint64_t offset, std::span<std::byte> into) {
    auto opened = open_to_read(file.path);
    if (!opened)
      return opened.error();
    auto bad = io::read_all(opened->handle, into.data(), into.size(), offset, file.path);
    return bad.ok() ? check_unchanged(file, opened->handle) : bad;
  }

  const std::vector<named_file> files_;
  const std::vector<std::int64_t> labels_; // none, or one for each file
  const std::vector<part_row> parts_;      // of the fields
  std::vector<read_field> fields_;
  std::vector<std::vector<std::uint64_t>> lengths_; // by field
};

result<std::vector<part_row>> choose_parts(const sample_options& options) {
  std::vector<part_row> known{part_rows[0], part_rows[1]};
  if (!options.labels.empty())
    known.push_back(part_rows[2]);
  if (options.fields.empty())
    return known;
  std::vector<part_row> out;
  for (auto& field : options.fields) {
    auto found = std::ranges::find_if(known, [&](auto& row) { return row.name == field; });
    if (found == known.end())
      return fail(
        errc::invalid_argument,
        "there is no field {}; files have x and path, and label where labels are given", field);
    out.push_back(*found);
  }
  return out;
}

result<std::vector<std::int64_t>> labels_by_folder(
  const std::vector<named_file>& files, const std::vector<std::string>& folders) {
  std::vector<std::int64_t> out;
  for (auto& file : files) {
    auto folder = file.name.substr(0, file.name.find('/'));
    auto found = std::ranges::lower_bound(folders, folder);
    if (folder.size() == file.name.size() || found == folders.end() || *found != folder)
      return fail(
        errc::invalid_argument, "{} lies in no folder that could be its label", file.path);
    out.push_back(found - folders.begin());
  }
  return out;
}

result<label_map> read_labels(const std::string& path, named_file& from) {
  auto file = find_file(path);
  if (!file)
    return fail(file.error());
  from = {std::move(*file), path};
  auto size = from.state.size_bytes;
  if (size > label_file_bytes_max)
    return fail(
      errc::invalid_argument, "the labels in {} have {} bytes; at most {} are read", path, size,
      label_file_bytes_max);
  auto opened = open_to_read(from.path);
  if (!opened)
    return fail(opened.error());
  std::string text(size, '\0');
  if (auto bad = io::read_all(opened->handle, text.data(), size, 0, path); !bad.ok())
    return fail(bad);
  if (auto bad = check_unchanged(from, opened->handle); !bad.ok())
    return fail(bad);
  auto labels = parse_labels(text);
  return labels ? std::move(labels) : fail(labels.error().within(path));
}

result<std::vector<std::int64_t>> labels_by_name(
  const std::vector<named_file>& files, const std::string& path, named_file& from) {
  auto labels = read_labels(path, from);
  if (!labels)
    return fail(labels.error());
  std::vector<std::int64_t> out;
  for (auto& file : files) {
    auto found = labels->find(file.name);
    if (found == labels->end())
      return fail(errc::invalid_argument, "{} has no label for {}", path, file.name);
    out.push_back(found->second);
  }
  return out;
}

status check_bytes(const std::vector<named_file>& files) {
  std::uint64_t all = 0;
  for (auto& file : files)
    if (auto bad = add_bytes(all, file.state.size_bytes, file.path); !bad.ok())
      return bad;
  return {};
}

// The names are samples, and with the folders they are the labels.
std::uint64_t source_with_names(
  const std::vector<named_file>& seen, const std::vector<std::string>& folders,
  const sample_options& options) {
  running_digest all;
  auto files = source_of(seen, options);
  all.add(&files, sizeof(files));
  for (auto& file : seen)
    all.add_text(file.name);
  if (options.labels == labels_of_folders)
    for (auto& folder : folders)
      all.add_text(folder);
  return all.value();
}

// Gives the files that are not left out their labels.
result<std::unique_ptr<sample_reader>> make_reader(
  walked_folder all, const sample_options& options, opening& how) {
  auto parts = choose_parts(options);
  if (!parts)
    return fail(parts.error());
  auto seen = all.files;
  std::erase_if(all.files, [&](auto& file) { return how.leaves_out(file.path); });
  if (all.files.empty())
    return fail(how.nothing_left({errc::invalid_argument, "no files with samples are given"}));
  if (auto bad = check_bytes(all.files); !bad.ok())
    return fail(bad);
  result<std::vector<std::int64_t>> labels;
  if (options.labels == labels_of_folders)
    labels = labels_by_folder(all.files, all.folders);
  else if (!options.labels.empty())
    labels = labels_by_name(all.files, options.labels, seen.emplace_back());
  if (!labels)
    return fail(labels.error());
  auto source = source_with_names(seen, all.folders, options);
  auto reader =
    std::make_unique<fileset_reader>(std::move(all.files), std::move(*labels), std::move(*parts));
  reader->set_source(source);
  return reader;
}

} // namespace

result<std::unique_ptr<sample_reader>> open_folder(
  const std::string& directory, const sample_options& options, opening& how) {
  auto all = walk(directory, how);
  if (!all)
    return fail(all.error());
  if (all->files.empty())
    return fail(how.nothing_left(
      {errc::invalid_argument, "{} has no files that can be read; hidden ones do not count",
       directory}));
  return make_reader(std::move(*all), options, how);
}

result<std::unique_ptr<sample_reader>> open_files(
  const std::vector<std::string>& paths, const sample_options& options, opening& how) {
  if (options.labels == labels_of_folders)
    return fail(
      errc::invalid_argument, "labels from folders need one directory; files have labels by a CSV");
  auto files = find_files(paths, how);
  return files ? make_reader({std::move(*files), {}}, options, how) : fail(files.error());
}

} // namespace millrace::storage::samples
