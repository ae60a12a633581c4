// Tensors that lie in entries of a zip file: what NPZ and torch files have in common.
#pragma once

#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/archive/strided.hpp>
#include <millrace/storage/archive/zip_input.hpp>

namespace millrace::storage::archive {

/// Where one tensor's elements are.
struct zipped_tensor {
  std::size_t entry = 0;
  std::uint64_t offset = 0;     // of its first element, in the entry
  strides steps;                // empty: dense
  std::uint64_t swap_bytes = 0; // units whose bytes are reversed; 0 or 1: none
};

/// Bytes of a tensor out of order that are held in memory while it is read.
inline constexpr std::uint64_t strided_bytes_max = 16ull << 30;

/// Checks that every tensor's elements lie in its entry.
result<std::unique_ptr<tensor_source>> make_zipped_source(
  zip_input file, layout tensors, std::vector<zipped_tensor> places, text_pairs metadata);

} // namespace millrace::storage::archive
