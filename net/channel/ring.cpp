// The words of a ring, and the memory that holds two of them.
// Used by `unix_stream`.
#include <millrace/core/assert.hpp>
#include <millrace/net/channel/ring.hpp>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>

namespace millrace::net {

namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::uint64_t stat_block_bytes = 512;
constexpr std::size_t words_bytes = 2 * sizeof(ring_words);
static_assert(words_bytes <= page_bytes);

constexpr std::size_t file_bytes(std::size_t ring_bytes) noexcept {
  return page_bytes + 2 * ring_bytes;
}

// Each side first writes its own word and then reads the other one's: one of them sees the other.
void order_words() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }

// Where both sides are in one process, as in tests, each has a mapping of its own, and the thread
// sanitizer does not see that their words are the same. So it is told.
#if defined(__SANITIZE_THREAD__)
char* meeting(const ring_place& at) noexcept {
  static std::array<char, 4096> meetings;
  return &meetings[at.file % meetings.size()];
}
void tell_written(const ring_place& at) noexcept { __tsan_release(meeting(at)); }
void tell_read(const ring_place& at) noexcept { __tsan_acquire(meeting(at)); }
#else
void tell_written(const ring_place&) noexcept {}
void tell_read(const ring_place&) noexcept {}
#endif

bool take_flag(std::atomic<std::uint32_t>& flag) noexcept {
  return flag.load(std::memory_order_relaxed) != 0 && flag.exchange(0) != 0;
}

} // namespace

std::size_t ring_writer::room() noexcept {
  auto used = written_ - known_read_;
  if (used > at_.bytes.size()) {
    broken_ = true;
    return 0;
  }
  return at_.bytes.size() - used;
}

bool ring_writer::has_room() noexcept {
  if (broken_ || room() > 0)
    return !broken_;
  known_read_ = at_.words->read.load(std::memory_order_acquire);
  if (broken_ || room() > 0)
    return !broken_;
  at_.words->writer_waits.store(1);
  order_words();
  known_read_ = at_.words->read.load(std::memory_order_acquire);
  if (room() == 0)
    return false;
  at_.words->writer_waits.store(0);
  return true;
}

std::size_t ring_writer::write(std::span<const iovec> parts) noexcept {
  std::size_t wanted = 0, taken = 0;
  for (auto& part : parts)
    wanted += part.iov_len;
  if (room() < wanted)
    known_read_ = at_.words->read.load(std::memory_order_acquire);
  for (auto& part : parts) {
    std::span from{static_cast<const std::byte*>(part.iov_base), part.iov_len};
    while (!from.empty() && has_room()) {
      auto to = at_.bytes.subspan(written_ & (at_.bytes.size() - 1));
      auto run = std::min({from.size(), to.size(), room()});
      std::memcpy(to.data(), from.data(), run);
      from = from.subspan(run);
      written_ += run;
      taken += run;
    }
    if (!from.empty())
      break;
  }
  if (broken_)
    return 0;
  tell_written(at_);
  at_.words->written.store(written_, std::memory_order_release);
  return taken;
}

bool ring_writer::must_tell_reader() noexcept {
  order_words();
  return take_flag(at_.words->reader_sleeps);
}

bool ring_reader::raised() const noexcept {
  return at_.words && at_.words->written.load(std::memory_order_acquire) != read_;
}

bool ring_reader::ask_for_event() noexcept {
  at_.words->reader_sleeps.store(1);
  order_words();
  if (!raised())
    return true;
  at_.words->reader_sleeps.store(0);
  return false;
}

// The word lies beside those that the writer looks at: it is written only when it changes.
bool ring_reader::shares_core(std::uint32_t core) noexcept {
  if (core != told_core_)
    at_.words->reader_core.store(told_core_ = core, std::memory_order_relaxed);
  return back_ && back_->reader_core.load(std::memory_order_relaxed) == core;
}

std::size_t ring_reader::read(std::span<std::byte> room) noexcept {
  auto arrived = at_.words->written.load(std::memory_order_acquire) - read_;
  if (arrived > at_.bytes.size()) {
    broken_ = true;
    return 0;
  }
  tell_read(at_);
  auto taken = std::min<std::size_t>(arrived, room.size());
  for (auto left = taken; left > 0;) {
    auto from = at_.bytes.subspan(read_ & (at_.bytes.size() - 1));
    auto run = std::min(left, from.size());
    std::memcpy(room.data() + (taken - left), from.data(), run);
    left -= run;
    read_ += run;
  }
  at_.words->read.store(read_, std::memory_order_release);
  return taken;
}

// An event for a few bytes of room would cost more than they carry.
bool ring_reader::must_tell_writer() noexcept {
  order_words();
  auto unread = at_.words->written.load(std::memory_order_relaxed) - read_;
  return unread <= at_.bytes.size() / 2 && take_flag(at_.words->writer_waits);
}

result<std::unique_ptr<ring_memory>> ring_memory::map(
  const unique_fd& file, std::size_t ring_bytes) {
  auto size = file_bytes(ring_bytes);
  auto* data =
    ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (data == MAP_FAILED)
    return fail(status_from_errno(errno, "mapping the ring of a channel"));
  struct stat about {};
  static_cast<void>(::fstat(file.get(), &about));
  return std::unique_ptr<ring_memory>{
    new ring_memory{static_cast<std::byte*>(data), ring_bytes, about.st_ino}};
}

result<ring_memory::offer> ring_memory::make(std::size_t ring_bytes) {
  ring_bytes = std::bit_ceil(std::clamp<std::size_t>(ring_bytes, page_bytes, ring_bytes_max));
  unique_fd file{::memfd_create("millrace-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(file_bytes(ring_bytes))) != 0)
    return fail(status_from_errno(errno, "making the ring of a channel"));
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return fail(status_from_errno(errno, "sealing the ring of a channel"));
  auto made = map(file, ring_bytes);
  if (!made)
    return fail(made.error());
  // Until a reader polls, it sleeps.
  for (auto side : {handshake_side::connector, handshake_side::acceptor})
    (new ((*made)->written_by(side).words) ring_words{})->reader_sleeps = 1;
  return offer{std::move(*made), std::move(file)};
}

// As for arenas: a file that can be cut, or one of the system's pool of huge pages, could make this
// process fault; pages that are not there would be charged to it (docs/decisions/004-trust.md).
result<std::unique_ptr<ring_memory>> ring_memory::adopt(
  const unique_fd& file, std::size_t ring_bytes) {
  auto seals = ::fcntl(file.get(), F_GET_SEALS);
  struct stat about {};
  struct statfs system {};
  auto known = ::fstat(file.get(), &about) == 0 && ::fstatfs(file.get(), &system) == 0;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || !known || system.f_type != TMPFS_MAGIC)
    return fail(errc::protocol_error, "the ring of a channel in a file of another kind");
  auto size = static_cast<std::uint64_t>(about.st_size);
  auto theirs = size > page_bytes ? (size - page_bytes) / 2 : 0;
  if (!std::has_single_bit(theirs) || theirs < page_bytes || size != file_bytes(theirs))
    return fail(errc::protocol_error, "the ring of a channel in a file of {} bytes", size);
  if (static_cast<std::uint64_t>(about.st_blocks) * stat_block_bytes < size)
    return fail(errc::protocol_error, "the ring of a channel in a file with holes");
  if (theirs > std::bit_ceil(ring_bytes))
    return fail(
      errc::no_space, "a ring of {} bytes where at most {} are allowed", theirs, ring_bytes);
  return map(file, theirs);
}

ring_memory::~ring_memory() { ::munmap(data_, file_bytes(ring_bytes_)); }

ring_place ring_memory::written_by(handshake_side side) const noexcept {
  auto number = static_cast<std::size_t>(side);
  auto* words = reinterpret_cast<ring_words*>(data_) + number;
  auto* bytes = data_ + page_bytes + number * ring_bytes_;
  return {std::launder(words), {bytes, ring_bytes_}, 2 * file_ + number};
}

} // namespace millrace::net
