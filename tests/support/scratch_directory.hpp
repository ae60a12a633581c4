// A directory for one test, on the build's disk unless the test says otherwise. It is removed after
// the test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace millrace::testing {

class scratch_directory {
public:
  scratch_directory() : scratch_directory(std::filesystem::current_path().string()) {}
  /// Makes it under another directory, for example in memory.
  explicit scratch_directory(const std::string& parent) {
    auto pattern = parent + "/millrace-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  scratch_directory(const scratch_directory&) = delete;
  scratch_directory& operator=(const scratch_directory&) = delete;
  ~scratch_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const noexcept { return path_; }

private:
  std::string path_;
};

} // namespace millrace::testing
