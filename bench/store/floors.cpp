// Copies by threads; pread and pwrite.
#include <millrace/bench/store/floors.hpp>
#include <millrace/bench/store/measure.hpp>
#include <millrace/transport/copy.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

namespace millrace::bench {

namespace {

constexpr std::uint64_t piece_bytes = 1u << 20;
constexpr std::uint64_t block_bytes = 8u << 20;
constexpr std::uint64_t sector_bytes = 4096;

// Runs `f` on this thread and `threads - 1` others.
void on_threads(unsigned threads, const std::function<void()>& f) {
  std::vector<std::jthread> others;
  for (unsigned i = 1; i < threads; ++i)
    others.emplace_back(f);
  f();
}

int open_direct(const std::string& path, int flags) {
  auto fd = open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0)
    give_up(status_from_errno(errno, "opening " + path), "the floor of the disk");
  return fd;
}

void check_io(ssize_t moved, std::uint64_t wanted, const std::string& path) {
  if (moved != static_cast<ssize_t>(wanted))
    give_up(status_from_errno(moved < 0 ? errno : EIO, path), "the floor of the disk");
}

} // namespace

double timed_copy(
  std::span<const std::byte> source, std::span<std::byte> target, unsigned threads) {
  return seconds_of([&] {
    std::atomic<std::uint64_t> next = 0;
    on_threads(threads, [&] {
      for (std::uint64_t at; (at = next.fetch_add(piece_bytes)) < source.size();)
        transport::copy_bytes(
          target.data() + at, source.data() + at, std::min(piece_bytes, source.size() - at),
          transport::store_mode::streaming);
      transport::streaming_fence();
    });
  });
}

bool takes_direct_io(const std::string& directory) {
  auto path = directory + "/probe";
  auto fd = open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  unlink(path.c_str());
  if (fd >= 0)
    close(fd);
  return fd >= 0;
}

direct_file::~direct_file() { unlink(path_.c_str()); }

double direct_file::timed_write(std::uint64_t size_bytes, bool fresh) {
  if (fresh)
    unlink(path_.c_str());
  // The last sector is written whole.
  size_bytes = (size_bytes + sector_bytes - 1) / sector_bytes * sector_bytes;
  return seconds_of([&] {
    auto fd = open_direct(path_, O_RDWR | O_CREAT);
    for (std::uint64_t at = 0; at < size_bytes; at += block_bytes) {
      auto length = std::min(block_bytes, size_bytes - at);
      check_io(pwrite(fd, memory_.data() + at, length, static_cast<off_t>(at)), length, path_);
    }
    if (fdatasync(fd) != 0)
      give_up(status_from_errno(errno, "syncing " + path_), "the floor of the disk");
    close(fd);
  });
}

double direct_file::timed_read(std::uint64_t size_bytes, unsigned threads) {
  return seconds_of([&] {
    auto fd = open_direct(path_, O_RDONLY);
    std::atomic<std::uint64_t> next = 0;
    on_threads(threads, [&] {
      for (std::uint64_t at; (at = next.fetch_add(block_bytes)) < size_bytes;) {
        auto length = std::min(block_bytes, size_bytes - at);
        auto sectors = (length + sector_bytes - 1) / sector_bytes * sector_bytes;
        check_io(pread(fd, memory_.data() + at, sectors, static_cast<off_t>(at)), sectors, path_);
      }
    });
    close(fd);
  });
}

} // namespace millrace::bench
