// Computes medians and runs rounds.
#include <millrace/bench/common/measure.hpp>
#include <millrace/core/clock.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::bench {

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
      auto seconds = c->run();
      c->times.add(seconds);
      measured_s += seconds;
    }
}

void give_up(const status& why, std::string_view doing) { throw error{why.within(doing)}; }

void give_up(const std::string& what) { throw error{status{errc::internal, what}}; }

} // namespace millrace::bench
