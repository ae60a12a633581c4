// What a recorded process left on its disk at any instant, and what a power cut at that instant
// may leave of it. Used by crash tests.
#pragma once

#include <millrace/tests/support/dice.hpp>
#include <millrace/tests/support/disk/events.hpp>

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace millrace::testing::disk {

/// The calls of a process on the files below a directory that was empty at first.
///
/// *Problem*: a killed process leaves everything to the page cache, so a test by `kill -9` passes
/// without a single `fsync`. Here a file keeps what was written before its last `fsync`, and a
/// directory keeps the names that it had at its last `fsync`. Of later writes a power cut keeps any
/// sectors of 512 bytes. Of a directory's later changes it keeps the first ones, up to any of them.
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
  void plant(defect forgotten) { forgotten_ = std::move(forgotten); }

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
  struct event {
    event_head head;
    std::string path, other; // below the root, without it
    std::string data;
  };

  // One change of a file that is not durable yet.
  struct change {
    event_kind kind = event_kind::written;
    std::uint64_t offset = 0;
    std::string data;
    std::set<std::uint64_t> overtaken; // sectors of it that are durable with later bytes
  };
  struct file {
    std::string durable;
    std::vector<change> pending;
  };
  // A change of names in the directory of `path`.
  struct naming {
    event_kind kind = event_kind::linked;
    std::uint64_t id = 0;
    std::string path, other;
  };
  using names = std::map<std::string, std::uint64_t>; // 0: a directory

  struct disk {
    std::map<std::uint64_t, file> files;
    names durable;
    std::vector<naming> pending;
  };

  disk replayed(std::size_t end) const;
  void replay(const event& e, disk& d) const;
  static void make_durable(file& f);
  static void make_names_durable(const std::string& directory, disk& d);
  static void apply(const change& c, std::string& content);
  static void apply(const naming& n, names& all);
  static void write_out(
    const names& all, const std::map<std::uint64_t, std::string>& contents, const std::string& to);

  std::vector<event> events_;
  std::map<std::uint64_t, std::vector<std::string>> names_of_;
  defect forgotten_ = [](event_kind, const std::string&) { return false; };
};

} // namespace millrace::testing::disk
