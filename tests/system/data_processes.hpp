// Data servers that are processes of their own, and files of samples. Used by system tests of
// working sets, and by the programs that they start.
#pragma once

#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/client/working_set.hpp>
#include <millrace/tests/support/npy_file.hpp>
#include <millrace/tests/support/pattern.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace millrace::testing {

inline constexpr std::uint64_t sample_bytes = 1000;

/// Writes samples, from `first` on, whose bytes are those of the pattern. Returns the path.
inline std::string write_samples(
  const std::string& path, std::uint64_t samples, std::uint64_t first = 0) {
  auto bytes = pattern((first + samples) * sample_bytes, 1);
  return write_npy(
    path, {"x", dtype::u8, {samples, sample_bytes}},
    std::span{bytes}.subspan(first * sample_bytes));
}

inline bool is_sample(std::span<const std::byte> bytes, std::uint64_t id) {
  return bytes.size() == sample_bytes && is_pattern(bytes, id * sample_bytes, 1);
}

/// Reads all samples in one batch, the last one first. Errors: `corrupt_data` for wrong bytes.
[[nodiscard]] inline status read_all(const set_reader& reader) {
  std::vector<std::uint64_t> ids(reader.info().samples);
  std::iota(ids.rbegin(), ids.rend(), 0);
  std::vector<std::byte> into(ids.size() * sample_bytes);
  auto read = reader.read_batch(0, ids, into);
  if (!read.result())
    return read.result().error();
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (!is_sample(std::span{into}.subspan(i * sample_bytes, sample_bytes), ids[i]))
      return {errc::corrupt_data, "sample {} has other bytes", ids[i]};
  return {};
}

/// Files of different sizes, of which a window keeps some.
inline constexpr std::uint64_t folder_files = 300;

inline std::uint64_t file_bytes(std::uint64_t id) { return 1000 + id * 7919 % 12'000; }

inline bool is_file(std::span<const std::byte> bytes, std::uint64_t id) {
  return bytes.size() == file_bytes(id) && is_pattern(bytes, 0, id);
}

/// Writes a folder of them, and returns the path.
inline std::string write_folder(const std::string& path) {
  std::filesystem::create_directories(path);
  for (std::uint64_t id = 0; id < folder_files; ++id) {
    auto bytes = pattern(file_bytes(id), id);
    std::ofstream{fmt::format("{}/{:03}", path, id), std::ios::binary}.write(
      reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  return path;
}

inline preload_options in_window() {
  preload_options out;
  out.fields = {"x"};
  out.window_bytes = 1 << 20;
  return out;
}

/// Returns the options of a rank of a job of two.
inline loader_options of_rank(std::uint64_t rank) {
  loader_options out;
  out.batch_size = 8;
  out.rank = rank;
  out.world_size = 2;
  out.seed = 3;
  return out;
}

} // namespace millrace::testing
