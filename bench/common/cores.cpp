// Pins the threads of processes, by their numbers in /proc.
#include <millrace/bench/common/cores.hpp>
#include <millrace/bench/common/measure.hpp>

#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <thread>

namespace millrace::bench {

namespace {

cpu_set_t allowed_here() {
  static const cpu_set_t all = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return set;
  }();
  return all;
}

cpu_set_t core_number(unsigned n) {
  auto all = allowed_here();
  cpu_set_t one;
  CPU_ZERO(&one);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &all) && n-- == 0)
      CPU_SET(cpu, &one);
  return one;
}

// A thread may end meanwhile.
bool pin_thread(pid_t thread, const cpu_set_t& where) {
  return sched_setaffinity(thread, sizeof where, &where) == 0 || errno == ESRCH;
}

bool pin(pid_t process, const cpu_set_t& where) {
  std::error_code gone;
  auto all = true;
  for (auto& thread :
       std::filesystem::directory_iterator{"/proc/" + std::to_string(process) + "/task", gone})
    all = pin_thread(std::stoi(thread.path().filename()), where) && all;
  return all;
}

} // namespace

on_cores::on_cores(unsigned own_core, pid_t other, unsigned others_core) : other_(other) {
  if (!pin(getpid(), core_number(own_core)) || !pin(other, core_number(others_core)))
    give_up(status_from_errno(errno, "sched_setaffinity"), "pinning threads to cores");
}

on_cores::~on_cores() {
  pin(getpid(), allowed_here());
  pin(other_, allowed_here());
}

unsigned cores_here() {
  auto all = allowed_here();
  return static_cast<unsigned>(CPU_COUNT(&all));
}

std::optional<double> bare_message_s() {
  if (cores_here() < 2)
    return {};
  constexpr int trips = 2000;
  struct alignas(64) line {
    std::atomic<int> number = 0;
  };
  std::array<line, 2> lines;
  auto before = allowed_here();
  pin_thread(0, core_number(0));
  std::thread echo{[&] {
    pin_thread(0, core_number(1));
    for (int i = 1; i <= trips; ++i) {
      while (lines[0].number.load(std::memory_order_acquire) != i) {
      }
      lines[1].number.store(i, std::memory_order_release);
    }
  }};
  samples times;
  for (int i = 1; i <= trips; ++i)
    times.add(seconds_of([&] {
      lines[0].number.store(i, std::memory_order_release);
      while (lines[1].number.load(std::memory_order_acquire) != i) {
      }
    }));
  echo.join();
  pin_thread(0, before);
  return times.median();
}

} // namespace millrace::bench
