// The blocks into which the samples of a set, or of a part of one, are cut, and the entries of
// their tables. Used by `sample_moving`.
// Internal; needs CAF.
#pragma once

#include <millrace/actors/loader/data_messages.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/storage/samples/sample_reader.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Memory that was reserved for a set, or a part of one, and which samples of the files it gets.
struct reserved_part {
  actors::set_reservation reserved;
  std::uint64_t first = 0; // sample of the files
  std::string node = {};   // whose data server has it
};

/// Samples of one field, whose bytes follow each other. They fit in the memory for a block, or it
/// is one sample.
struct sample_block {
  std::size_t field = 0;
  std::uint64_t first = 0, count = 0; // in the part
  std::uint64_t address = 0;
  std::uint64_t bytes = 0; // with the gaps between samples that vary
  std::uint64_t data_bytes = 0;
};

/// Returns the memory for a block: 4 MiB, or up to 64 MiB for samples that are best read together.
std::uint64_t block_bytes_for(const storage::samples::sample_reader& reader, const set_info& set);

/// One part, cut. Every client that has the files cuts it into the same blocks, in the order of
/// fields and samples.
/// Threads: any, for different samples.
class part_blocks {
public:
  part_blocks(
    const reserved_part& part, const storage::samples::sample_reader& reader,
    std::uint64_t block_bytes);

  const reserved_part& of() const noexcept { return *part_; }
  const set_info& set() const noexcept { return part_->reserved.set; }
  const std::vector<sample_block>& blocks() const noexcept { return blocks_; }
  /// Returns the number of the block behind the last one of a field.
  std::uint64_t end_of(std::size_t field) const { return ends_[field]; }
  /// Returns a digest of all blocks.
  std::uint64_t cut() const;

  std::uint64_t length_of(std::size_t f, std::uint64_t sample) const {
    auto& field = set().fields[f];
    return field.varies ? tables_[f][3 * sample + 1] : field.bytes;
  }
  std::uint64_t& digest_of(std::size_t f, std::uint64_t sample) {
    return tables_[f][set().fields[f].varies ? 3 * sample + 2 : sample];
  }
  /// From a sample to the next one.
  std::uint64_t step(std::size_t f, std::uint64_t length) const {
    return set().fields[f].varies ? round_up(length, sample_alignment) : length;
  }
  /// Returns the entries of some samples, as the table has them, whose digests were set.
  std::span<const std::byte> entries(std::size_t f, std::uint64_t first, std::uint64_t count) const;

private:
  void cut_equal(const storage::samples::sample_reader& reader, std::size_t f);
  void cut_varying(const storage::samples::sample_reader& reader, std::size_t f);

  const reserved_part* part_;
  const std::uint64_t block_bytes_;
  std::vector<sample_block> blocks_;
  std::vector<std::uint64_t> ends_; // by field
  /// By field: for each sample a digest, or address, length and digest.
  std::vector<std::vector<std::uint64_t>> tables_;
};

} // namespace millrace::runtime
