// Tar archives whose headers say what a test wants, with checksums that hold. Used by the tests and
// the fuzzer of samples in tar files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::testing {

struct crafted_tar_entry {
  std::string name;
  std::string bytes;
  char type = '0';
  std::uint64_t claimed_bytes = 0; // if not 0: what the header says in place of the size
  std::string link = {};
};

namespace detail {

inline void put_octal(
  std::string& header, std::size_t at, std::size_t digits, std::uint64_t value) {
  for (auto i = digits; i-- > 0; value /= 8)
    header[at + i] = static_cast<char>('0' + value % 8);
}

} // namespace detail

/// Returns the header of an entry, in the format ustar.
inline std::string crafted_tar_header(const crafted_tar_entry& entry) {
  std::string header(512, '\0');
  header.replace(0, std::min<std::size_t>(entry.name.size(), 100), entry.name, 0, 100);
  detail::put_octal(header, 100, 7, 0644);
  detail::put_octal(
    header, 124, 11, entry.claimed_bytes ? entry.claimed_bytes : entry.bytes.size());
  header[156] = entry.type;
  header.replace(157, std::min<std::size_t>(entry.link.size(), 100), entry.link, 0, 100);
  header.replace(257, 5, "ustar");
  header.replace(263, 2, "00");
  header.replace(148, 8, 8, ' ');
  std::uint64_t sum = 0;
  for (auto c : header)
    sum += static_cast<unsigned char>(c);
  detail::put_octal(header, 148, 6, sum);
  header[154] = '\0';
  return header;
}

/// Returns an archive with its end mark.
inline std::string crafted_tar(const std::vector<crafted_tar_entry>& entries) {
  std::string out;
  for (auto& entry : entries) {
    out += crafted_tar_header(entry) + entry.bytes;
    out.resize((out.size() + 511) / 512 * 512);
  }
  return out + std::string(1024, '\0');
}

} // namespace millrace::testing
