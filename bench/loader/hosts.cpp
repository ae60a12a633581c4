// Namespaces are made by threads of their own and kept by descriptors. iproute2 does the rest.
#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/loader/hosts.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <thread>

namespace millrace::bench {

namespace {

constexpr int command_timeout_ms = 20'000;
constexpr auto path = "PATH=/usr/sbin:/sbin:$PATH; ";

// Returns the last line that a shell prints, which is "failed" if the command fails.
std::string run(const std::string& command) {
  auto line = fmt::format("{}({}) 2>&1 && echo done || echo failed", path, command);
  auto shell = need(child::start({"/bin/sh", "-c", line}), "starting a shell");
  std::string last;
  while (auto next = shell.read_line(command_timeout_ms))
    last = *next == "done" ? last : *next;
  return last;
}

void must(const std::string& command) {
  if (auto last = run(command); last == "failed")
    give_up("this command failed: " + command);
}

int own_space() { return ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC); }

void on_space(int space, const std::function<void()>& f) {
  auto here = own_space();
  if (here < 0 || ::setns(space, CLONE_NEWNET) != 0)
    give_up("a network namespace cannot be entered");
  f();
  auto back = ::setns(here, CLONE_NEWNET);
  ::close(here);
  if (back != 0)
    give_up("a network namespace cannot be left");
}

// As iproute2 names a namespace of this process.
std::string name_of(int space) { return fmt::format("/proc/{}/fd/{}", ::getpid(), space); }

} // namespace

std::string hosts::why_none() {
  if (::geteuid() != 0)
    return "network namespaces need root";
  if (run("command -v ip tc >/dev/null") == "failed")
    return "ip and tc of iproute2 are missing";
  return run("unshare --net true") == "failed" ? "this system makes no network namespaces" : "";
}

int hosts::make_space() {
  int space = -1;
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) == 0)
      space = own_space();
  }).join();
  if (space < 0)
    give_up("this system makes no network namespace");
  return space;
}

hosts::hosts(std::size_t count) : switch_(make_space()) {
  in_switch("ip link add name br0 type bridge && ip link set br0 mtu 9000 up");
  for (std::size_t i = 0; i < count; ++i) {
    spaces_.push_back(make_space());
    in_switch(fmt::format(
      "ip link add name p{0} mtu {1} type veth peer name eth0 mtu {1} netns {2} && "
      "ip link set p{0} master br0 up",
      i, frame_bytes, name_of(spaces_.back())));
    on(i, [&] {
      must(fmt::format(
        "ip link set lo up && ip address add {}/24 dev eth0 && ip link set eth0 up", address(i)));
    });
  }
}

hosts::~hosts() {
  for (auto space : spaces_)
    ::close(space);
  ::close(switch_);
}

std::string hosts::address(std::size_t host) { return fmt::format("10.98.0.{}", host + 1); }

void hosts::on(std::size_t host, const std::function<void()>& f) const {
  on_space(spaces_[host], f);
}

void hosts::bound_port(
  std::size_t host, std::uint64_t bytes_per_s, std::uint64_t buffer_bytes) const {
  in_switch(fmt::format(
    "tc qdisc replace dev p{} root tbf rate {}bps burst {} limit {}", host, bytes_per_s,
    2 * frame_bytes, buffer_bytes));
}

std::uint64_t hosts::dropped_frames(std::size_t host) const {
  auto said = in_switch(fmt::format(
    "tc -s qdisc show dev p{} | sed -n 's/.*dropped \\([0-9]*\\),.*/\\1/p' | head -1", host));
  return said.empty() ? 0 : std::stoull(said);
}

std::string hosts::in_switch(const std::string& command) const {
  std::string said;
  on_space(switch_, [&] { said = run(command); });
  if (said == "failed")
    give_up("this command failed: " + command);
  return said;
}

} // namespace millrace::bench
