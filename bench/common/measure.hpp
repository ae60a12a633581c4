// Times competitors in turns and repeatedly, so that a noisy moment affects all of them alike.
// Used by every section of the benchmarks.
#pragma once

#include <millrace/core/status.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace::bench {

/// Seconds, one value per repetition.
class samples {
public:
  void add(double seconds) { values_.push_back(seconds); }
  bool empty() const noexcept { return values_.empty(); }
  std::size_t size() const noexcept { return values_.size(); }
  const std::vector<double>& values() const noexcept { return values_; }

  /// Returns a quantile. `q` is in [0, 1]; 0 is the smallest value. Returns NaN without samples.
  double quantile(double q) const;
  double median() const { return quantile(0.5); }
  double min() const { return quantile(0); }
  double max() const { return quantile(1); }

private:
  std::vector<double> values_;
};

/// Returns the seconds that `f` takes by the monotonic clock.
double seconds_of(const std::function<void()>& f);

/// Returns the mean seconds of so many calls, one after the other: a sample of short operations.
double mean_of(int calls, const std::function<void()>& call);

/// Competitors to be timed in turns: every round runs each of them once, in order.
class contest {
public:
  /// Adds a competitor. `run` returns its own time, or throws `millrace::error`, which ends the
  /// benchmark. The samples live as long as the contest.
  const samples& add(std::function<double()> run);

  /// Runs the rounds. `warm_up` runs one round first that does not count. More rounds follow until
  /// `at_least_s` seconds were measured. A competitor begins when the one before it has become
  /// quiet, or after half a second.
  void run(std::size_t rounds, bool warm_up = true, double at_least_s = 0);

private:
  struct contestant {
    std::function<double()> run;
    samples times;
  };
  std::vector<std::unique_ptr<contestant>> contestants_;
};

/// Throws `millrace::error` saying what was being done.
[[noreturn]] void give_up(const status& why, std::string_view doing);
[[noreturn]] void give_up(const std::string& what);

/// Returns the value, or calls `give_up`.
template <class T>
T need(result<T> outcome, std::string_view doing) {
  if (!outcome)
    give_up(outcome.error(), doing);
  if constexpr (!std::is_void_v<T>)
    return std::move(*outcome);
}

} // namespace millrace::bench
