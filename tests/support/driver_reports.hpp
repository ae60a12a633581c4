// Finds lines of the reports of drivers by their names.
#pragma once

#include <millrace/transport/fabric.hpp>

#include <string>
#include <vector>

namespace millrace::testing {

/// The texts that the rows of all tables have under a name.
inline std::vector<std::string> reported(const transport::fabric& fabric, const std::string& name) {
  std::vector<std::string> out;
  for (auto& report : fabric.reports())
    for (auto& table : report.tables)
      for (auto& row : table.rows)
        for (auto& line : row)
          if (line.name == name)
            out.push_back(line.text);
  return out;
}

} // namespace millrace::testing
