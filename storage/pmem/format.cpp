// Checksums of what lies in a pool.
#include <millrace/storage/pmem/format.hpp>

#include <cstring>

namespace millrace::storage::pmem {

std::uint64_t word_check(
  std::uint64_t owner, word_kind kind, std::uint64_t slot, std::uint64_t value) noexcept {
  const std::uint64_t words[] = {owner, static_cast<std::uint64_t>(kind), slot, value};
  return digest(words, sizeof words);
}

std::uint64_t header_checksum(
  const void* header, std::size_t header_bytes, std::size_t checksum_at,
  std::span<const std::byte> body) noexcept {
  static constexpr std::uint64_t nothing = 0;
  auto from = static_cast<const std::byte*>(header);
  running_digest sum;
  sum.add(from, checksum_at);
  sum.add(&nothing, sizeof nothing);
  sum.add(from + checksum_at + sizeof nothing, header_bytes - checksum_at - sizeof nothing);
  sum.add(body.data(), body.size());
  return sum.value();
}

std::uint64_t checksum_of(const pool_root& root) noexcept {
  auto at = offsetof(pool_root, checksum);
  return header_checksum(&root, at + 8, at, {});
}

std::uint64_t checksum_of(const table_header& header, std::span<const std::byte> body) noexcept {
  return header_checksum(&header, sizeof header, offsetof(table_header, checksum), body);
}

std::uint64_t checksum_of(const index_header& header, std::span<const std::byte> spec) noexcept {
  auto at = offsetof(index_header, checksum);
  return header_checksum(&header, at + 8, at, spec);
}

std::uint64_t checksum_of(const slot_header& header, std::span<const std::byte> extents) noexcept {
  return header_checksum(&header, sizeof header, offsetof(slot_header, checksum), extents);
}

std::uint64_t checksum_of(
  const version_header& header, std::span<const std::byte> digests) noexcept {
  return header_checksum(&header, sizeof header, offsetof(version_header, checksum), digests);
}

} // namespace millrace::storage::pmem
