// Forks programs, and collects what they print in files.
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/skipped.hpp>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

namespace millrace::testing {

namespace {

std::string contents(int fd) {
  struct stat info {};
  BOOST_TEST_REQUIRE(fstat(fd, &info) == 0);
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  auto got = pread(fd, text.data(), text.size(), 0);
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

int output_file() {
  int fd = memfd_create("output", MFD_CLOEXEC);
  BOOST_TEST_REQUIRE(fd >= 0);
  return fd;
}

// Runs between fork and exec, so only async-signal-safe calls. `program` was opened before, since
// another user may not be able to reach its path.
[[noreturn]] void become(
  int program, char* const* arguments, int out, int err, std::optional<uid_t> uid) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (
    uid &&
    (setgroups(0, nullptr) != 0 || setresgid(*uid, *uid, *uid) != 0 ||
     setresuid(*uid, *uid, *uid) != 0))
    _exit(126);
  execveat(program, "", arguments, environ, AT_EMPTY_PATH);
  _exit(127);
}

} // namespace

void pause_between_polls() { std::this_thread::sleep_for(std::chrono::milliseconds{2}); }

scratch::scratch() : scratch(std::filesystem::temp_directory_path()) {}

scratch::scratch(const std::filesystem::path& parent) {
  auto pattern = (parent / "millrace.XXXXXX").string();
  BOOST_TEST_REQUIRE(mkdtemp(pattern.data()));
  path = pattern;
}

scratch::~scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

std::string scratch::write(std::string_view name, std::string_view text) const {
  std::ofstream{path / name} << text;
  return *this / name;
}

child_process::child_process(std::vector<std::string> command, std::optional<uid_t> uid)
  : out_(output_file()), err_(output_file()) {
  std::vector<char*> arguments;
  for (auto& word : command)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int program = open(command.front().c_str(), O_PATH | O_CLOEXEC);
  BOOST_TEST_REQUIRE(program >= 0, command.front() << " is not there");
  pid_ = fork();
  BOOST_TEST_REQUIRE(pid_ >= 0);
  if (pid_ == 0)
    become(program, arguments.data(), out_, err_, uid);
  close(program);
}

child_process::~child_process() {
  if (!code_) {
    signal(SIGKILL);
    wait();
  }
  close(out_);
  close(err_);
}

void child_process::signal(int number) const {
  if (!code_)
    kill(pid_, number);
}

bool child_process::reap(bool stops_too) {
  int status = 0;
  if (code_ || waitpid(pid_, &status, WNOHANG | (stops_too ? WUNTRACED : 0)) != pid_)
    return code_.has_value();
  if (WIFSTOPPED(status))
    stopped_ = true;
  else
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return code_.has_value();
}

std::string child_process::read_line() {
  std::string line;
  bool found = eventually([&] {
    bool ended = reap(false);
    auto text = out();
    auto end = text.find('\n', read_);
    if (end == text.npos)
      return ended;
    line = text.substr(read_, end - read_);
    read_ = end + 1;
    return true;
  });
  BOOST_TEST_REQUIRE((found && !line.empty()), "no line; it printed: " << out() << err());
  return line;
}

int child_process::wait() {
  bool ended = eventually([this] { return reap(false); });
  BOOST_TEST_REQUIRE(ended, "process " << pid_ << " does not end");
  return *code_;
}

bool child_process::wait_stopped() {
  stopped_ = false;
  bool changed = eventually([this] { return reap(true) || stopped_; });
  return changed && stopped_;
}

std::string child_process::out() const { return contents(out_); }
std::string child_process::err() const { return contents(err_); }

std::size_t child_process::descriptors() const {
  std::filesystem::directory_iterator all{"/proc/" + std::to_string(pid_) + "/fd"};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

outcome run_program(const std::vector<std::string>& command, std::optional<uid_t> uid) {
  child_process child{command, uid};
  auto code = child.wait();
  return {code, child.out(), child.err()};
}

std::optional<outcome> run_python(std::vector<std::string> arguments, const std::string& what) {
  const auto interpreter = "/usr/bin/python3";
  if (!std::filesystem::exists(interpreter)) {
    skipped(what + ": Python is not installed");
    return std::nullopt;
  }
  arguments.insert(arguments.begin(), interpreter);
  auto ran = run_program(arguments);
  if (ran.code == 77) {
    skipped(what + ": " + ran.out);
    return std::nullopt;
  }
  BOOST_TEST_REQUIRE(ran.code == 0, ran.err);
  return ran;
}

std::size_t lines_of(std::string_view text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

} // namespace millrace::testing
