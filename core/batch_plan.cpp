// The arithmetic of batches.
#include <millrace/core/assert.hpp>
#include <millrace/core/batch_plan.hpp>

#include <algorithm>

namespace millrace {

result<remainder_kind> parse_remainder(std::string_view text) {
  for (auto kind : {remainder_kind::shorter, remainder_kind::pad, remainder_kind::drop})
    if (text == to_string(kind))
      return kind;
  return fail(errc::invalid_argument, "remainder: '{}' is none of short, pad and drop", text);
}

std::string_view to_string(remainder_kind kind) noexcept {
  constexpr std::string_view names[] = {"short", "pad", "drop"};
  return names[static_cast<std::size_t>(kind)];
}

std::uint64_t batch_plan::whole() const noexcept {
  std::uint64_t out = 0;
  return __builtin_mul_overflow(batch_size, world_size, &out) ? UINT64_MAX : out;
}

std::uint64_t batch_plan::batches_from(std::uint64_t position) const noexcept {
  auto left = samples - std::min(position, samples);
  auto rest = left % whole();
  return left / whole() + (rest > 0 && remainder != remainder_kind::drop ? 1 : 0);
}

std::uint64_t batch_plan::after(std::uint64_t position) const noexcept {
  return position + std::min(whole(), samples - std::min(position, samples));
}

batch_slice batch_plan::slice(std::uint64_t position, std::uint64_t rank) const noexcept {
  MILLRACE_ASSERT(batches_from(position) > 0 && rank < world_size);
  auto left = samples - position;
  if (left >= whole())
    return {position + rank * batch_size, batch_size};
  if (remainder == remainder_kind::shorter) {
    auto each = left / world_size, more = left % world_size;
    return {position + rank * each + std::min(rank, more), each + (rank < more ? 1 : 0)};
  }
  auto begin = rank > left / batch_size ? left : rank * batch_size;
  auto count = std::min(batch_size, left - begin);
  return {position + begin, count, batch_size - count};
}

} // namespace millrace
