// Where the checks look: files below a root, and the few questions that only system calls answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::tools::doctor {

/// System calls tried, each giving 0 or the error number. Tests put others in their place.
struct system_calls {
  /// A memfd that can be sealed against shrinking.
  int (*sealed_memfd)();
  /// A descriptor of this process.
  int (*pidfd)();
  /// A write past the page cache in a nameless file of the directory.
  int (*direct_write)(const std::string& directory);
  /// Bytes free in the file system of the directory.
  int (*free_bytes)(const std::string& directory, std::uint64_t& out);

  static system_calls real();
};

struct machine {
  std::string root;       // put before every path that is read; empty: this machine
  std::string path = "."; // the directory whose file system is examined
  system_calls calls = system_calls::real();

  /// The file without its last newline; empty optional when it cannot be read.
  std::optional<std::string> read(const std::string& file) const;
  /// Names in a directory, sorted; none when it is not there.
  std::vector<std::string> names(const std::string& directory) const;
  bool exists(const std::string& file) const;

  /// A file of this process's control group (v2), or of the root group.
  std::optional<std::string> control_group(const std::string& file) const;

  /// "VmLck: 12 kB" in `file` under the key "VmLck": "12 kB".
  std::optional<std::string> field(const std::string& file, std::string_view key) const;
  /// A field in kB, in bytes.
  std::optional<std::uint64_t> field_bytes(const std::string& file, std::string_view key) const;

  /// Soft and hard bound in /proc/self/limits; `unlimited` for no bound.
  struct bounds {
    std::uint64_t soft = 0;
    std::uint64_t hard = 0;
  };
  static constexpr std::uint64_t unlimited = UINT64_MAX;
  std::optional<bounds> limit(std::string_view name) const;

  /// True when the process has this capability in effect.
  bool capable(unsigned capability) const;
};

inline constexpr unsigned cap_ipc_lock = 14;
inline constexpr unsigned cap_sys_ptrace = 19;

/// How many numbers a list like "0-3,8" names; 0 when it is none.
std::uint64_t count_of_list(std::string_view list);

/// The number at the beginning of a text.
std::optional<std::uint64_t> leading_number(std::string_view text);

/// The word in brackets of "always [madvise] never"; empty when there is none.
std::string chosen_word(std::string_view choices);

std::string join(const std::vector<std::string>& items);

} // namespace millrace::tools::doctor
