// Reads and writes the socket, or the ring. Which of them is decided for each direction by the
// connection.
#include <millrace/core/assert.hpp>
#include <millrace/net/channel/ring.hpp>
#include <millrace/net/channel/unix_stream.hpp>
#include <millrace/net/socket/unix_socket.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace millrace::net {

namespace {

// Descriptors that wait for the frames to which they belong. A peer has at most those of two frames
// on their way when this side has read everything else.
constexpr std::size_t fds_waiting_max = 2 * fds_at_once_max;

class unix_stream final : public byte_stream, public ring_port {
public:
  unix_stream(handshake_side side, unique_fd fd) : side_(side), fd_(std::move(fd)) {}

  int fd() const noexcept override { return fd_.get(); }
  void close() noexcept override {
    fd_ = unique_fd{};
    early_fds_.clear();
  }
  io_outcome receive(std::span<std::byte> room, std::vector<unique_fd>& fds) override {
    return receives_ ? receive_from_ring(room) : receive_with_fds(fd_.get(), room, fds);
  }
  bool has_unread() const override { return receives_ && reader_.raised(); }
  io_outcome send(std::span<const iovec> parts, std::span<const int> fds) override {
    return sends_ ? send_to_ring(parts, fds) : send_with_fds(fd_.get(), parts, fds);
  }
  bool has_unsent() const override { return false; }
  io_outcome flush() override { return {}; }
  bool carries_fds() const noexcept override { return true; }
  ring_port* ring() noexcept override { return this; }
  status explain(int error_number) const override {
    if (error_number == EPROTO)
      return {errc::protocol_error, "it has damaged the memory of the channel"};
    return {errc::peer_lost, std::generic_category().message(error_number)};
  }
  byte_buffer binding() const override { return {}; }
  std::optional<std::array<std::byte, 32>> export_key(std::string_view) const override {
    return std::nullopt;
  }
  status vouch_for(const std::string&) const override { return {}; }

  result<unique_fd> make(std::size_t ring_bytes) override {
    auto made = ring_memory::make(ring_bytes);
    if (!made)
      return fail(made.error());
    use(std::move(made->memory));
    return std::move(made->file);
  }

  status adopt(const unique_fd& file, std::size_t ring_bytes) override {
    auto theirs = ring_memory::adopt(file, ring_bytes);
    if (!theirs)
      return theirs.error();
    use(std::move(*theirs));
    return {};
  }

  // The peer could not be told of room before: its frames and such an event would have mixed.
  void send_from_now() override {
    sends_ = true;
    wake_peer();
  }

  void receive_from_now(std::vector<unique_fd> early) override {
    receives_ = true;
    early_fds_ = std::move(early);
  }

  bool sends() const noexcept override { return sends_; }
  bool receives() const noexcept override { return receives_; }
  shared_signal& arrivals() noexcept override { return reader_; }

  void drain_socket() override {
    std::array<std::byte, 64> events;
    while (end_ == EAGAIN && early_fds_.size() < fds_waiting_max) {
      auto got = receive_with_fds(fd_.get(), events, early_fds_);
      if (got.error_number == EAGAIN)
        return;
      if (got.error_number != 0 || got.size_bytes == 0 || got.fds_lost)
        end_ = got.fds_lost ? EPROTO : got.error_number;
      else if (got.size_bytes < events.size())
        return;
    }
  }

  bool bring_fds(std::size_t count, std::vector<unique_fd>& fds) override {
    auto reads = fds.size() + early_fds_.size() < count;
    if (reads)
      drain_socket();
    auto missing = std::min(count - std::min(count, fds.size()), early_fds_.size());
    auto last = early_fds_.begin() + static_cast<std::ptrdiff_t>(missing);
    fds.insert(
      fds.end(), std::make_move_iterator(early_fds_.begin()), std::make_move_iterator(last));
    early_fds_.erase(early_fds_.begin(), last);
    return reads;
  }

private:
  void use(std::unique_ptr<ring_memory> memory) {
    MILLRACE_ASSERT(!memory_);
    memory_ = std::move(memory);
    auto other =
      side_ == handshake_side::connector ? handshake_side::acceptor : handshake_side::connector;
    auto back = memory_->written_by(side_);
    writer_ = ring_writer{back};
    reader_ = ring_reader{memory_->written_by(other), back.words};
  }

  io_outcome receive_from_ring(std::span<std::byte> room) {
    auto size = reader_.read(room);
    if (reader_.broken())
      return {0, EPROTO};
    if (sends_ && reader_.must_tell_writer())
      wake_peer();
    if (size > 0)
      return {size};
    // Everything that the peer wrote before its end has been read.
    return {0, early_fds_.size() < fds_waiting_max ? end_ : EPROTO};
  }

  io_outcome send_to_ring(std::span<const iovec> parts, std::span<const int> fds) {
    if (!writer_.has_room())
      return {0, writer_.broken() ? EPROTO : EAGAIN};
    if (!fds.empty())
      if (auto failed = send_fds(fds); failed != 0)
        return {0, failed};
    auto size = writer_.write(parts);
    if (writer_.broken())
      return {0, EPROTO};
    if (writer_.must_tell_reader())
      wake_peer();
    return {size};
  }

  // Before the frame. A full socket is like too many descriptors on their way: no event tells when
  // that is over.
  int send_fds(std::span<const int> fds) noexcept {
    std::byte event{};
    iovec part{&event, 1};
    auto sent = send_with_fds(fd_.get(), {&part, 1}, fds);
    return sent.error_number == EAGAIN ? ETOOMANYREFS : sent.error_number;
  }

  // A full socket holds events already.
  void wake_peer() noexcept {
    static_cast<void>(::send(fd_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
  }

  const handshake_side side_;
  unique_fd fd_;
  std::unique_ptr<ring_memory> memory_;
  bool sends_ = false; // changes on the loop, with the connection's send lock
  ring_writer writer_; // used with that lock

  // Used on the loop only.
  bool receives_ = false;
  ring_reader reader_;
  std::vector<unique_fd> early_fds_;
  int end_ = EAGAIN; // what to say when the ring is empty; 0: the peer has closed the socket
};

} // namespace

std::unique_ptr<byte_stream> make_unix_stream(handshake_side side, unique_fd socket) {
  return std::make_unique<unix_stream>(side, std::move(socket));
}

} // namespace millrace::net
