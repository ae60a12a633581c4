// Makes zip files whose central directory claims sizes that the file does not have.
// Used by tests of archives.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::testing {

struct crafted_entry {
  std::string name;
  std::string bytes;               // as stored in the file
  std::uint64_t claimed_bytes = 0; // 0: the true size
};

namespace crafted {

inline std::string word(std::uint64_t value, unsigned bytes) {
  std::string out;
  for (unsigned i = 0; i < bytes; ++i)
    out += static_cast<char>(value >> 8 * i);
  return out;
}

inline std::uint32_t crc32(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit)
      crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
  }
  return ~crc;
}

// The part that a local header and the central directory share: versions, method, time, checksum,
// sizes, lengths.
inline std::string about(const crafted_entry& entry, const std::string& extra, bool claims) {
  auto sizes = claims ? word(0xffffffff, 4) + word(0xffffffff, 4)
                      : word(entry.bytes.size(), 4) + word(entry.bytes.size(), 4);
  return word(45, 2) + word(0, 2) + word(0, 2) + word(0, 2) + word(0x21, 2) +
    word(crc32(entry.bytes), 4) + sizes + word(entry.name.size(), 2) + word(extra.size(), 2);
}

} // namespace crafted

inline void write_crafted_zip(const std::string& path, const std::vector<crafted_entry>& entries) {
  using crafted::word;
  std::string file, directory;
  for (auto& entry : entries) {
    auto at = file.size();
    file += "PK\x03\x04" + crafted::about(entry, "", false) + entry.name + entry.bytes;
    bool claims = entry.claimed_bytes != 0;
    auto extra = claims
      ? word(1, 2) + word(16, 2) + word(entry.claimed_bytes, 8) + word(entry.claimed_bytes, 8)
      : std::string{};
    directory += "PK\x01\x02" + word(45, 2) + crafted::about(entry, extra, claims) + word(0, 2) +
      word(0, 2) + word(0, 2) + word(0, 4) + word(at, 4) + entry.name + extra;
  }
  auto end = "PK\x05\x06" + word(0, 4) + word(entries.size(), 2) + word(entries.size(), 2) +
    word(directory.size(), 4) + word(file.size(), 4) + word(0, 2);
  std::ofstream{path, std::ios::binary} << file << directory << end;
}

} // namespace millrace::testing
