// Tensors in entries of a zip file, as NPZ and torch files have them. Used by the readers of both.
#pragma once

#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/archive/strided.hpp>
#include <millrace/storage/archive/zip_input.hpp>

namespace millrace::storage::archive {

/// The place of one tensor's elements.
struct zipped_tensor {
  std::size_t entry = 0;
  std::uint64_t offset = 0; // where its first element lies in the entry
  strides steps{};          // empty: dense
  bool big_endian = false;
  bool conjugated = false; // the imaginary parts have the other sign
  bool negated = false;    // all numbers have the other sign
};

/// The most bytes of a tensor that is not in C order. It is held in memory while it is read.
inline constexpr std::uint64_t strided_bytes_max = 16ull << 30;

/// Returns a source of the tensors. Errors: `corrupt_data` when a tensor's elements lie outside its
/// entry.
result<std::unique_ptr<tensor_source>> make_zipped_source(
  zip_input file, layout tensors, std::vector<zipped_tensor> places, text_pairs metadata);

} // namespace millrace::storage::archive
