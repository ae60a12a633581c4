// A model of 4 KiB. Used by the sections that measure small ones.
#pragma once

#include <millrace/bench/common/model_table.hpp>

#include <cstdint>

namespace millrace::bench {

inline constexpr std::uint64_t tiny_bytes = 4096;

/// Returns a model of one tensor.
inline model_table tiny_table() {
  model_table table;
  table.tensors.tensors = {{"tiny", dtype::f32, {tiny_bytes / sizeof(float)}}};
  table.graph = model_graph::chain_of(table.tensors);
  table.size_bytes = tiny_bytes;
  return table;
}

} // namespace millrace::bench
