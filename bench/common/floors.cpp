// Copies by threads, and calls pread and pwrite.
#include <millrace/bench/common/floors.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/transport/copy/copy.hpp>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

namespace millrace::bench {

namespace {

constexpr std::uint64_t piece_bytes = 1u << 20;
constexpr std::uint64_t block_bytes = 8u << 20;
constexpr std::uint64_t sector_bytes = 4096;

#if defined(__x86_64__)
__attribute__((target("avx2"))) void stream(
  std::byte* target, const std::byte* source, std::size_t size_bytes) {
  std::size_t at = 0;
  for (; at + 64 <= size_bytes; at += 64) {
    auto low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
    auto high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + 32), high);
  }
  std::memcpy(target + at, source + at, size_bytes - at);
}
#endif

// Runs `f` on this thread and on `threads - 1` others.
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

void plain_copy(std::byte* target, const std::byte* source, std::size_t size_bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2"))
    return stream(target, source, size_bytes);
#endif
  std::memcpy(target, source, size_bytes);
}

double timed_copy(
  std::span<const std::byte> source, std::span<std::byte> target, unsigned threads,
  std::uint32_t passes, decltype(plain_copy)& copy) {
  auto pieces = (source.size() + piece_bytes - 1) / piece_bytes;
  return seconds_of([&] {
    std::atomic<std::uint64_t> next = 0;
    on_threads(threads, [&] {
      for (std::uint64_t i; (i = next++) < pieces * passes;) {
        auto at = i % pieces * piece_bytes;
        copy(target.data() + at, source.data() + at, std::min(piece_bytes, source.size() - at));
      }
      transport::streaming_fence();
    });
  });
}

copy_floor::copy_floor(
  contest& to, std::span<const std::byte> source, std::span<std::byte> target,
  std::uint32_t passes) {
  auto most = std::max(std::thread::hardware_concurrency(), 1u);
  for (unsigned threads = 1; threads <= most; threads *= 2)
    by_threads_.push_back(&to.add([=] { return timed_copy(source, target, threads, passes); }));
}

double copy_floor::median() const {
  double best = by_threads_.front()->median();
  for (auto* times : by_threads_)
    best = std::min(best, times->median());
  return best;
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

mapped_file::mapped_file(const std::string& path, std::uint64_t size_bytes) : path_(path) {
  auto fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || posix_fallocate(fd, 0, static_cast<off_t>(size_bytes)) != 0)
    give_up(status_from_errno(errno, "making " + path), "the floor of the disk");
  auto* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (data == MAP_FAILED)
    give_up(status_from_errno(errno, "mapping " + path), "the floor of the disk");
  mapping_ = {static_cast<std::byte*>(data), size_bytes};
}

mapped_file::~mapped_file() {
  munmap(mapping_.data(), mapping_.size());
  unlink(path_.c_str());
}

double mapped_file::timed_write(std::span<const std::byte> source, unsigned threads) {
  auto copied = timed_copy(source, mapping_.first(source.size()), threads);
  return copied + seconds_of([&] {
           if (msync(mapping_.data(), source.size(), MS_SYNC) != 0)
             give_up(status_from_errno(errno, "syncing " + path_), "the floor of the disk");
         });
}

} // namespace millrace::bench
