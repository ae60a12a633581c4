// Makes pipes, forks and runs programs, and cleans up in every case.
#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/core/clock.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

namespace millrace::bench {

namespace {

constexpr auto stop_patience = std::chrono::seconds{20};

std::mutex scratch_mutex;
std::set<std::string> scratch_paths;

// Runs between fork and exec, so only async-signal-safe calls.
[[noreturn]] void become(char* const* arguments, int input, int output, bool quiet, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent)
    _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  if (quiet)
    dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
  execvp(arguments[0], arguments);
  _exit(127);
}

} // namespace

result<child> child::start(const std::vector<std::string>& arguments, bool quiet) {
  std::array<int, 2> to, from;
  if (pipe2(to.data(), O_CLOEXEC) != 0)
    return fail(status_from_errno(errno, "making a pipe"));
  if (pipe2(from.data(), O_CLOEXEC) != 0)
    return fail(status_from_errno(errno, "making a pipe"));
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (auto& a : arguments)
    pointers.push_back(const_cast<char*>(a.c_str()));
  pointers.push_back(nullptr);
  auto parent = getpid();
  auto pid = fork();
  if (pid == 0)
    become(pointers.data(), to[0], from[1], quiet, parent);
  close(to[0]);
  close(from[1]);
  child out;
  out.input_ = to[1];
  out.output_ = from[0];
  out.pid_ = pid;
  if (pid < 0)
    return fail(status_from_errno(errno, "starting " + arguments[0]));
  return out;
}

child& child::operator=(child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(input_, other.input_);
  std::swap(output_, other.output_);
  std::swap(unread_, other.unread_);
  return *this;
}

status child::write_line(const std::string& line) {
  auto text = line + "\n";
  for (std::size_t at = 0; at < text.size();) {
    auto written = ::write(input_, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return {errc::peer_lost, "the helper process has ended"};
    at += static_cast<std::size_t>(written);
  }
  return {};
}

result<std::string> child::read_line(int timeout_ms) {
  auto deadline = steady_clock::now() + std::chrono::milliseconds{timeout_ms};
  for (;;) {
    if (auto end = unread_.find('\n'); end != std::string::npos) {
      auto line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now());
    pollfd ready{output_, POLLIN, 0};
    auto count = left.count() <= 0 ? 0 : poll(&ready, 1, static_cast<int>(left.count()));
    if (count == 0)
      return fail(errc::deadline_exceeded, "no answer from a helper process");
    std::array<char, 4096> buffer;
    auto got = count < 0 ? count : ::read(output_, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return fail(errc::peer_lost, "a helper process has ended");
    unread_.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

double child::core_seconds() const noexcept { return running() ? core_seconds_of(pid_) : 0; }

double core_seconds_of(pid_t process) noexcept {
  clockid_t clock = 0;
  timespec t{};
  if (clock_getcpuclockid(process, &clock) != 0 || clock_gettime(clock, &t) != 0)
    return 0;
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

void child::stop() noexcept {
  if (input_ >= 0)
    close(std::exchange(input_, -1));
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    auto deadline = steady_clock::now() + stop_patience;
    while (waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (steady_clock::now() > deadline)
        kill(pid_, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
    pid_ = -1;
  }
  if (output_ >= 0)
    close(std::exchange(output_, -1));
}

scratch_directory::scratch_directory(const std::string& parent) {
  path_ = parent + "/millrace-bench-XXXXXX";
  std::lock_guard guard{scratch_mutex};
  if (!mkdtemp(path_.data()))
    give_up(status_from_errno(errno, "making a directory in " + parent), "starting");
  scratch_paths.insert(path_);
}

scratch_directory::~scratch_directory() {
  std::lock_guard guard{scratch_mutex};
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  scratch_paths.erase(path_);
}

void clean_up_on_signals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGINT);
  sigaddset(&ending, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  std::thread{[ending] {
    int number = 0;
    sigwait(&ending, &number);
    std::lock_guard guard{scratch_mutex};
    std::error_code ignored;
    for (auto& path : scratch_paths)
      std::filesystem::remove_all(path, ignored);
    _exit(128 + number);
  }}.detach();
}

} // namespace millrace::bench
