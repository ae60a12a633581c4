// One accepted connection that has not proved itself yet.
// Made by `network_admission`; `newcomers` bounds how many there are.
#pragma once

#include <millrace/net/channel/connection.hpp>
#include <millrace/net/tls/handshake.hpp>
#include <millrace/net/tls/network_admission.hpp>

#include <memory>
#include <string>

namespace millrace::net::tls {

/// It sends its first byte, then completes the TLS handshake, then the channel's handshake.
/// Its callbacks on the loop keep it alive; the admission does not.
class newcomer : public std::enable_shared_from_this<newcomer> {
public:
  newcomer(std::shared_ptr<network_admission> a, unique_fd fd, const socket_address& from);
  newcomer(const newcomer&) = delete;
  ~newcomer() { admission_->newcomers.remove(number_); }

  void start();

private:
  // Ends it and logs the refusal.
  void refuse(const status& why);
  void on_first_byte();
  void begin_tls();
  void begin_channel(std::unique_ptr<stream> s);
  void end(const status& why);
  void leave();

  const std::string source_;
  const std::shared_ptr<network_admission> admission_;
  newcomers::number number_ = 0;
  unique_fd fd_;
  const socket_address from_;
  const time_point began_ = steady_clock::now();
  std::uint64_t timer_ = 0;
  bool over_ = false;
  std::weak_ptr<handshake> handshake_;
  std::weak_ptr<connection> connection_;
};

} // namespace millrace::net::tls
