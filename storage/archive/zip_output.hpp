// A zip file of uncompressed entries, written in one stream. Used by the writers of NPZ and torch files.
#pragma once

#include <millrace/storage/archive/formats.hpp>

#include <deque>
#include <memory>
#include <string>

struct zip;

namespace millrace::storage::archive {

/// Entries are collected by name and size; their bytes are asked for by `close`, one entry after the other.
class zip_output {
public:
  /// `path` exists and is replaced. The source and the meter outlive this.
  static result<std::unique_ptr<zip_output>> create(
    const std::string& path, tensor_source& source, meter& done);
  ~zip_output();
  zip_output(const zip_output&) = delete;
  zip_output& operator=(const zip_output&) = delete;

  /// `alignment`: of the first byte in the file; 1, or a power of two up to 4096.
  [[nodiscard]] status add_text(
    const std::string& name, std::string text, std::uint64_t alignment = 1);

  /// An entry of `head` and then the tensor's bytes.
  [[nodiscard]] status add_tensor(
    const std::string& name, std::string head, std::uint32_t tensor, std::uint64_t alignment = 1);

  /// Writes everything. Errors: of the source first, then of the file.
  [[nodiscard]] status close();

  /// Where the bytes of an entry come from, as libzip asks for them.
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
  std::uint64_t end_ = 0; // of the entries added so far, in the file
};

} // namespace millrace::storage::archive
