// The outcomes of a change that the arguments ask for by several names.
// Used by the commands that remove, pin and unload.
#pragma once

#include <millrace/tools/output.hpp>

#include <string>
#include <utility>

namespace millrace::tools {

/// Reports each name that fails at once, and the others at the end.
class changes {
public:
  /// `done_word` is the key of the names whose change is done: "removed".
  changes(invocation& call, std::string done_word)
    : call_(call), done_word_(std::move(done_word)) {}

  void add(const std::string& name, const status& outcome);
  /// Prints the document of --json. Returns the exit code: 1 if a name has failed.
  int finish();

private:
  invocation& call_;
  std::string done_word_;
  json done_ = json::array(), failed_ = json::array();
};

} // namespace millrace::tools
