// Placing the tensors of one model in registered memory. Called by reservations.
#include <millrace/storage/memory/tensor_blocks.hpp>

#include <string>

namespace millrace::storage::memory {

namespace {

// A cache line, and the widest vector register: streaming copies then need no head or tail.
constexpr std::uint64_t tensor_alignment = 64;

constexpr std::uint64_t align_up(std::uint64_t bytes) noexcept {
  return (bytes + tensor_alignment - 1) / tensor_alignment * tensor_alignment;
}

} // namespace

std::uint64_t room_bytes(const std::vector<std::uint64_t>& tensor_bytes) noexcept {
  std::uint64_t sum = 0;
  for (auto bytes : tensor_bytes)
    sum += align_up(bytes);
  return sum;
}

result<std::shared_ptr<tensor_blocks>> tensor_blocks::take(
  memory_source& memory, std::shared_ptr<space_account> account,
  std::shared_ptr<space_account> descriptions, const std::vector<std::uint64_t>& tensor_bytes,
  std::uint64_t metadata_bytes, bool anyway) {
  auto room = account_lease::take(std::move(account), room_bytes(tensor_bytes), anyway);
  if (!room)
    return fail(room.error());
  auto metadata = account_lease::take(std::move(descriptions), metadata_bytes, anyway);
  if (!metadata)
    return fail(metadata.error());
  std::shared_ptr<tensor_blocks> taken{new tensor_blocks{std::move(*room), std::move(*metadata)}};
  for (std::uint32_t i = 0; i < tensor_bytes.size(); ++i)
    if (tensor_bytes[i] > 0)
      taken->pieces_.push_back({i, 0, nullptr, tensor_bytes[i]});
  if (auto bad = taken->place(memory, 0, taken->pieces_.size()); !bad.ok())
    return fail(std::move(bad));
  return taken;
}

status tensor_blocks::place(memory_source& memory, std::size_t first, std::size_t last) {
  if (first == last)
    return {};
  std::uint64_t size = 0;
  for (auto i = first; i < last; ++i)
    size += align_up(pieces_[i].length);
  if (auto block = memory.allocate(size, tensor_alignment)) {
    auto at = block->data;
    for (auto i = first; i < last; ++i) {
      pieces_[i].data = at;
      at += align_up(pieces_[i].length);
    }
    blocks_.push_back(std::move(*block));
    return {};
  } else if (last - first == 1 || block.error().code() != errc::no_space) {
    return block.error();
  }
  // Recursion is bounded: every step halves the number of tensors.
  auto middle = first + (last - first) / 2;
  if (auto bad = place(memory, first, middle); !bad.ok())
    return bad;
  return place(memory, middle, last);
}

} // namespace millrace::storage::memory
