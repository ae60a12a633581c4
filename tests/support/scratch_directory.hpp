// A directory for one test, on the disk the build is on, gone when the test is over.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace millrace::testing {

class scratch_directory {
public:
  scratch_directory() {
    auto pattern = (std::filesystem::current_path() / "scratch-XXXXXX").string();
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
