// Files below a directory as processes see them, and what of them is durable. Used by histories and
// by disks of simulated machines.
#pragma once

#include <millrace/tests/support/dice.hpp>
#include <millrace/tests/support/disk/events.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace millrace::testing::disk {

/// What files and directories have, by path; null: a directory.
using tree = std::map<std::string, std::optional<std::string>>;

/// Makes them below the directory `to`.
void write_tree(const tree& all, const std::string& to);

/// A file keeps what was written before its last `fsync`, and a directory the names of before its
/// own. Of what came later a power cut keeps any sectors of 512 bytes, and of each directory's
/// changes those up to some one. Paths are below the root.
class state {
public:
  void happens(const event& e);

  /// What the processes see.
  tree seen() const;
  /// What a power cut may leave.
  tree after_power_cut(dice& random) const;

  /// Makes all that is seen durable.
  void settle();
  /// Takes the place of a state whose files were made anew, as they were seen: what was not durable
  /// is not so now.
  void go_on_from(const state& former);

private:
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

  void written_back(const event& e);
  void make_names_durable(const std::string& directory);
  names names_with(const std::vector<const naming*>& kept) const;
  names names_seen() const;
  static std::string content_seen(const file& f);
  static void make_durable(file& f);
  static void apply(const change& c, std::string& content);
  static void apply(const naming& n, names& all);

  std::map<std::uint64_t, file> files_;
  names durable_;
  std::vector<naming> pending_;
};

} // namespace millrace::testing::disk
