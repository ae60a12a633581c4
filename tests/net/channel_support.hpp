// Fakes and helpers of the channel tests: a recording handler, a service, a raw client.
// Used by the tests of this folder.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/net/channel/frame_parser.hpp>
#include <millrace/net/channel/handshake.hpp>
#include <millrace/net/socket/unix_socket.hpp>
#include <millrace/net/tls/cluster_secret.hpp>
#include <millrace/net/tls/context.hpp>
#include <millrace/tests/support/descriptors.hpp>
#include <millrace/tests/support/skipped.hpp>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <mutex>
#include <optional>

namespace millrace::net::testing {

using millrace::testing::open_descriptors;

inline constexpr std::chrono::seconds generous{30};

// Some tests fork while loops run; the child uses only what it makes itself.
#if defined(__SANITIZE_THREAD__)
extern "C" inline const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

struct temp_dir {
  temp_dir() {
    char name[] = "/tmp/millrace_test_XXXXXX";
    BOOST_REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~temp_dir() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

/// Tests of channels run once over Unix sockets and once, compiled with this, over TLS.
#if defined(MILLRACE_TEST_OVER_TLS)
inline constexpr bool over_tls = true;
#else
inline constexpr bool over_tls = false;
#endif

/// A context with a new secret.
inline std::shared_ptr<const tls::context> make_tls() {
  temp_dir dir;
  tls::context_options o;
  o.secret = dir.path + "/secret";
  BOOST_REQUIRE(tls::create_cluster_secret(o.secret).ok());
  auto made = tls::context::open(o);
  BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().to_string()));
  return *made;
}

/// The context that services and clients of a test share unless they say otherwise.
inline std::shared_ptr<const tls::context> shared_tls() {
  static auto one = make_tls();
  return one;
}

struct kept_frame {
  frame_kind kind{};
  std::uint64_t correlation = 0;
  byte_buffer body;
  std::vector<unique_fd> fds;
};

/// Keeps what happens on one or several channels; `react` runs on the loop before a frame is kept.
class recorder : public channel_handler {
public:
  std::function<void(channel&, const frame&)> react;

  void on_open(const std::shared_ptr<channel>& c) override {
    std::lock_guard guard{mutex_};
    channels.push_back(c);
    changed_.notify_all();
  }
  void on_frame(channel& c, frame f) override {
    if (react)
      react(c, f);
    std::lock_guard guard{mutex_};
    frames.push_back({f.kind, f.correlation, {f.body.begin(), f.body.end()}, std::move(f.fds)});
    changed_.notify_all();
  }
  void on_close(channel&, const status& why) override {
    std::lock_guard guard{mutex_};
    closings.push_back(why);
    changed_.notify_all();
  }

  template <class P>
  bool wait(P condition) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, generous, condition);
  }
  template <class P>
  bool look(P condition) {
    std::lock_guard guard{mutex_};
    return condition();
  }
  bool wait_frames(std::size_t n) {
    return wait([&] { return frames.size() >= n; });
  }
  bool wait_closings(std::size_t n) {
    return wait([&] { return closings.size() >= n; });
  }
  std::size_t frame_count() {
    std::lock_guard guard{mutex_};
    return frames.size();
  }

  std::vector<std::shared_ptr<channel>> channels;
  std::vector<kept_frame> frames;
  std::vector<status> closings;

private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

inline std::shared_ptr<io_loop> make_loop(std::uint32_t poll_us = 20) {
  auto loop = io_loop::start({.poll_us = poll_us});
  BOOST_REQUIRE(loop);
  return *loop;
}

inline result<std::shared_ptr<channel>> connect_to(
  const std::shared_ptr<io_loop>& loop, const std::string& address, channel_options options,
  std::shared_ptr<channel_handler> handler) {
  promise<std::shared_ptr<channel>> p{loop};
  if (!options.tls)
    options.tls = shared_tls();
  connect(loop, address, options, std::move(handler), [p](auto outcome) { p.set(outcome); });
  return p.get_future().result();
}

/// For a listener that nobody is to reach.
inline result<std::shared_ptr<channel_handler>> refuse_all(const peer_info&) {
  return fail(errc::unavailable, "this service wants nobody");
}

/// A listening service whose handler is one recorder for all connections.
struct service {
  explicit service(channel_options o = {}, listener_options w = {})
    : options(std::move(o)), where(std::move(w)) {
    if (options.local_name.empty())
      options.local_name = "n0";
    if (!options.tls)
      options.tls = shared_tls();
    if (where.address.empty())
      where.address = over_tls ? "tls://127.0.0.1:0" : "unix:" + dir.path + "/n0.sock";
    auto made = listener::open(
      loop, where, options, [this](const peer_info&) -> result<std::shared_ptr<channel_handler>> {
        if (is_starting)
          return fail(starting(options.local_name));
        return handler;
      });
    BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().to_string()));
    listening = *made;
    where.address = listening->address();
  }
  ~service() {
    listening = nullptr;
    loop->stop();
  }

  std::shared_ptr<channel> connect(std::shared_ptr<channel_handler> h, channel_options o = {}) {
    auto c = connect_to(client_loop(), where.address, std::move(o), std::move(h));
    BOOST_REQUIRE_MESSAGE(c, (c ? "" : c.error().to_string()));
    return *c;
  }
  std::shared_ptr<io_loop> client_loop() { return loop; }
  const std::string& address() const { return where.address; }

  temp_dir dir;
  std::shared_ptr<io_loop> loop = make_loop();
  std::shared_ptr<recorder> handler = std::make_shared<recorder>();
  std::atomic<bool> is_starting = false; // newcomers are refused
  channel_options options;
  listener_options where;
  std::shared_ptr<listener> listening;
};

/// The end of a connection that speaks byte by byte, as an attacker may.
class raw_end {
public:
  virtual ~raw_end() = default;

  /// False once the other side has closed.
  bool write(std::span<const std::byte> bytes) { return put(bytes); }
  bool write(frame_kind kind, std::span<const std::byte> body, std::uint64_t correlation = 0) {
    auto head = encode_header({kind, 0, static_cast<std::uint32_t>(body.size()), correlation});
    return write(head) && write(body);
  }

  /// The next frame, or nothing at the end of the connection.
  std::optional<kept_frame> read() {
    while (true) {
      auto next = parser_.next();
      BOOST_REQUIRE(next);
      if (*next)
        return kept_frame{
          (*next)->header.kind,
          (*next)->header.correlation,
          {(*next)->body.begin(), (*next)->body.end()},
          {}};
      auto n = get(parser_.room());
      if (n == 0)
        return std::nullopt;
      parser_.commit(n);
    }
  }

  /// The reason in the goodbye with which the service ends the connection; `ok` if it gave none.
  status read_to_end() {
    status reason;
    while (auto f = read())
      if (f->kind == frame_kind::goodbye)
        reason = decode_goodbye(f->body);
    return reason;
  }

private:
  virtual bool put(std::span<const std::byte> bytes) = 0;
  /// Waits for bytes; returns how many came, 0 at the end of the connection.
  virtual std::size_t get(std::span<std::byte> room) = 0;

  frame_parser parser_{64u << 20, 64};
};

/// A client at a Unix socket.
class raw_client : public raw_end {
public:
  explicit raw_client(const std::string& address) {
    auto where = parse_unix_address(address);
    fd_ = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    BOOST_REQUIRE(
      ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&*where), sizeof(*where)) == 0);
  }

  static hello own_hello() {
    hello h;
    h.id = this_peer();
    h.name = "raw";
    h.requests_max = 4;
    h.frame_bytes_max = 1 << 20;
    h.fds_per_frame_max = 4;
    random_bytes(h.nonce.data(), h.nonce.size());
    return h;
  }

  /// A correct handshake; true when the service agreed.
  bool shake_hands(const hello& h = own_hello()) {
    auto ours = encode(h);
    write(frame_kind::hello, ours);
    auto theirs = read();
    if (!theirs || theirs->kind != frame_kind::hello)
      return false;
    write(frame_kind::proof, prove(handshake_side::connector, {}, ours, theirs->body));
    auto proof = read();
    return proof && proof->kind == frame_kind::proof;
  }

  int fd() const { return fd_.get(); }
  byte_buffer sent;

private:
  bool put(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      auto n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0)
        return false;
      sent.insert(sent.end(), bytes.begin(), bytes.begin() + n);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }
  std::size_t get(std::span<std::byte> room) override {
    pollfd ready{fd_.get(), POLLIN, 0};
    BOOST_REQUIRE(::poll(&ready, 1, 30000) == 1);
    auto n = ::recv(fd_.get(), room.data(), room.size(), 0);
    return n > 0 ? static_cast<std::size_t>(n) : 0;
  }

  unique_fd fd_;
};

/// A forked process that waits for `begin`, runs `body` and exits with what it returns; killed at
/// the end of the scope. Made before whatever has threads: it would get the locks that they hold,
/// those of a sanitizer's allocator among them, and stand still.
class child_process {
public:
  using work = std::function<int(const std::string& address, int ready)>;

  explicit child_process(const work& body) {
    static_cast<void>(shared_tls()); // it has the same
    int told[2], ends[2];
    BOOST_REQUIRE(::pipe2(told, O_CLOEXEC) == 0 && ::pipe2(ends, O_CLOEXEC) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(told[1]);
      std::string address(256, 0);
      auto length = ::read(told[0], address.data(), address.size());
      if (length <= 0)
        ::_exit(99);
      address.resize(static_cast<std::size_t>(length));
      ::_exit(body(address, ends[1]));
    }
    told_ = unique_fd{told[1]};
    ready_ = unique_fd{ends[0]};
    ::close(told[0]);
    ::close(ends[1]);
  }
  ~child_process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }

  /// Lets the body run; `address` is not empty.
  void begin(const std::string& address) {
    auto size = static_cast<ssize_t>(address.size());
    BOOST_REQUIRE(::write(told_.get(), address.data(), address.size()) == size);
  }
  /// Waits for a byte that the child writes to `ready`; nothing when it ended instead, or is silent
  /// for a minute.
  std::optional<unsigned char> hear() {
    unsigned char byte = 0;
    pollfd ready{ready_.get(), POLLIN, 0};
    if (::poll(&ready, 1, 60'000) != 1 || ::read(ready_.get(), &byte, 1) != 1)
      return std::nullopt;
    return byte;
  }
  bool wait_ready() { return hear().has_value(); }
  void signal(int number) { ::kill(pid_, number); }
  int wait() {
    int state = 0;
    ::waitpid(std::exchange(pid_, -1), &state, 0);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 1000 + WTERMSIG(state);
  }
  pid_t pid() const { return pid_; }

private:
  pid_t pid_ = -1;
  unique_fd told_;
  unique_fd ready_;
};

inline void say_ready(int fd) { [[maybe_unused]] auto n = ::write(fd, "x", 1); }

inline byte_buffer bytes_of(std::size_t size, std::uint8_t seed = 1) {
  byte_buffer out(size);
  for (std::size_t i = 0; i < size; ++i)
    out[i] = static_cast<std::byte>((i * 131 + i / 251 + seed) & 0xff);
  return out;
}

/// Room for so many descriptors; where the system allows fewer the test ends, aloud.
inline bool room_for_descriptors(std::size_t count) {
  rlimit limit{};
  BOOST_TEST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  BOOST_TEST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_cur >= count)
    return true;
  millrace::testing::skipped(
    std::to_string(count) + " open descriptors: the limit is " + std::to_string(limit.rlim_cur));
  return false;
}

} // namespace millrace::net::testing
