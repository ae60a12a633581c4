// What the machine itself can do with the same bytes: plain copies, plain O_DIRECT files.
#pragma once

#include <millrace/bench/common/measure.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace::bench {

/// From the first byte to the last, with streaming stores where the processor has wide ones: faster than memcpy from
/// 1 MiB on. Not by the runtime's own copies, which shall be measured. `target`: aligned to 64 bytes.
void plain_copy(std::byte* target, const std::byte* source, std::size_t size_bytes);

/// Copies between warm buffers, aligned to 64 bytes, by `threads` threads in pieces of 1 MiB; all of it `passes` times.
double timed_copy(
  std::span<const std::byte> source, std::span<std::byte> target, unsigned threads,
  std::uint32_t passes = 1, decltype(plain_copy)& copy = plain_copy);

/// Plain copies in a contest, by one thread, two and so on up to the number of cores: the fastest is the floor.
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

/// True if files in `directory` take O_DIRECT, which files in memory do not.
bool takes_direct_io(const std::string& directory);

/// A file written and read past the page cache in blocks of 8 MiB, one after the other.
class direct_file {
public:
  /// `memory`: page-aligned, at least as large as what is written or read.
  direct_file(std::string path, std::span<std::byte> memory)
    : path_(std::move(path)), memory_(memory) {}
  ~direct_file();

  /// Writes and makes durable. `fresh`: to a new file, else over what is there already.
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
