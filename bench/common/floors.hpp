// What the machine itself can do with the same bytes: plain copies, and plain O_DIRECT files.
// The benchmarks use them as the floor.
#pragma once

#include <millrace/bench/common/measure.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace::bench {

/// Copies from the first byte to the last. Uses wide streaming stores where the processor has them,
/// which are faster than memcpy from 1 MiB on. Does not use the runtime's own copies, since those
/// are what the benchmark measures. `target` must be aligned to 64 bytes.
void plain_copy(std::byte* target, const std::byte* source, std::size_t size_bytes);

/// Copies between warm buffers, aligned to 64 bytes, by `threads` threads in pieces of 1 MiB.
/// Copies everything `passes` times.
double timed_copy(
  std::span<const std::byte> source, std::span<std::byte> target, unsigned threads,
  std::uint32_t passes = 1, decltype(plain_copy)& copy = plain_copy);

/// Plain copies in a contest, by one thread, by two, and so on up to the number of cores. The
/// fastest is the floor.
class copy_floor {
public:
  copy_floor() = default;
  copy_floor(
    contest& to, std::span<const std::byte> source, std::span<std::byte> target,
    std::uint32_t passes = 1);
  double median() const;

private:
  std::vector<const samples*> by_threads_;
};

/// Returns true if files in `directory` take O_DIRECT. Files in memory do not.
bool takes_direct_io(const std::string& directory);

/// A file that is written and read past the page cache in blocks of 8 MiB, one after the other.
class direct_file {
public:
  /// `memory` must be page-aligned, and at least as large as what is written or read.
  direct_file(std::string path, std::span<std::byte> memory)
    : path_(std::move(path)), memory_(memory) {}
  ~direct_file();

  /// Writes the file and makes it durable. `fresh` writes a new file, else it writes over the
  /// existing bytes.
  double timed_write(std::uint64_t size_bytes, bool fresh);
  double timed_read(std::uint64_t size_bytes, unsigned threads = 1);

private:
  std::string path_;
  std::span<std::byte> memory_;
};

/// A file mapped whole, written by streaming stores and made durable by `msync`.
class mapped_file {
public:
  mapped_file(const std::string& path, std::uint64_t size_bytes);
  ~mapped_file();
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;

  double timed_write(std::span<const std::byte> source, unsigned threads);

private:
  std::string path_;
  std::span<std::byte> mapping_;
};

} // namespace millrace::bench
