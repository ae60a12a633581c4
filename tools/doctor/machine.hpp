// The inputs of the checks: files below a root, and a few system calls.
// Used by every check; tests give it another root.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::tools::doctor {

/// System calls to try. Each returns 0 or the error number. Tests replace them.
struct system_calls {
  /// Makes a memfd that can be sealed against shrinking.
  int (*sealed_memfd)();
  /// Makes a descriptor of this process.
  int (*pidfd)();
  /// Writes past the page cache to a nameless file in the directory.
  int (*direct_write)(const std::string& directory);
  /// Returns the bytes free in the file system of the directory.
  int (*free_bytes)(const std::string& directory, std::uint64_t& out);

  static system_calls real();
};

struct machine {
  std::string root;       // put before every path that is read; empty: this machine
  std::string path = "."; // the directory whose file system is examined
  system_calls calls = system_calls::real();
  std::string topology_xml; // of its devices, as hwloc writes it; empty: this machine

  /// Returns the file without its last newline; nothing when it cannot be read.
  std::optional<std::string> read(const std::string& file) const;
  /// Returns the names in a directory, sorted; none when it does not exist.
  std::vector<std::string> names(const std::string& directory) const;
  bool exists(const std::string& file) const;

  /// Returns a file of this process's control group (v2), or of the root group.
  std::optional<std::string> control_group(const std::string& file) const;

  /// Returns the text of a field: "12 kB" for the key "VmLck" in a file with "VmLck: 12 kB".
  std::optional<std::string> field(const std::string& file, std::string_view key) const;
  /// Returns a field given in kB as bytes.
  std::optional<std::uint64_t> field_bytes(const std::string& file, std::string_view key) const;

  /// The soft and the hard limit in /proc/self/limits; `unlimited` for none.
  struct bounds {
    std::uint64_t soft = 0;
    std::uint64_t hard = 0;
  };
  static constexpr std::uint64_t unlimited = UINT64_MAX;
  std::optional<bounds> limit(std::string_view name) const;

  /// Returns true when the capability is in effect for this process.
  bool capable(unsigned capability) const;
};

inline constexpr unsigned cap_ipc_lock = 14;
inline constexpr unsigned cap_sys_ptrace = 19;

/// Returns how many numbers a list like "0-3,8" names; 0 when the text is not such a list.
std::uint64_t count_of_list(std::string_view list);

/// Returns the number at the beginning of a text.
std::optional<std::uint64_t> leading_number(std::string_view text);

/// Returns the word in brackets, as in "always [madvise] never"; empty when there is none.
std::string chosen_word(std::string_view choices);

std::string join(const std::vector<std::string>& items);

} // namespace millrace::tools::doctor
