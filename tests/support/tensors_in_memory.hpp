// Makes tensors as a source for archives, and compares archives with them.
// Used by tests of archives and flushes.
#pragma once

#include <millrace/storage/archive/archive.hpp>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace millrace::testing {

class tensors_in_memory final : public storage::archive::tensor_source {
public:
  /// Adds a tensor whose bytes depend on `seed`, its name and their offset. Booleans are 0 or 1.
  void add(tensor_desc tensor, std::uint64_t seed = 1) {
    std::vector<std::byte> bytes(size_bytes(tensor).value());
    auto state = seed * 0x9e3779b97f4a7c15ull;
    for (char c : tensor.name)
      state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    for (auto& byte : bytes) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      byte = static_cast<std::byte>(tensor.type == dtype::boolean ? state >> 63 : state >> 56);
    }
    add(std::move(tensor), std::move(bytes));
  }
  void add(tensor_desc tensor, std::vector<std::byte> bytes) {
    tensors_.tensors.push_back(std::move(tensor));
    bytes_.push_back(std::move(bytes));
  }
  void say(std::string key, std::string value) {
    metadata_.emplace_back(std::move(key), std::move(value));
  }

  const layout& tensors() const noexcept override { return tensors_; }
  const storage::archive::text_pairs& metadata() const noexcept override { return metadata_; }

  status read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) override {
    if (reads_left == 0)
      return {errc::peer_lost, "the source fails as asked"};
    --reads_left;
    std::memcpy(into.data(), bytes_.at(tensor).data() + offset, into.size());
    return {};
  }

  const std::vector<std::byte>& bytes(std::size_t tensor) const { return bytes_.at(tensor); }

  std::uint64_t reads_left = ~0ull;

private:
  layout tensors_;
  storage::archive::text_pairs metadata_;
  std::vector<std::vector<std::byte>> bytes_;
};

/// Reads the bytes of a tensor in pieces of `step` (a multiple of 64).
inline result<std::vector<std::byte>> read_tensor(
  storage::archive::tensor_source& source, std::uint32_t tensor, std::uint64_t step = 1u << 20) {
  std::vector<std::byte> bytes(size_bytes(source.tensors().tensors.at(tensor)).value());
  for (std::uint64_t at = 0; at < bytes.size(); at += step) {
    auto length = std::min<std::uint64_t>(step, bytes.size() - at);
    if (auto bad = source.read(tensor, at, std::span{bytes}.subspan(at, length)); !bad.ok())
      return fail(bad);
  }
  return bytes;
}

/// Returns "" when `found` has the same tensors, bytes and metadata; else the first difference.
inline std::string difference(
  storage::archive::tensor_source& found, const tensors_in_memory& expected,
  std::uint64_t step = 1u << 20) {
  auto& wanted = expected.tensors().tensors;
  auto& there = found.tensors().tensors;
  if (there.size() != wanted.size())
    return std::to_string(there.size()) + " tensors";
  if (found.metadata() != expected.metadata())
    return "metadata";
  for (std::uint32_t i = 0; i < wanted.size(); ++i) {
    if (there[i] != wanted[i])
      return there[i].name + " " + describe(there[i]) + " instead of " + wanted[i].name + " " +
        describe(wanted[i]);
    auto bytes = read_tensor(found, i, step);
    if (!bytes)
      return wanted[i].name + ": " + bytes.error().to_string();
    if (*bytes != expected.bytes(i))
      return "the bytes of " + wanted[i].name;
  }
  return {};
}

} // namespace millrace::testing
