// Opens zip files of untrusted bytes as archives and reads them whole. Used by the fuzzers of NPZ
// and torch files.
#pragma once

#include <millrace/core/assert.hpp>
#include <millrace/storage/archive/archive.hpp>
#include <millrace/tests/support/crafted_zip.hpp>
#include <millrace/tests/support/tensors_in_memory.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

namespace millrace::testing {

/// A file in memory that has a path.
class memory_file {
public:
  memory_file() : fd_(::memfd_create("fuzzed", 0)) { MILLRACE_ASSERT(fd_ >= 0); }
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;
  ~memory_file() { ::close(fd_); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

private:
  int fd_;
};

/// Reads entries from an input: the length of the name, two bytes of the length of the contents, by
/// how much the directory lies about it, then both.
inline std::vector<crafted_entry> entries_of(std::string_view in) {
  auto byte = [&](std::size_t at) { return static_cast<unsigned char>(in[at]); };
  std::vector<crafted_entry> entries;
  while (in.size() >= 4) {
    std::size_t name_bytes = byte(0), bytes = byte(1) | static_cast<std::size_t>(byte(2)) << 8;
    std::uint64_t lie = byte(3);
    in.remove_prefix(4);
    crafted_entry entry{std::string{in.substr(0, name_bytes)}, {}, 0};
    in.remove_prefix(entry.name.size());
    entry.bytes = in.substr(0, bytes);
    in.remove_prefix(entry.bytes.size());
    entry.claimed_bytes = lie == 0 ? 0 : entry.bytes.size() + lie;
    entries.push_back(std::move(entry));
  }
  return entries;
}

/// Opens an input as an archive. The first byte says how the file is made of the others: they are
/// the file, or its entries, with checksums that hold. What opens has valid tensors. What can be
/// read twice is the same.
inline void fuzz_zip(storage::archive::archive_format format, std::string_view in) {
  if (in.empty())
    return;
  memory_file file;
  if (in[0] % 2 == 0)
    std::ofstream{file.path(), std::ios::binary} << in.substr(1);
  else
    write_crafted_zip(file.path(), entries_of(in.substr(1)));
  auto source = storage::archive::open_archive(file.path(), format);
  if (!source)
    return;
  auto& tensors = (*source)->tensors();
  MILLRACE_ASSERT(validate(tensors).ok());
  for (auto& [key, value] : (*source)->metadata())
    MILLRACE_ASSERT(is_utf8(key) && is_utf8(value));
  for (std::uint32_t i = 0; i < tensors.tensors.size(); ++i) {
    if (size_bytes(tensors.tensors[i]).value() > 1u << 20)
      continue;
    auto once = read_tensor(**source, i, 192);
    auto again = read_tensor(**source, i);
    MILLRACE_ASSERT(!once || !again || *once == *again);
  }
}

} // namespace millrace::testing
