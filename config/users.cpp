// Asks the system for its users.
#include <millrace/config/document.hpp>
#include <millrace/config/users.hpp>

#include <pwd.h>

#include <charconv>

namespace millrace::config {

result<std::vector<std::uint32_t>> uids_of(
  std::string_view key, const std::vector<std::string>& users) {
  std::vector<std::uint32_t> out;
  for (auto& user : users) {
    std::uint32_t uid = 0;
    auto* end = user.data() + user.size();
    auto [rest, bad] = std::from_chars(user.data(), end, uid);
    // The largest number is no valid user id.
    bool number = bad == std::errc{} && rest == end && uid != static_cast<uid_t>(-1);
    auto* entry = number || user.empty() ? nullptr : getpwnam(user.c_str());
    if (!number && !entry)
      return fail(errc::invalid_argument, "{}: this system has no user \"{}\"", key, shown(user));
    out.push_back(number ? uid : entry->pw_uid);
  }
  return out;
}

} // namespace millrace::config
