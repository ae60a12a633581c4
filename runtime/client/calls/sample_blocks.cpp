// Cuts at the same samples for all clients, so nothing here depends on their options.
#include <millrace/core/digest.hpp>
#include <millrace/core/simulated_machine.hpp>
#include <millrace/runtime/client/calls/sample_blocks.hpp>

#include <algorithm>

namespace millrace::runtime {

namespace {

using storage::samples::sample_reader;

constexpr std::uint64_t block_bytes_min = 4u << 20;
constexpr std::uint64_t block_bytes_simulated = 4u << 10; // sets of simulations are small
constexpr std::uint64_t block_bytes_max = 64u << 20;      // for samples that are read together

// The bytes of samples that are best read at once, if they are not too many.
std::uint64_t bytes_together(const sample_field& field, std::uint64_t together) {
  return field.varies || together > block_bytes_max / field.bytes
    ? 0
    : round_up(together * field.bytes, 4096);
}

} // namespace

std::uint64_t block_bytes_for(const sample_reader& reader, const set_info& set) {
  auto out = simulated() ? block_bytes_simulated : block_bytes_min;
  for (std::size_t f = 0; f < set.fields.size(); ++f)
    out = std::max(out, bytes_together(set.fields[f], reader.fields()[f].together));
  return out;
}

part_blocks::part_blocks(
  const reserved_part& part, const sample_reader& reader, std::uint64_t block_bytes)
  : part_(&part), block_bytes_(block_bytes) {
  auto fields = set().fields.size();
  tables_.reserve(fields);
  ends_.reserve(fields);
  for (std::size_t f = 0; f < fields; ++f) {
    auto& field = set().fields[f];
    tables_.emplace_back(set().samples * (entry_bytes(field) / sizeof(std::uint64_t)));
    field.varies ? cut_varying(reader, f) : cut_equal(reader, f);
    ends_.push_back(blocks_.size());
  }
}

void part_blocks::cut_equal(const sample_reader& reader, std::size_t f) {
  auto& field = set().fields[f];
  auto together = reader.fields()[f].together;
  auto most = std::max<std::uint64_t>(block_bytes_ / field.bytes, 1);
  if (most > together)
    most = round_down(most, together);
  for (std::uint64_t first = 0, count = 0; first < set().samples; first += count) {
    // Where a part begins between two multiples, the first piece ends at the next one.
    auto past = most >= together ? (part_->first + first) % together : 0;
    count = std::min(most - past, set().samples - first);
    auto bytes = count * field.bytes;
    blocks_.push_back({f, first, count, field.base + first * field.bytes, bytes, bytes});
  }
}

// The addresses of samples that vary are made here, and kept in the table.
void part_blocks::cut_varying(const sample_reader& reader, std::size_t f) {
  auto address = set().fields[f].base;
  auto lengths = reader.lengths(f).subspan(part_->first, set().samples);
  sample_block next{f, 0, 0, address, 0, 0};
  for (std::uint64_t i = 0; i < lengths.size(); ++i) {
    auto bytes = round_up(lengths[i], sample_alignment);
    if (next.count > 0 && next.bytes + bytes > block_bytes_) {
      blocks_.push_back(next);
      next = {f, i, 0, address, 0, 0};
    }
    tables_[f][3 * i] = address;
    tables_[f][3 * i + 1] = lengths[i];
    ++next.count;
    next.bytes += bytes;
    next.data_bytes += lengths[i];
    address += bytes;
  }
  if (next.count > 0)
    blocks_.push_back(next);
}

std::uint64_t part_blocks::cut() const {
  running_digest all;
  for (auto& one : blocks_)
    for (std::uint64_t value : {std::uint64_t{one.field}, one.first, one.count, one.address})
      all.add(&value, sizeof(value));
  return all.value();
}

std::span<const std::byte> part_blocks::entries(
  std::size_t f, std::uint64_t first, std::uint64_t count) const {
  auto words = entry_bytes(set().fields[f]) / sizeof(std::uint64_t);
  return std::as_bytes(std::span{tables_[f]}.subspan(first * words, count * words));
}

} // namespace millrace::runtime
