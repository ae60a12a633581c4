// The RDMA devices of a test: MILLRACE_TEST_VERBS=OURS/THEIRS, such as "rxe0/rxe1", several with
// commas.
// Used by tests in the lab guest.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace millrace::testing {

struct verbs_devices {
  std::vector<std::string> ours, theirs;

  static verbs_devices from_environment() {
    std::string text = std::getenv("MILLRACE_TEST_VERBS");
    auto slash = text.find('/');
    return {split(text.substr(0, slash)), split(text.substr(slash + 1))};
  }

private:
  static std::vector<std::string> split(const std::string& list) {
    std::vector<std::string> out;
    std::istringstream words{list};
    for (std::string word; std::getline(words, word, ',');)
      out.push_back(word);
    return out;
  }
};

} // namespace millrace::testing
