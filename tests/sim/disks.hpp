// The disks of simulated processes: what of their files is durable. Used by clusters.
#pragma once

#include <millrace/tests/support/disk/recorder.hpp>
#include <millrace/tests/support/disk/state.hpp>

#include <functional>
#include <map>
#include <string>

namespace millrace::sim {

/// What is left of a directory when its process has died.
struct directory_left {
  testing::disk::tree files;
  testing::disk::state state; // of files that another process goes on with
  bool power_cut = false;
};

/// Directories of processes, side by side below one root. There is one such object at a time.
class simulated_disks {
public:
  explicit simulated_disks(std::string root);
  ~simulated_disks();
  simulated_disks(const simulated_disks&) = delete;
  simulated_disks& operator=(const simulated_disks&) = delete;

  std::string path_of(const std::string& directory) const { return root_ + "/" + directory; }

  /// Calls `f` after each change of a file and each sync, whose directory it is. Null: no longer.
  void watch(std::function<void(const std::string& directory)> f) { watch_ = std::move(f); }

  /// Returns what a process leaves that ends now; with `power_cut` what its machine leaves.
  directory_left left_in(const std::string& directory, bool power_cut, testing::dice& random);
  /// Makes a directory that again.
  void put_back(const std::string& directory, const directory_left& left);

private:
  void happens(testing::disk::event e);

  std::string root_;
  std::map<std::string, testing::disk::state> states_; // by directory
  std::map<std::uint64_t, std::string> directory_of_;  // of files, by number
  std::function<void(const std::string&)> watch_;
  std::string not_understood_;
};

} // namespace millrace::sim
