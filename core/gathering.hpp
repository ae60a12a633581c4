// Joins the outcomes of several operations that run at once. Used where the results are passed on
// together.
#pragma once

#include <millrace/core/status.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace millrace {

/// Runs `done` with all values, in the order of their indices, or with the error that came first.
/// It runs when the last outcome has arrived, so no operation is in flight any more. The
/// completions of the operations share this object and call `arrived`.
///
/// Threads: any.
template <class T>
class gathering {
public:
  /// `count`: at least one.
  gathering(std::size_t count, completion<std::vector<T>> done)
    : values_(count), missing_(count), done_(std::move(done)) {}

  void arrived(std::size_t index, result<T> outcome) {
    {
      std::lock_guard guard{mutex_};
      if (outcome)
        values_[index] = std::move(*outcome);
      else if (first_error_.ok())
        first_error_ = outcome.error();
      if (--missing_ > 0)
        return;
    }
    if (first_error_.ok())
      done_(std::move(values_));
    else
      done_(fail(first_error_));
  }

private:
  std::mutex mutex_;
  std::vector<T> values_;
  std::size_t missing_;
  status first_error_;
  completion<std::vector<T>> done_;
};

/// The same for operations without values.
template <>
class gathering<void> {
public:
  /// `count`: at least one.
  gathering(std::size_t count, completion<void> done) : missing_(count), done_(std::move(done)) {}

  void arrived(result<void> outcome) {
    {
      std::lock_guard guard{mutex_};
      if (!outcome && outcome_)
        outcome_ = std::move(outcome);
      if (--missing_ > 0)
        return;
    }
    done_(std::move(outcome_));
  }

private:
  std::mutex mutex_;
  std::size_t missing_;
  result<void> outcome_; // the error that came first
  completion<void> done_;
};

/// Returns the completion of so many operations that run at once. When all of them have called it
/// or a copy, `done` runs, as that of `gathering`.
inline completion<void> gathered(std::size_t count, completion<void> done) {
  return [all = std::make_shared<gathering<void>>(count, std::move(done))](result<void> outcome) {
    all->arrived(std::move(outcome));
  };
}

} // namespace millrace
