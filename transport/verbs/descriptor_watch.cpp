// Calls poll without the descriptors that only report errors.
#include <millrace/transport/verbs/descriptor_watch.hpp>

#include <algorithm>

namespace millrace::transport::verbs {

descriptor_watch::descriptor_watch(const std::vector<int>& descriptors) {
  for (auto fd : descriptors)
    watched_.push_back({fd, POLLIN, 0});
}

std::vector<int> descriptor_watch::sleep(std::chrono::milliseconds longest) {
  std::vector<int> broken;
  if (poll(watched_.data(), watched_.size(), static_cast<int>(longest.count())) <= 0)
    return broken;
  auto is_broken = [](auto& w) { return (w.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0; };
  for (auto& w : watched_)
    if (is_broken(w))
      broken.push_back(w.fd);
  std::erase_if(watched_, is_broken);
  return broken;
}

} // namespace millrace::transport::verbs
