// Examines what a machine offers to Millrace, check by check. It knows no command line.
// Called by `millrace doctor`.
#pragma once

#include <millrace/tools/doctor/machine.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::tools::doctor {

enum class check_state : std::uint8_t {
  ok,
  note,    // works, but less well than it could, or differently
  missing, // does not exist on this machine
};
std::string_view to_string(check_state state) noexcept;

struct finding {
  std::string check;
  check_state state = check_state::ok;
  std::string value;  // what was found
  std::string remedy; // the command or setting that helps; empty when all is well

  friend bool operator==(const finding&, const finding&) = default;
};

/// Runs every check, in the order of the table in doctor.cpp. Changes nothing on the machine.
std::vector<finding> examine(const machine& m);

} // namespace millrace::tools::doctor
