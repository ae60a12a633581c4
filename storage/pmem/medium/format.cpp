// Checksums of the objects in a pool. Called by everything in storage/pmem.
#include <millrace/storage/pmem/medium/format.hpp>

#include <fmt/format.h>

#include <cstring>

namespace millrace::storage::pmem {

std::uint64_t word_check(
  std::uint64_t owner, word_kind kind, std::uint64_t slot, std::uint64_t value) noexcept {
  const std::uint64_t words[] = {owner, static_cast<std::uint64_t>(kind), slot, value};
  return digest(words, sizeof words);
}

namespace {

constexpr int payload_shift = 24, state_shift = 62;
constexpr std::uint64_t check_mask = (std::uint64_t{1} << payload_shift) - 1;

} // namespace

std::uint64_t pack(const slot_word& word, std::uint64_t owner, std::uint64_t slot) noexcept {
  auto value =
    static_cast<std::uint64_t>(word.state) << state_shift | word.payload << payload_shift;
  return value | (word_check(owner, word_kind::state, slot, value) & check_mask);
}

std::optional<slot_word> unpack(
  std::uint64_t packed, std::uint64_t owner, std::uint64_t slot) noexcept {
  slot_word word{
    static_cast<slot_state>(packed >> state_shift),
    packed >> payload_shift & slot_word::payload_max};
  if (packed >> state_shift > static_cast<std::uint64_t>(slot_state::done))
    return std::nullopt;
  return pack(word, owner, slot) == packed ? std::optional{word} : std::nullopt;
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

std::string describe(const table_key& key) {
  return key.kind == entry_kind::shard
    ? fmt::format("model {}, rank {}", key.model, key.number)
    : fmt::format("model {}, version {} of the repository", key.model, key.number);
}

std::uint64_t checksum_of(const pool_root& root) noexcept {
  auto at = offsetof(pool_root, checksum);
  return header_checksum(&root, at + 8, at, {});
}

std::uint64_t checksum_of(const table_header& header, std::span<const std::byte> body) noexcept {
  return header_checksum(&header, sizeof header, offsetof(table_header, checksum), body);
}

std::uint64_t checksum_of(const index_header& header, std::span<const std::byte> body) noexcept {
  auto at = offsetof(index_header, checksum);
  return header_checksum(&header, at + 8, at, body);
}

std::uint64_t checksum_of(const slot_header& header, std::span<const std::byte> extents) noexcept {
  return header_checksum(&header, sizeof header, offsetof(slot_header, checksum), extents);
}

std::uint64_t checksum_of(
  const version_header& header, std::span<const std::byte> digests) noexcept {
  return header_checksum(&header, sizeof header, offsetof(version_header, checksum), digests);
}

} // namespace millrace::storage::pmem
