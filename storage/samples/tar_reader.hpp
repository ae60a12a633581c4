// Tar archives whose files make samples, as WebDataset writes them. Opened by `open_samples`.
#pragma once

#include <millrace/storage/samples/opening.hpp>

#include <string>
#include <vector>

namespace millrace::storage::samples {

/// The field that has the names of the samples.
inline constexpr const char* tar_key_field = "key";

/// Opens tar archives, whose samples follow each other in the order of the archives. Files with the
/// same name up to the first dot are one sample, and what comes after the dot is the field: u8,
/// varying. `cls` is i64 if most of its texts are whole numbers. `key`, u8 and varying, is the
/// name of the sample.
///
/// The fields are those that more than half of the samples have, by name, and then `key`. A sample
/// that lacks one of them, or has another one, is damaged, and is named as ARCHIVE:KEY. With
/// `options.fields` nothing else counts than these.
///
/// Cost:    the headers are read once; of a compressed archive, all of it. Then samples are read by
///          position, and those of compressed archives in their order, once for each field.
/// Errors:  `invalid_argument` naming a field that is not there; those of `index_tar`, with the
///          archive; of a damaged sample.
/// Threads: blocks the caller. Reads of compressed archives wait for each other.
result<std::unique_ptr<sample_reader>> open_tars(
  const std::vector<std::string>& names, const sample_options& options, opening& how);

} // namespace millrace::storage::samples
