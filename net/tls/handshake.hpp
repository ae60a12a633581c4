// A TLS handshake on the loop, from the first byte until the stream is ready.
// Used by the connecting side and by listeners, which watch the timeout themselves.
#pragma once

#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/tls/stream.hpp>

#include <memory>

namespace millrace::net::tls {

/// Threads: the loop. `done` runs once, also when the loop stops.
class handshake : public std::enable_shared_from_this<handshake> {
public:
  using completed = completion<std::unique_ptr<stream>>;

  handshake(std::shared_ptr<io_loop> loop, std::unique_ptr<stream> s, completed done);
  handshake(const handshake&) = delete;
  ~handshake();

  void start();
  void abort(const status& why);

private:
  void step();
  void end(result<std::unique_ptr<stream>> outcome);

  const std::shared_ptr<io_loop> loop_;
  std::unique_ptr<stream> stream_;
  completed done_;
  std::uint32_t events_ = 0; // that it waits for
};

} // namespace millrace::net::tls
