// Files that are given as the fields of samples, as `image=images.npy`. Used when samples are
// opened.
#pragma once

#include <millrace/storage/samples/opening.hpp>

#include <memory>
#include <string>
#include <vector>

namespace millrace::storage::samples {

/// Files in their order, and of which field they are.
struct field_names {
  std::string field; // empty: the format of the files says their fields
  std::vector<std::string> files = {};
};

/// Expands names of files, see `expand_names`, and sorts those that are given as `NAME=FILE` by
/// their fields, which have the order in which each comes first. NAME has letters, digits, `_`, `-`
/// and `.`. A name that is, as a whole, that of a file which is there, or a pattern of such ones,
/// is no pair.
/// Errors:  as `expand_names`; `invalid_argument` naming a file with a field and one without, and
///          for more fields than `set_fields_max`.
/// Threads: blocks the caller.
result<std::vector<field_names>> sort_by_fields(const std::vector<std::string>& names);

/// Opens files `.npy` as samples with the fields that they are given for. The files of one field
/// follow each other. The files at the same place of each field have the same samples, and as many;
/// a damaged one is left out with those of the other fields. `options.fields` chooses fields, and
/// then nothing of others is looked at.
/// Errors:  `invalid_argument` naming a file of another format, a field that is not there, two
///          fields of different numbers of files, or two files of different numbers of samples;
///          those of `open_npy`.
/// Threads: blocks the caller.
result<std::unique_ptr<sample_reader>> open_field_files(
  const std::vector<field_names>& given, const sample_options& options, opening& how);

} // namespace millrace::storage::samples
