// The failures of a shard's saves that the program has not been told. Used by `shard_state`, which
// guards it.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <optional>
#include <utility>

namespace millrace::runtime {

/// Reports each failure once: by the next save, which does not begin then, or by the next fence or
/// close. Of several it keeps the first, and counts the others.
class save_failures {
public:
  void keep(std::uint64_t step, const status& why) {
    if (failed_)
      ++more_failed_;
    else
      failed_ = why.within(fmt::format("saving step {}", step));
  }

  /// Keeps why the last save did not begin. The caller of that save knows it, so it is reported
  /// once more only, and not to a save.
  void not_begun(const status& why) { not_begun_ = why; }

  /// Returns the failure that a new save reports instead of beginning, if there is one.
  std::optional<status> refuse_save() {
    not_begun_ = take_failed();
    return not_begun_;
  }

  /// Returns the failure that a fence or a close reports; ok if there is none.
  status take() {
    auto failed = take_failed();
    auto not_begun = std::exchange(not_begun_, std::nullopt);
    return failed ? *failed : not_begun.value_or(status{});
  }

private:
  std::optional<status> take_failed() {
    auto failed = std::exchange(failed_, std::nullopt);
    auto more = std::exchange(more_failed_, 0);
    if (more > 0)
      failed = status{
        failed->code(), "{}; {} more save{} failed", failed->detail(), more, more > 1 ? "s" : ""};
    return failed;
  }

  std::optional<status> failed_; // of the first save that has failed
  std::uint64_t more_failed_ = 0;
  std::optional<status> not_begun_;
};

} // namespace millrace::runtime
