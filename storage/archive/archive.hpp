// Archives: tensors as files of common formats, written from a source and opened as one. Used by
// flushing and the command.
#pragma once

#include <millrace/core/tensor.hpp>
#include <millrace/storage/checkpoint_store.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::storage::archive {

using text_pairs = std::vector<std::pair<std::string, std::string>>;

/// A source of tensors that are read piece by piece: a version in a pool, an open file.
/// Threads: one call at a time.
class tensor_source {
public:
  virtual ~tensor_source() = default;

  virtual const layout& tensors() const noexcept = 0;
  virtual const text_pairs& metadata() const noexcept = 0;

  /// Reads dense little-endian bytes of one tensor, from `offset` on. `offset` and the length are
  /// multiples of the bytes of one element.
  [[nodiscard]] virtual status read(
    std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) = 0;

  /// Returns how many rows, from a multiple of it on, are best read together: those of a chunk.
  virtual std::uint64_t rows_together(std::uint32_t) const { return 1; }

  /// Returns the user's bytes of a checkpoint's version; none for other sources.
  /// Errors: as of `read`.
  virtual result<std::vector<std::byte>> extra() { return std::vector<std::byte>{}; }
};

enum class archive_format : std::uint8_t { safetensors, npz, hdf5, torch };

std::string_view to_string(archive_format format) noexcept;
/// Reads "safetensors", "npz", "hdf5" or "torch".
result<archive_format> parse_format(std::string_view name);
/// Returns the format of a file's extension: .safetensors, .npz, .h5, .hdf5, .pt, .pth.
std::optional<archive_format> format_of_name(std::string_view path) noexcept;
/// Returns the format of an existing file by its first bytes and, for zip files, by its entries.
result<archive_format> format_of_content(const std::string& path);

struct archive_options {
  bool replace = false; // replace an existing file
  progress_callback progress;
};

/// Writes all tensors and the metadata of `source` to a file, completely or not at all: the file is
/// written under another name beside it, synced and renamed. Formats lack some dtypes:
/// - NPZ, HDF5: dtypes that NumPy lacks are stored as unsigned integers, with their dtype beside
///   them, and `open_archive` restores them.
/// - torch: `F4` and `F6` are refused. Unsigned and 8-bit floating types need a PyTorch that has
///   them.
/// The user's bytes of the source go to a file of their own, `PATH.extra`, which is there before
/// the archive is.
/// Memory:  a few buffers of some MiB, the names, and the user's bytes.
/// Errors:  `already_exists`; `no_space`; `unsupported` naming the tensor; `cancelled` by
///          `progress`.
/// Threads: blocks the caller.
[[nodiscard]] status write_archive(
  archive_format format, const std::string& path, tensor_source& source,
  const archive_options& options = {});

/// Opens a file for reading, with the user's bytes beside it if it was written with some, and
/// checks everything except the tensors' bytes. No code of a file is executed. HDF5 files are
/// parsed by libhdf5: open only files that you trust.
/// Errors:  `corrupt_data` naming the place; `not_found` for a file whose `PATH.extra` is missing;
///          `unsupported` naming the part of the file that is not
///          supported.
result<std::unique_ptr<tensor_source>> open_archive(
  const std::string& path, std::optional<archive_format> format = std::nullopt);

} // namespace millrace::storage::archive
