// A switch between network interfaces that loses, delays and cuts as it is told: `test_wire FIFO IF
// IF...`. Started by tests, in a network namespace that they made. Commands come by the FIFO, a
// line each, answered by "ok":
//   loss PERCENT   of all frames, by chance
//   delay MS       of every frame
//   cut I J        nothing passes between the interfaces number I and J
//   heal           everything passes
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;
using mac = std::array<std::uint8_t, 6>;

constexpr std::size_t frame_bytes_max = 65'536;
constexpr std::size_t frames_waiting_max = 100'000;
constexpr int frames_per_turn = 64;

[[noreturn]] void give_up(const std::string& what) {
  std::cerr << "wire: " << what << ": " << std::strerror(errno) << std::endl;
  std::exit(1);
}

// Frames must be as they would be on a cable: no larger than the MTU, with their checksums filled
// in. What the other end of a veth pair may send is set at that end, by the test.
class port {
public:
  explicit port(const std::string& interface) : fd_(::socket(AF_PACKET, SOCK_RAW, 0)) {
    if (fd_ < 0)
      give_up("a packet socket");
    sockaddr_ll where{};
    where.sll_family = AF_PACKET;
    where.sll_protocol = htons(ETH_P_ALL);
    where.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
    int on = 1;
    if (
      where.sll_ifindex == 0 ||
      ::setsockopt(fd_, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)) != 0 ||
      ::bind(fd_, reinterpret_cast<sockaddr*>(&where), sizeof(where)) != 0)
      give_up("interface " + interface);
  }

  int fd() const noexcept { return fd_; }

  // What the interface does not take is lost, as on a cable.
  void send(const std::vector<std::uint8_t>& frame) const {
    static_cast<void>(::send(fd_, frame.data(), frame.size(), MSG_DONTWAIT));
  }

private:
  int fd_;
};

struct waiting_frame {
  clock_type::time_point due;
  std::size_t to;
  std::vector<std::uint8_t> bytes;
};

class wire {
public:
  wire(const std::string& fifo, const std::vector<std::string>& interfaces)
    : commands_(::open(fifo.c_str(), O_RDWR | O_CLOEXEC)) {
    if (commands_ < 0)
      give_up(fifo);
    for (auto& name : interfaces)
      ports_.emplace_back(name);
  }

  void run() {
    std::vector<pollfd> waited{{commands_, POLLIN, 0}};
    for (auto& p : ports_)
      waited.push_back({p.fd(), POLLIN, 0});
    while (true) {
      ::poll(waited.data(), waited.size(), timeout_ms());
      if (waited[0].revents != 0 && !take_commands())
        return;
      for (std::size_t i = 0; i < ports_.size(); ++i)
        if (waited[i + 1].revents != 0)
          receive(i);
      deliver_due();
    }
  }

private:
  int timeout_ms() const {
    if (waiting_.empty())
      return -1;
    auto left = waiting_.front().due - clock_type::now();
    return std::max<int>(
      0, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
  }

  bool take_commands() {
    std::array<char, 4096> room{};
    auto got = ::read(commands_, room.data(), room.size());
    if (got <= 0)
      return false;
    input_.append(room.data(), static_cast<std::size_t>(got));
    for (std::size_t end = 0; (end = input_.find('\n')) != std::string::npos;) {
      obey(input_.substr(0, end));
      input_.erase(0, end + 1);
    }
    return true;
  }

  void obey(const std::string& line) {
    std::istringstream words{line};
    std::string verb;
    words >> verb;
    bool known = true;
    if (verb == "loss")
      words >> loss_percent_;
    else if (verb == "delay") {
      unsigned ms = 0;
      words >> ms;
      delay_ = std::chrono::milliseconds{ms};
    } else if (verb == "cut") {
      std::size_t a = 0, b = 0;
      words >> a >> b;
      cuts_.insert({a, b});
      cuts_.insert({b, a});
    } else if (verb == "heal") {
      cuts_.clear();
      loss_percent_ = 0;
      delay_ = {};
    } else
      known = false;
    std::cout << (known && !words.fail() ? "ok" : "what?") << std::endl;
  }

  void receive(std::size_t from) {
    for (int i = 0; i < frames_per_turn; ++i) {
      std::vector<std::uint8_t> frame(frame_bytes_max);
      auto got = ::recv(ports_[from].fd(), frame.data(), frame.size(), MSG_DONTWAIT);
      if (got < 14)
        return;
      frame.resize(static_cast<std::size_t>(got));
      mac source;
      std::copy_n(frame.begin() + 6, 6, source.begin());
      learned_[source] = from;
      forward(from, frame);
    }
  }

  void forward(std::size_t from, const std::vector<std::uint8_t>& frame) {
    mac target;
    std::copy_n(frame.begin(), 6, target.begin());
    auto known = learned_.find(target);
    for (std::size_t to = 0; to < ports_.size(); ++to)
      if (to != from && (known == learned_.end() || known->second == to))
        pass(from, to, frame);
  }

  void pass(std::size_t from, std::size_t to, const std::vector<std::uint8_t>& frame) {
    if (cuts_.count({from, to}) > 0 || waiting_.size() >= frames_waiting_max)
      return;
    if (loss_percent_ > 0 && std::uniform_real_distribution<>{0, 100}(random_) < loss_percent_)
      return;
    if (delay_.count() == 0 && waiting_.empty())
      return ports_[to].send(frame);
    waiting_.push_back({clock_type::now() + delay_, to, frame});
  }

  void deliver_due() {
    auto now = clock_type::now();
    for (; !waiting_.empty() && waiting_.front().due <= now; waiting_.pop_front())
      ports_[waiting_.front().to].send(waiting_.front().bytes);
  }

  int commands_;
  std::vector<port> ports_;
  std::map<mac, std::size_t> learned_;
  std::deque<waiting_frame> waiting_; // in order: a frame never overtakes another
  std::set<std::pair<std::size_t, std::size_t>> cuts_;
  double loss_percent_ = 0;
  std::chrono::milliseconds delay_{0};
  std::minstd_rand random_{1};
  std::string input_;
};

} // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: " << argv[0] << " FIFO INTERFACE INTERFACE...\n";
    return 2;
  }
  wire w{argv[1], {argv + 2, argv + argc}};
  std::cout << "ready" << std::endl;
  w.run();
}
