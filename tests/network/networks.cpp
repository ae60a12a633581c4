// Makes namespaces and veth pairs with iproute2.
#include "networks.hpp"

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

namespace millrace::testing {

namespace {

constexpr auto ip = "/usr/sbin/ip";
constexpr auto ethtool = "/usr/sbin/ethtool";

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in{line};
  std::vector<std::string> out;
  for (std::string word; in >> word;)
    out.push_back(word);
  return out;
}

bool runs(const std::string& line) { return run_program(words_of(line)).code == 0; }

void must(const std::string& line) {
  auto done = run_program(words_of(line));
  BOOST_TEST_REQUIRE(done.code == 0, line << ": " << done.err);
}

} // namespace

std::string why_no_networks() {
  if (::geteuid() != 0)
    return "network namespaces need root";
  for (auto program : {ip, ethtool})
    if (!std::filesystem::exists(program))
      return std::string{program} + " is not installed";
  auto name = "mrprobe-" + std::to_string(::getpid());
  auto probe = std::string{ip} + " netns ";
  if (!runs(probe + "add " + name))
    return "this system makes no network namespaces";
  auto pair =
    runs(probe + "exec " + name + " " + ip + " link add name mr0 type veth peer name mr1");
  runs(probe + "del " + name);
  return pair ? "" : "this system makes no veth pairs";
}

std::string networks::space(int host) const {
  return "mr-" + std::to_string(::getpid()) + "-" + std::to_string(host);
}

std::string networks::hub() const { return "mr-" + std::to_string(::getpid()) + "-hub"; }

networks::networks(int hosts) : hosts_(hosts) {
  auto tool = std::string{ip};
  auto in_hub = tool + " -n " + hub() + " ";
  must(tool + " netns add " + hub());
  std::vector<std::string> wire{ip, "netns", "exec", hub(), MILLRACE_WIRE, directory_ / "commands"};
  for (int i = 0; i < hosts; ++i) {
    auto end = "p" + std::to_string(i);
    auto on_host = tool + " -n " + space(i) + " ";
    must(tool + " netns add " + space(i));
    must(in_hub + "link add name " + end + " type veth peer name eth0 netns " + space(i));
    // Frames as on a cable: no larger than the MTU, with their checksums.
    must(tool + " netns exec " + space(i) + " " + ethtool + " -K eth0 tso off gso off tx off");
    must(on_host + "link set lo up");
    must(on_host + "address add " + address(i) + "/24 dev eth0");
    must(on_host + "address add " + address6(i) + "/64 dev eth0 nodad");
    must(on_host + "link set eth0 up");
    must(in_hub + "link set " + end + " up");
    wire.push_back(end);
  }
  BOOST_TEST_REQUIRE(::mkfifo((directory_ / "commands").c_str(), 0600) == 0);
  wire_ = std::make_unique<child_process>(wire);
  BOOST_TEST_REQUIRE(wire_->read_line() == "ready");
}

networks::~networks() {
  wire_.reset();
  for (int i = 0; i < hosts_; ++i)
    runs(std::string{ip} + " netns del " + space(i));
  runs(std::string{ip} + " netns del " + hub());
}

std::vector<std::string> networks::on(int host, std::vector<std::string> words) const {
  std::vector<std::string> out{ip, "netns", "exec", space(host)};
  out.insert(out.end(), words.begin(), words.end());
  return out;
}

void networks::tell(const std::string& command) {
  auto line = command + "\n";
  int fd = ::open((directory_ / "commands").c_str(), O_WRONLY | O_CLOEXEC);
  auto written = ::write(fd, line.data(), line.size());
  ::close(fd);
  BOOST_TEST_REQUIRE(written == static_cast<ssize_t>(line.size()));
  BOOST_TEST_REQUIRE(wire_->read_line() == "ok");
}

} // namespace millrace::testing
