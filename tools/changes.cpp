// Collects what became of each name.
#include <millrace/tools/changes.hpp>

namespace millrace::tools {

void changes::add(const std::string& name, const status& outcome) {
  if (outcome.ok()) {
    done_.push_back(name);
    return;
  }
  failed_.push_back({{"name", name}, {"error", to_json(outcome)}});
  if (!call_.json)
    report(call_, outcome);
}

int changes::finish() {
  if (call_.json)
    print_json(call_, {{done_word_, done_}, {"failed", failed_}});
  return failed_.empty() ? exit_ok : exit_failed;
}

} // namespace millrace::tools
