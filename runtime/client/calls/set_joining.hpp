// Helping another client to fill a working set.
// Internal, used by the preload of a working set; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/set_reserving.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::runtime {

/// The parts of a set that another client fills, joined for writing. At the end they are left: what
/// was claimed and not written is for others to claim.
/// Threads: blocks the caller.
class set_joining {
public:
  explicit set_joining(const preload_call& call) : call_(call) {}
  ~set_joining();
  set_joining(const set_joining&) = delete;
  set_joining& operator=(const set_joining&) = delete;

  /// Joins the filling of all parts that are not there. `whole`: the set that the files make.
  /// Errors:  `not_found` and `busy` if a part cannot be joined yet, or any more;
  ///          `already_exists` for other samples; `permission_denied`; `unsupported` by a server of
  ///          an older version.
  [[nodiscard]] status join_all(
    const set_info& whole, const std::string& home, const describing& describe);

  /// Returns the parts that are not there yet.
  std::vector<const reserved_part*> to_fill() const;

private:
  status join_part(const std::string& node, std::uint64_t first, set_info asked);
  status check_home(const set_info& whole) const;

  const preload_call& call_;
  std::vector<reserved_part> parts_; // the home's first
};

} // namespace millrace::runtime
