// Reads the files of the kernel's control groups. What cannot be read is no bound.
#include <millrace/core/control_group.hpp>

#include <fmt/format.h>

#include <fstream>
#include <vector>

namespace millrace {

namespace {

// Version 1 writes a number near the largest one for "no bound".
constexpr std::uint64_t no_bound_bytes = 1ull << 60;

struct hierarchy {
  std::string mount;
  std::string limit_file;
  std::string used_file;
};

const hierarchy version_2{"/sys/fs/cgroup", "memory.max", "memory.current"};
const hierarchy version_1{
  "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"};

std::optional<std::uint64_t> number_in(const std::string& file) {
  std::ifstream in{file};
  std::uint64_t number = 0;
  return in >> number ? std::optional{number} : std::nullopt;
}

// Appends the bounds of a group and of those around it. In a container the path may be one of the
// host, of which the container sees the root only.
void add_bounds(
  std::vector<group_memory>& out, const std::string& root, const hierarchy& h, std::string group) {
  while (true) {
    auto directory = fmt::format("{}{}{}/", root, h.mount, group);
    auto limit = number_in(directory + h.limit_file);
    if (limit && *limit < no_bound_bytes)
      out.push_back(
        {group.empty() ? "/" : group, *limit, number_in(directory + h.used_file).value_or(0)});
    if (group.empty())
      return;
    group.resize(group.rfind('/'));
  }
}

// A line is "NUMBER:CONTROLLERS:/PATH"; version 2 has the number 0 and no controllers.
std::vector<group_memory> all_bounds(const std::string& root) {
  std::vector<group_memory> out;
  std::ifstream groups{root + "/proc/self/cgroup"};
  bool any = false;
  for (std::string line; std::getline(groups, line);) {
    auto first = line.find(':');
    auto second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos || line.compare(second + 1, 1, "/") != 0)
      continue;
    auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    auto group = line.substr(second + 1);
    if (group == "/")
      group.clear();
    if (controllers == ",,")
      add_bounds(out, root, version_2, group);
    else if (controllers.find(",memory,") != controllers.npos)
      add_bounds(out, root, version_1, group);
    any = true;
  }
  if (!any)
    add_bounds(out, root, version_2, {});
  return out;
}

template <class Bytes>
std::optional<group_memory> least(const std::vector<group_memory>& all, Bytes bytes_of) {
  std::optional<group_memory> out;
  for (auto& g : all)
    if (!out || bytes_of(g) < bytes_of(*out))
      out = g;
  return out;
}

} // namespace

std::optional<group_memory> tightest_group_memory(const std::string& root) {
  return least(all_bounds(root), [](auto& g) { return g.free_bytes(); });
}

std::optional<group_memory> lowest_group_memory(const std::string& root) {
  return least(all_bounds(root), [](auto& g) { return g.limit_bytes; });
}

} // namespace millrace
