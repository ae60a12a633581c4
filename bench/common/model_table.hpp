// Models to store: uniform and varied layers, and real ones by their tensor tables.
#pragma once

#include <millrace/core/model_graph.hpp>
#include <millrace/core/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::bench {

/// Tensors by name and shape, all of f32, and the graph they make.
struct model_table {
  std::string name; // "1GiB/10-layers": part of the case
  layout tensors;
  model_graph graph;
  std::uint64_t size_bytes = 0;

  /// The tensors one after the other in `memory`.
  std::vector<tensor_view> over(std::span<std::byte> memory) const;
};

/// `layers` matrices of rows of 4 KiB that add up to `size_bytes` (a multiple of 4 KiB).
/// `spread`: how far their sizes stray from the mean; 0.3 is ±30 %.
model_table layered(std::uint64_t size_bytes, std::size_t layers, double spread = 0);

/// The table in a file of data/. Errors: what the operating system says; `invalid_argument`.
result<model_table> from_file(const std::string& name, const std::string& path);

/// 1000 leaf layers, no two alike: what hashing and encoding take longest over.
model_graph thousand_layers();

/// "256MiB", "4KiB".
std::string size_name(std::uint64_t size_bytes);

/// Memory as a trainer has it: ordinary pages, all of them touched.
class warm_buffer {
public:
  explicit warm_buffer(std::uint64_t size_bytes);
  ~warm_buffer();
  warm_buffer(const warm_buffer&) = delete;
  warm_buffer& operator=(const warm_buffer&) = delete;

  std::span<std::byte> bytes() const noexcept { return {data_, size_bytes_}; }
  std::span<std::byte> first(std::uint64_t size_bytes) const { return bytes().first(size_bytes); }
  void fill_randomly(std::uint64_t seed);

private:
  std::byte* data_;
  std::uint64_t size_bytes_;
};

} // namespace millrace::bench
