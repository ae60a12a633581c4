// The zip output: a zip file of uncompressed entries, written in one pass. Used by the writers of
// NPZ and torch files.
#pragma once

#include <millrace/storage/archive/formats.hpp>

#include <deque>
#include <memory>
#include <string>

struct zip;

namespace millrace::storage::archive {

/// Collects entries by name and size. `close` then reads and writes their bytes, one entry after
/// the other.
class zip_output {
public:
  /// Replaces the existing file at `path`. The source and the meter must outlive the output.
  static result<std::unique_ptr<zip_output>> create(
    const std::string& path, tensor_source& source, meter& done);
  ~zip_output();
  zip_output(const zip_output&) = delete;
  zip_output& operator=(const zip_output&) = delete;

  /// Adds a text. `alignment`: of the first byte in the file; 1, or a power of two up to 4096.
  [[nodiscard]] status add_text(
    const std::string& name, std::string text, std::uint64_t alignment = 1);

  /// Adds an entry of `head` followed by the tensor's bytes.
  [[nodiscard]] status add_tensor(
    const std::string& name, std::string head, std::uint32_t tensor, std::uint64_t alignment = 1);

  /// Writes all entries. Errors: those of the source before those of the file.
  [[nodiscard]] status close();

  /// Supplies libzip with the bytes of an entry.
  struct feed;

private:
  zip_output(zip* file, tensor_source& source, meter& done);
  status add(const std::string& name, std::unique_ptr<feed> from, std::uint64_t alignment);
  status align(std::uint64_t index, std::uint64_t data_at, std::uint64_t alignment);

  zip* file_;
  tensor_source& source_;
  meter& done_;
  std::deque<std::unique_ptr<feed>> feeds_;
  std::vector<std::byte> buffer_; // shared: entries are written one at a time
  status failed_;
  std::uint64_t end_ = 0; // where the entries added so far end in the file
};

} // namespace millrace::storage::archive
