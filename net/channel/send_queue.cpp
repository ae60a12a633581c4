// Writes frames directly, and in batches from the queue.
// Used by channels, under their send lock.
#include <millrace/net/channel/send_queue.hpp>

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace millrace::net {

namespace {

constexpr std::size_t batch_max = 64;

iovec part_of(std::span<const std::byte> bytes) noexcept {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

} // namespace

status send_queue::push(
  const frame_header& header, std::span<const std::byte> body, std::span<const int> fds,
  bool beyond_bound) {
  if (!fds.empty() && !stream_.carries_fds())
    return status{errc::unsupported, "descriptors do not travel between hosts"};
  auto whole = frame_header_bytes + body.size();
  if (!beyond_bound && !empty() && bytes_ + whole > bytes_max_)
    return status{errc::busy, "the send queue holds {} of at most {} bytes", bytes_, bytes_max_};
  outgoing frame;
  if (!beyond_bound && (!empty() || whole > uncounted_bytes_max)) {
    auto place = share_.lend(whole);
    if (!place)
      return place.error();
    frame.place = std::move(*place);
  }
  auto head = encode_header(header);
  if (empty()) {
    std::array<iovec, 2> parts{part_of(head), part_of(body)};
    auto sent = stream_.send(parts, fds);
    auto too_many = sent.error_number == ETOOMANYREFS;
    if (too_many && !beyond_bound)
      return status{errc::busy, "too many descriptors are on their way to other processes"};
    if (sent.error_number == EBADF && !fds.empty())
      return status{errc::invalid_argument, "a descriptor to send is not open"};
    if (sent.error_number != 0 && sent.error_number != EAGAIN && !too_many)
      return break_off(sent.error_number);
    if (sent.size_bytes == whole)
      return {};
    frame.written = sent.size_bytes;
  }
  frame.bytes.reserve(whole);
  frame.bytes.insert(frame.bytes.end(), head.begin(), head.end());
  frame.bytes.insert(frame.bytes.end(), body.begin(), body.end());
  auto begun = frame.written > 0; // the descriptors have left with the first byte
  return keep(std::move(frame), begun ? std::span<const int>{} : fds);
}

status send_queue::break_off(int error_number) {
  broken_ = true;
  return stream_.explain(error_number).within("writing");
}

status send_queue::keep(outgoing frame, std::span<const int> fds) {
  auto copies = duplicate(fds);
  if (!copies)
    return copies.error();
  frame.fds = std::move(*copies);
  bytes_ += frame.bytes.size() - frame.written;
  frames_.push_back(std::move(frame));
  return {};
}

status send_queue::flush() {
  needs_retry_ = false;
  while (!frames_.empty()) {
    std::array<iovec, batch_max> parts;
    auto count = gather(parts);
    std::vector<int> fds;
    for (auto& fd : frames_.front().fds)
      fds.push_back(fd.get());
    auto sent = stream_.send({parts.data(), count}, fds);
    // The kernel bounds descriptors in flight; the number falls when other processes receive
    // theirs.
    needs_retry_ = sent.error_number == ETOOMANYREFS;
    if (sent.error_number == EAGAIN || needs_retry_)
      return {};
    if (sent.error_number != 0)
      return break_off(sent.error_number);
    advance(sent.size_bytes);
  }
  auto rest = stream_.flush();
  return rest.error_number == 0 || rest.error_number == EAGAIN ? status{}
                                                               : break_off(rest.error_number);
}

// Descriptors travel with the first byte of a write, so a frame that has some starts a batch.
std::size_t send_queue::gather(std::span<iovec> parts) const {
  std::size_t count = 0;
  for (auto& frame : frames_) {
    if (count == parts.size() || (count > 0 && !frame.fds.empty()))
      break;
    parts[count++] = part_of(std::span{frame.bytes}.subspan(frame.written));
  }
  return count;
}

void send_queue::advance(std::size_t size_bytes) {
  bytes_ -= size_bytes;
  if (size_bytes > 0)
    frames_.front().fds.clear();
  while (!frames_.empty()) {
    auto& first = frames_.front();
    auto taken = std::min(size_bytes, first.bytes.size() - first.written);
    first.written += taken;
    size_bytes -= taken;
    if (first.written < first.bytes.size())
      return;
    frames_.pop_front();
  }
}

void send_queue::clear() noexcept {
  frames_.clear();
  bytes_ = 0;
}

result<std::vector<unique_fd>> duplicate(std::span<const int> fds) {
  std::vector<unique_fd> copies;
  copies.reserve(fds.size());
  for (auto fd : fds) {
    copies.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copies.back())
      return fail(status_from_errno(errno, "duplicating a descriptor to send"));
  }
  return copies;
}

} // namespace millrace::net
