// Tar archives, entry by entry, and the bytes of compressed ones. Used by the reader of tar files.
#pragma once

#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace millrace::storage::samples {

/// How the bytes of an archive are compressed.
enum class tar_packing : std::uint8_t { none, gzip, zstd };

/// Returns how an archive of this name is compressed: `.tar`, `.tar.gz`, `.tgz` and `.tar.zst`.
/// None: the name is not that of a tar archive that can be read.
std::optional<tar_packing> tar_packing_of(std::string_view name) noexcept;

/// Reads bytes of a file, from an offset on, and returns how many: fewer only at its end. Its error
/// ends the reading of the archive.
using byte_source = std::function<result<std::size_t>(std::uint64_t, std::span<std::byte>)>;

enum class tar_entry_kind : std::uint8_t { file, folder, link, sparse_file, device };

struct tar_entry {
  std::string name; // as the archive has it; only a name, nothing is ever written there
  tar_entry_kind kind = tar_entry_kind::file;
  std::uint64_t offset = 0; // of its bytes, in the archive without the compression
  std::uint64_t size_bytes = 0;
};

/// Goes through an archive once: ustar, pax, GNU tar and old tar files. libarchive parses them.
///
/// Errors:  `corrupt_data` saying what is wrong, also for an archive that ends without its end
///          mark, since then it was cut short; `no_space`; those of the source.
/// Threads: one at a time.
class tar_stream {
public:
  static result<tar_stream> open(byte_source from, tar_packing packing);
  tar_stream(tar_stream&&) noexcept;
  ~tar_stream();

  /// Returns the next entry; none at the end. Without compression the bytes of entries are passed
  /// over unread, so the caller checks that the file has them.
  result<std::optional<tar_entry>> next();
  /// Returns the bytes of the last entry, which are few.
  result<std::string> bytes(std::uint64_t size_bytes);
  /// Returns how many bytes were passed or read, without the compression.
  std::uint64_t position() const noexcept;

private:
  struct state;
  explicit tar_stream(std::unique_ptr<state> of) noexcept;
  result<std::optional<tar_entry>> end();

  std::unique_ptr<state> state_;
};

/// The bytes of a compressed archive without the compression, forwards.
/// Errors:  as `tar_stream`.
/// Threads: one at a time.
class unpacked_stream {
public:
  static result<unpacked_stream> open(byte_source from, tar_packing packing);
  unpacked_stream(unpacked_stream&&) noexcept;
  ~unpacked_stream();

  /// Returns how many bytes lie behind.
  std::uint64_t position() const noexcept;
  /// Reads the bytes from `offset` on, which is not below `position`.
  [[nodiscard]] status read(std::uint64_t offset, std::span<std::byte> into);

private:
  struct state;
  explicit unpacked_stream(std::unique_ptr<state> of) noexcept;
  std::unique_ptr<state> state_;
};

} // namespace millrace::storage::samples
