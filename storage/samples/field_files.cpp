// Finds the files of each field, and opens those that are there at the same place of all fields.
#include <millrace/core/digest.hpp>
#include <millrace/core/working_set.hpp>
#include <millrace/storage/samples/field_files.hpp>
#include <millrace/storage/samples/name_patterns.hpp>
#include <millrace/storage/samples/npy_reader.hpp>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace millrace::storage::samples {

namespace {

bool is_letter_of_field(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
    c == '-' || c == '.';
}

// Returns the place of the character between a field and a file.
std::size_t end_of_field(const std::string& name) {
  auto equals = name.find('=');
  auto is_pair = equals != std::string::npos && equals > 0 && equals + 1 < name.size() &&
    std::ranges::all_of(name.substr(0, equals), is_letter_of_field);
  return is_pair && !names_any(name) ? equals : std::string::npos;
}

field_names split(const std::string& name) {
  auto end = end_of_field(name);
  if (end == std::string::npos)
    return {"", {name}};
  return {name.substr(0, end), {name.substr(end + 1)}};
}

std::string text_of(const field_names& one) {
  return one.field.empty() ? one.files.front() : one.field + "=" + one.files.front();
}

status mixed(const field_names& first, const field_names& next) {
  auto& with = first.field.empty() ? next : first;
  auto& without = first.field.empty() ? first : next;
  return {
    errc::invalid_argument,
    "{} is given with a field, and {} without one; give all files of a set as NAME=FILE, or none",
    text_of(with), text_of(without)};
}

// Returns the fields that are wanted, in the order of the wish.
result<std::vector<field_names>> choose(
  const std::vector<field_names>& given, const std::vector<std::string>& fields) {
  if (fields.empty())
    return given;
  std::vector<field_names> out;
  for (auto& field : fields) {
    auto found = std::ranges::find(given, field, &field_names::field);
    if (found == given.end()) {
      std::string all;
      for (auto& one : given)
        all += (all.empty() ? "" : ", ") + one.field;
      return fail(
        errc::invalid_argument, "no file is given as the field {}; there are: {}", field, all);
    }
    out.push_back(*found);
  }
  return out;
}

status check_names(const std::vector<field_names>& given, const sample_options& options) {
  auto& first = given.front();
  if (options.kind == sample_kind::files)
    return {
      errc::invalid_argument, "{}: fields are given for arrays, and the kind is `files`",
      text_of(first)};
  if (!options.labels.empty())
    return {
      errc::invalid_argument,
      "labels are for files; arrays have them as a field, as label=labels.npy"};
  for (auto& one : given) {
    auto odd = std::ranges::find_if_not(one.files, is_npy);
    if (odd != one.files.end())
      return {
        errc::invalid_argument,
        "{}={}: no file is called so, and only files whose names end in .npy are given as fields",
        one.field, *odd};
    if (one.files.size() != first.files.size())
      return {
        errc::invalid_argument,
        "the field {} has {} files, and the field {} has {}; each file has the same samples as the "
        "one at its place of every other field",
        first.field,
        first.files.size(),
        one.field,
        one.files.size()};
  }
  return {};
}

// The files of a field. Of those that are not there, none.
struct found_field {
  std::string name;
  std::vector<std::optional<named_file>> files = {};
};

result<found_field> find_all(const field_names& given, opening& how) {
  found_field out{given.field};
  for (auto& name : given.files) {
    auto found = find_files({name}, how);
    if (!found)
      return fail(found.error());
    auto is_there = !found->empty();
    out.files.push_back(is_there ? std::optional{std::move(found->front())} : std::nullopt);
  }
  return out;
}

// The source has the files that are left out, too.
std::uint64_t source_of(const std::vector<found_field>& fields, const sample_options& options) {
  running_digest all;
  for (auto& field : fields) {
    std::vector<named_file> files;
    for (auto& file : field.files)
      if (file)
        files.push_back(*file);
    auto source = source_of(files, options);
    all.add_text(field.name);
    all.add(&source, sizeof(source));
  }
  return all.value();
}

// Returns the files at those places at which every field has one.
std::vector<npy_field> complete(const std::vector<found_field>& found, const opening& how) {
  std::vector<npy_field> out;
  out.reserve(found.size());
  for (auto& field : found)
    out.push_back({field.name});
  for (std::size_t place = 0; place < found.front().files.size(); ++place) {
    auto is_there = [&](auto& field) {
      auto& file = field.files[place];
      return file && !how.leaves_out(file->path);
    };
    if (std::ranges::all_of(found, is_there))
      for (std::size_t f = 0; f < found.size(); ++f)
        out[f].paths.push_back(found[f].files[place]->path);
  }
  return out;
}

} // namespace

result<std::vector<field_names>> sort_by_fields(const std::vector<std::string>& names) {
  std::vector<field_names> out;
  for (auto& name : names) {
    auto next = split(name);
    if (!out.empty() && out.front().field.empty() != next.field.empty())
      return fail(mixed(out.front(), next));
    auto files = expand_names(next.files);
    if (!files)
      return fail(files.error());
    auto to = std::ranges::find(out, next.field, &field_names::field);
    if (to == out.end() && out.size() == set_fields_max)
      return fail(
        errc::invalid_argument, "{}: a set has {} fields at most", text_of(next), set_fields_max);
    if (to == out.end())
      out.push_back({std::move(next.field), std::move(*files)});
    else
      std::ranges::move(*files, std::back_inserter(to->files));
  }
  return out;
}

result<std::unique_ptr<sample_reader>> open_field_files(
  const std::vector<field_names>& given, const sample_options& options, opening& how) {
  auto chosen = choose(given, options.fields);
  if (!chosen)
    return fail(chosen.error());
  if (auto bad = check_names(*chosen, options); !bad.ok())
    return fail(bad);
  std::vector<found_field> found;
  for (auto& field : *chosen) {
    auto files = find_all(field, how);
    if (!files)
      return fail(files.error());
    found.push_back(std::move(*files));
  }
  auto reader = open_npy_fields(complete(found, how), how);
  if (reader)
    (*reader)->set_source(source_of(found, options));
  return reader;
}

} // namespace millrace::storage::samples
