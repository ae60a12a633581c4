// What a recorded process left on its disk at any instant, and what a power cut at that instant
// may leave of it. Used by crash tests.
#pragma once

#include <millrace/tests/support/disk/state.hpp>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace millrace::testing::disk {

/// The calls of a process on the files below a directory that was empty at first.
///
/// *Problem*: a killed process leaves everything to the page cache, so a test by `kill -9` passes
/// without a single `fsync`. `state` says what is durable here.
class history {
public:
  /// The environment in which a program writes `log` of what it does below `root`.
  static std::vector<std::string> environment(const std::string& root, const std::string& log);

  /// Reads the log of a program that has ended. Fails the test when the program made a call that is
  /// not understood.
  history(const std::string& root, const std::string& log);

  /// A defect: calls that make something durable do nothing when this holds for their kind
  /// (`synced`, `written_back`, `names_synced`) and for a name below the root that the file ever
  /// has, or that of the directory.
  using defect = std::function<bool(event_kind, const std::string& name)>;
  /// Of these calls, `count` do nothing from call `first` on; the first one has number 0.
  void plant(defect forgotten, std::size_t first = 0, std::size_t count = ~std::size_t{0}) {
    forgotten_ = std::move(forgotten);
    first_forgotten_ = first;
    forgotten_max_ = count;
  }

  /// Events, in the order in which they happened.
  std::size_t size() const noexcept { return events_.size(); }
  bool has(event_kind kind) const;
  /// What the program had printed before event `end`.
  std::string said_before(std::size_t end) const;
  /// Returns an event after which something was made durable, or was said, and now and then any.
  std::size_t instant(dice& random) const;

  /// Makes the directory `to` what a power cut before event `end` may leave.
  void make_image(std::size_t end, dice& random, const std::string& to) const;
  /// Makes the directory `to` what the running process saw before event `end`.
  void make_copy(std::size_t end, const std::string& to) const;

private:
  /// Returns true if the planted defect is about this event.
  bool is_forgotten(const event& e) const;
  state replayed(std::size_t end) const;

  std::vector<event> events_;
  std::map<std::uint64_t, std::vector<std::string>> names_of_;
  defect forgotten_ = [](event_kind, const std::string&) { return false; };
  std::size_t first_forgotten_ = 0, forgotten_max_ = 0;
};

} // namespace millrace::testing::disk
