// Chooses the reader of files by their endings, and that of directories by the options.
#include <millrace/storage/samples/array_reader.hpp>
#include <millrace/storage/samples/decoded_reader.hpp>
#include <millrace/storage/samples/field_files.hpp>
#include <millrace/storage/samples/fileset_reader.hpp>
#include <millrace/storage/samples/npy_reader.hpp>
#include <millrace/storage/samples/sample_file.hpp>
#include <millrace/storage/samples/tar_reader.hpp>
#include <millrace/storage/samples/tar_stream.hpp>

#include <algorithm>
#include <filesystem>
#include <iterator>

namespace millrace::storage::samples {

namespace {

bool is_array_file(std::string_view path) { return is_npy(path) || holds_arrays(path); }

result<std::unique_ptr<sample_reader>> open_all_npy(
  const std::vector<named_file>& files, const sample_options& options, opening& how) {
  if (!options.fields.empty() && options.fields != std::vector<std::string>{"x"})
    return fail(
      errc::invalid_argument,
      "files .npy have one field, which is called x; those of other names are given as NAME=FILE");
  std::vector<std::string> paths(files.size());
  std::ranges::transform(files, paths.begin(), &named_file::path);
  return open_npy(paths, npy_block_bytes, &how);
}

// Checks the names of files that are to be read as arrays.
status check_names(const std::vector<std::string>& names, const sample_options& options) {
  auto odd = std::ranges::find_if_not(names, is_array_file);
  if (odd != names.end())
    return {
      errc::unsupported,
      "{}: arrays are read from files whose names end in .npy, .npz, .h5 or .hdf5; others are read "
      "as samples, each of them one, if no array is among them or the kind is `files`",
      *odd};
  auto plain = std::ranges::count_if(names, is_npy);
  if (plain != 0 && plain != std::ssize(names))
    return {
      errc::invalid_argument, "files .npy have one field, and do not belong to a set with others"};
  if (!options.labels.empty())
    return {errc::invalid_argument, "labels are for files; arrays have them as a field"};
  return {};
}

// The source has the files that are left out, too.
result<std::unique_ptr<sample_reader>> open_array_files(
  std::vector<named_file> files, const sample_options& options, opening& how) {
  auto source = source_of(files, options);
  std::erase_if(files, [&](auto& file) { return how.leaves_out(file.path); });
  auto plain = !files.empty() && is_npy(files.front().name);
  auto reader = plain ? open_all_npy(files, options, how) : open_arrays(files, options.fields, how);
  if (reader)
    (*reader)->set_source(source);
  return reader;
}

result<std::unique_ptr<sample_reader>> open_named_arrays(
  const std::vector<std::string>& names, const sample_options& options, opening& how) {
  if (auto bad = check_names(names, options); !bad.ok())
    return fail(bad);
  auto files = find_files(names, how);
  return files ? open_array_files(std::move(*files), options, how) : fail(files.error());
}

// The files of a directory that are arrays by their names.
result<std::unique_ptr<sample_reader>> open_arrays_in(
  const std::string& directory, const sample_options& options, opening& how) {
  auto all = walk(directory, how);
  if (!all)
    return fail(all.error());
  std::erase_if(all->files, [](auto& file) { return !is_array_file(file.name); });
  if (all->files.empty())
    return fail(how.nothing_left(
      {errc::invalid_argument, "{} has no files .npy, .npz, .h5 or .hdf5", directory}));
  std::vector<std::string> names;
  for (auto& file : all->files)
    names.push_back(file.name);
  if (auto bad = check_names(names, options); !bad.ok())
    return fail(bad);
  return open_array_files(std::move(all->files), options, how);
}

result<std::unique_ptr<sample_reader>> open_directory(
  const std::string& path, const sample_options& options, opening& how) {
  return options.kind == sample_kind::arrays ? open_arrays_in(path, options, how)
                                             : open_folder(path, options, how);
}

bool is_tar(std::string_view name) { return tar_packing_of(name).has_value(); }

result<std::unique_ptr<sample_reader>> open_named_tars(
  const std::vector<std::string>& names, const sample_options& options, opening& how) {
  if (auto odd = std::ranges::find_if_not(names, is_tar); odd != names.end())
    return fail(
      errc::invalid_argument,
      "{} is no tar archive by its name, and does not belong to a set with others; the kind "
      "`files` takes each file as a sample",
      *odd);
  if (!options.labels.empty())
    return fail(
      errc::invalid_argument, "labels are for files; samples in tar archives have them as `.cls`");
  return open_tars(names, options, how);
}

status check_fields(const std::vector<std::string>& fields) {
  for (auto field = fields.begin(); field != fields.end(); ++field)
    if (std::find(fields.begin(), field, *field) != field)
      return {errc::invalid_argument, "the field {} is given twice", *field};
  return {};
}

bool is_directory(const std::string& path) {
  std::error_code why;
  return std::filesystem::is_directory(path, why);
}

result<std::unique_ptr<sample_reader>> open_named(
  const std::vector<std::string>& paths, const sample_options& options, opening& how) {
  auto folder = std::ranges::find_if(paths, is_directory);
  if (folder != paths.end() && paths.size() > 1)
    return fail(
      errc::invalid_argument, "{} is a directory: one directory, or files, make a set", *folder);
  if (folder != paths.end())
    return open_directory(*folder, options, how);
  auto is_automatic = options.kind == sample_kind::automatic;
  if (is_automatic && std::ranges::any_of(paths, is_tar))
    return open_named_tars(paths, options, how);
  auto plain = is_automatic && std::ranges::none_of(paths, is_array_file);
  return plain || options.kind == sample_kind::files ? open_files(paths, options, how)
                                                     : open_named_arrays(paths, options, how);
}

result<std::unique_ptr<sample_reader>> open_given(
  const std::vector<field_names>& given, const sample_options& options, opening& how) {
  if (given.empty())
    return fail(errc::invalid_argument, "no files with samples are given");
  auto& first = given.front();
  return first.field.empty() ? open_named(first.files, options, how)
                             : open_field_files(given, options, how);
}

// Where the first image is damaged, and left out, the samples are opened again without it.
result<std::unique_ptr<sample_reader>> open_and_decode(
  const std::vector<field_names>& given, const sample_options& options, opening& how) {
  for (;;) {
    auto reader = open_given(given, options, how);
    if (!reader || options.decode.empty())
      return reader;
    auto decoded = open_decoded(std::move(*reader), options, how);
    if (!decoded || *decoded)
      return decoded;
  }
}

} // namespace

result<std::unique_ptr<sample_reader>> open_samples(
  const std::vector<std::string>& paths, const sample_options& options,
  std::vector<damaged_file>* left_out) {
  auto given = sort_by_fields(paths);
  if (!given)
    return fail(given.error());
  if (auto bad = check_fields(options.fields); !bad.ok())
    return fail(bad);
  opening how{options, left_out ? *left_out : std::vector<damaged_file>{}};
  auto reader = open_and_decode(*given, options, how);
  if (left_out)
    *left_out = how.left_out();
  return reader;
}

} // namespace millrace::storage::samples
