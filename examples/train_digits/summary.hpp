// Prints the results of a phase to standard output and appends them to a file.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

namespace train_digits {

class summary {
public:
  explicit summary(const std::string& path)
    : file_(path.empty() ? nullptr : std::fopen(path.c_str(), "a"), close) {}

  template <class... Args>
  void say(fmt::format_string<Args...> what, Args&&... args) {
    auto line = fmt::format(what, std::forward<Args>(args)...) + "\n";
    std::fputs(line.c_str(), stdout);
    std::fflush(stdout);
    if (file_)
      std::fputs(line.c_str(), file_.get());
  }

private:
  static void close(std::FILE* file) { std::fclose(file); }

  std::unique_ptr<std::FILE, void (*)(std::FILE*)> file_;
};

} // namespace train_digits
