// The zip input: entries of a zip file, read at any offset. Used by the readers of NPZ and torch
// files.
#pragma once

#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct zip;
struct zip_file;

namespace millrace::storage::archive {

struct zip_entry {
  std::string name;             // UTF-8
  std::uint64_t size_bytes = 0; // according to the file
  std::uint64_t stored_bytes = 0;
};

/// Threads: one call at a time.
class zip_input {
public:
  /// Errors: `corrupt_data` for a file that is not a zip file, or with an entry that claims more
  /// bytes than the file, or than its compressed bytes can contain, or with two entries of one
  /// name; `unsupported` for entries that are encrypted or not compressed by deflate.
  static result<zip_input> open(const std::string& path);

  const std::vector<zip_entry>& entries() const noexcept { return entries_; }

  /// Reads bytes of an entry. Continuing at the end of the last call is cheap; going back in a
  /// compressed entry starts at its beginning.
  [[nodiscard]] status read(std::size_t entry, std::uint64_t offset, std::span<std::byte> into);

  /// Reads a whole entry. Errors: `corrupt_data` when it is larger than `bytes_max`.
  result<std::string> read_text(std::size_t entry, std::uint64_t bytes_max);

private:
  struct closer {
    void operator()(zip* file) const noexcept;
    void operator()(zip_file* entry) const noexcept;
  };

  explicit zip_input(zip* file) : file_(file) {}
  status list(std::uint64_t file_bytes);
  status move_to(std::size_t entry, std::uint64_t offset);
  status read_on(std::span<std::byte> into);

  std::unique_ptr<zip, closer> file_;
  std::vector<zip_entry> entries_;
  std::unique_ptr<zip_file, closer> opened_; // after file_: closed first
  std::size_t opened_index_ = 0;
  std::uint64_t position_ = 0;
};

} // namespace millrace::storage::archive
