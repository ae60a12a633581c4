// Reads /proc and /sys. What cannot be read or parsed counts as missing.
#include <millrace/tools/doctor/machine.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

namespace millrace::tools::doctor {

namespace {

constexpr std::size_t file_bytes_max = 1u << 20;
constexpr std::size_t names_max = 4096;
constexpr std::size_t direct_block = 4096;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\n";
  auto first = text.find_first_not_of(blanks);
  if (first == text.npos)
    return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

int try_sealed_memfd() {
  int fd = memfd_create("millrace.doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0)
    return errno;
  int why = ftruncate(fd, 4096) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0 ? 0 : errno;
  close(fd);
  return why;
}

int try_pidfd() {
  auto fd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (fd < 0)
    return errno;
  close(fd);
  return 0;
}

int try_direct_write(const std::string& directory) {
  int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0)
    return errno;
  std::unique_ptr<void, void (*)(void*)> block{
    std::aligned_alloc(direct_block, direct_block), free};
  std::fill_n(static_cast<char*>(block.get()), direct_block, '\0');
  int why = pwrite(fd, block.get(), direct_block, 0) == direct_block ? 0 : errno;
  close(fd);
  return why;
}

int try_free_bytes(const std::string& directory, std::uint64_t& out) {
  struct statvfs info {};
  if (statvfs(directory.c_str(), &info) != 0)
    return errno;
  out = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  return 0;
}

std::optional<std::uint64_t> bound_of(std::string_view word) {
  return word == "unlimited" ? std::optional{machine::unlimited} : leading_number(word);
}

} // namespace

system_calls system_calls::real() {
  return {try_sealed_memfd, try_pidfd, try_direct_write, try_free_bytes};
}

std::optional<std::string> machine::read(const std::string& file) const {
  std::ifstream in{root + file, std::ios::binary};
  if (!in)
    return {};
  // Files of /proc have no size.
  std::string text(file_bytes_max, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (!text.empty() && text.back() == '\n')
    text.pop_back();
  return in.bad() ? std::nullopt : std::optional{text};
}

std::vector<std::string> machine::names(const std::string& directory) const {
  std::vector<std::string> all;
  std::error_code why;
  for (std::filesystem::directory_iterator it{root + directory, why}, end; !why && it != end;
       it.increment(why))
    if (all.size() < names_max)
      all.push_back(it->path().filename().string());
  std::sort(all.begin(), all.end());
  return all;
}

bool machine::exists(const std::string& file) const {
  std::error_code why;
  return std::filesystem::exists(root + file, why);
}

std::optional<std::string> machine::control_group(const std::string& file) const {
  std::istringstream groups{read("/proc/self/cgroup").value_or("")};
  for (std::string line; std::getline(groups, line);)
    if (line.starts_with("0::/"))
      if (auto text = read("/sys/fs/cgroup" + line.substr(3) + "/" + file))
        return text;
  return read("/sys/fs/cgroup/" + file);
}

std::optional<std::string> machine::field(const std::string& file, std::string_view key) const {
  std::istringstream lines{read(file).value_or("")};
  for (std::string line; std::getline(lines, line);)
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ':')
      return std::string{trimmed(std::string_view{line}.substr(key.size() + 1))};
  return {};
}

std::optional<std::uint64_t> machine::field_bytes(
  const std::string& file, std::string_view key) const {
  auto kib = leading_number(field(file, key).value_or(""));
  if (!kib || *kib > UINT64_MAX / 1024)
    return {};
  return *kib * 1024;
}

std::optional<machine::bounds> machine::limit(std::string_view name) const {
  std::istringstream lines{read("/proc/self/limits").value_or("")};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name))
      continue;
    std::istringstream words{line.substr(name.size())};
    std::string soft;
    std::string hard;
    words >> soft >> hard;
    auto low = bound_of(soft);
    auto high = bound_of(hard);
    return low && high ? std::optional{bounds{*low, *high}} : std::nullopt;
  }
  return {};
}

bool machine::capable(unsigned capability) const {
  auto text = field("/proc/self/status", "CapEff").value_or("");
  std::uint64_t mask = 0;
  std::from_chars(text.data(), text.data() + text.size(), mask, 16);
  return (mask >> capability & 1) != 0;
}

std::uint64_t count_of_list(std::string_view list) {
  std::uint64_t total = 0;
  list = trimmed(list);
  while (!list.empty()) {
    auto part = list.substr(0, list.find(','));
    list.remove_prefix(std::min(part.size() + 1, list.size()));
    auto first = leading_number(part);
    auto dash = part.find('-');
    auto last = dash == part.npos ? first : leading_number(part.substr(dash + 1));
    if (!first || !last || *last < *first || *last - *first > (1u << 20))
      return 0;
    total += *last - *first + 1;
  }
  return total;
}

std::optional<std::uint64_t> leading_number(std::string_view text) {
  text = trimmed(text);
  std::uint64_t value = 0;
  auto [end, why] = std::from_chars(text.data(), text.data() + text.size(), value);
  return why == std::errc{} ? std::optional{value} : std::nullopt;
}

std::string chosen_word(std::string_view choices) {
  auto open = choices.find('[');
  auto close = choices.find(']', open);
  if (open == choices.npos || close == choices.npos)
    return {};
  return std::string{choices.substr(open + 1, close - open - 1)};
}

std::string join(const std::vector<std::string>& items) {
  std::string text;
  for (auto& item : items)
    text += (text.empty() ? "" : ", ") + item;
  return text;
}

} // namespace millrace::tools::doctor
