// Computes medians and runs rounds.
#include <millrace/bench/common/measure.hpp>
#include <millrace/core/clock.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

namespace millrace::bench {

namespace {

constexpr std::chrono::milliseconds quiet_deadline{500};
constexpr int quiet_looks = 8; // in a row, a millisecond apart

// Returns how many threads of the machine run or could run; the caller is one of them.
int running_threads() {
  std::ifstream file{"/proc/stat"};
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("procs_running "))
      return std::stoi(line.substr(line.find(' ')));
  return 1;
}

// Some competitors go on after they were measured: they read ahead. Waits until only the caller
// runs. On a machine where others work it goes on after the deadline.
void wait_until_quiet() {
  auto deadline = steady_clock::now() + quiet_deadline;
  for (auto looks = 0; looks < quiet_looks && steady_clock::now() < deadline;) {
    looks = running_threads() <= 1 ? looks + 1 : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

} // namespace

double samples::quantile(double q) const {
  if (values_.empty())
    return std::numeric_limits<double>::quiet_NaN();
  auto sorted = values_;
  auto at = static_cast<std::size_t>(std::llround(q * static_cast<double>(sorted.size() - 1)));
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(at), sorted.end());
  return sorted[at];
}

double seconds_of(const std::function<void()>& f) {
  auto begun = steady_clock::now();
  f();
  return std::chrono::duration<double>(steady_clock::now() - begun).count();
}

double mean_of(int calls, const std::function<void()>& call) {
  return seconds_of([&] {
           for (int i = 0; i < calls; ++i)
             call();
         }) /
    calls;
}

const samples& contest::add(std::function<double()> run) {
  contestants_.push_back(std::make_unique<contestant>(contestant{std::move(run), {}}));
  return contestants_.back()->times;
}

void contest::run(std::size_t rounds, bool warm_up, double at_least_s) {
  if (warm_up)
    for (auto& c : contestants_)
      c->run();
  double measured_s = 0;
  for (std::size_t round = 0; round < rounds || measured_s < at_least_s; ++round)
    for (auto& c : contestants_) {
      wait_until_quiet();
      auto seconds = c->run();
      c->times.add(seconds);
      measured_s += seconds;
    }
}

void give_up(const status& why, std::string_view doing) { throw error{why.within(doing)}; }

void give_up(const std::string& what) { throw error{status{errc::internal, what}}; }

} // namespace millrace::bench
