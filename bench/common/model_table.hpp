// The models to store: uniform and varied layers, and real ones by their tensor tables.
// Used by the benchmarks.
#pragma once

#include <millrace/core/model_graph.hpp>
#include <millrace/core/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::bench {

/// Tensors by name and shape, all of f32, and the graph that they make.
struct model_table {
  std::string name; // "1GiB/10-layers": part of the case's name
  layout tensors;
  model_graph graph;
  std::uint64_t size_bytes = 0;

  /// Returns views of the tensors, one after the other in `memory`.
  std::vector<tensor_view> over(std::span<std::byte> memory) const;
};

/// Returns `layers` matrices with rows of 4 KiB that add up to `size_bytes` (a multiple of 4 KiB).
/// `spread` is how far their sizes vary around the mean; 0.3 is ±30 %.
model_table layered(std::uint64_t size_bytes, std::size_t layers, double spread = 0);

/// Returns the table in a file of data/.
/// Errors:  what the operating system says; `invalid_argument`.
result<model_table> from_file(const std::string& name, const std::string& path);

/// Returns a graph of 1000 different leaf layers, which takes longest to hash and encode.
model_graph thousand_layers();

/// Returns "256MiB" or "4KiB".
std::string size_name(std::uint64_t size_bytes);

/// Memory as a trainer has it: ordinary pages, all touched.
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
