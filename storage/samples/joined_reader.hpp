// Samples whose fields come from several readers. Made for files that have one field each.
#pragma once

#include <millrace/storage/samples/sample_reader.hpp>

#include <memory>
#include <vector>

namespace millrace::storage::samples {

/// Makes a reader of samples that have the fields of all these readers, in their order. There is at
/// least one, each has one field, and all have the same number of samples.
std::unique_ptr<sample_reader> join_fields(std::vector<std::unique_ptr<sample_reader>> readers);

} // namespace millrace::storage::samples
