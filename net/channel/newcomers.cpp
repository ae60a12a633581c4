// Chooses which newcomer is closed.
#include <millrace/net/channel/newcomers.hpp>

#include <algorithm>
#include <utility>

namespace millrace::net {

newcomers::number newcomers::add(const std::string& source, refusal refuse) {
  make_room(source);
  auto n = next_++;
  known_.emplace(n, newcomer{source, std::move(refuse)});
  ++by_source_[source];
  return n;
}

void newcomers::remove(number n) {
  auto found = known_.find(n);
  if (found == known_.end())
    return;
  auto of_source = by_source_.find(found->second.source);
  if (--of_source->second == 0)
    by_source_.erase(of_source);
  known_.erase(found);
}

void newcomers::refuse_all(const status& why) {
  while (!known_.empty())
    refuse_oldest([](auto&) { return true; }, why);
}

void newcomers::make_room(const std::string& source) {
  if (count_of(source) >= per_source_max_)
    return refuse_oldest(
      [&](auto& n) { return n.source == source; },
      {errc::busy, "more than {} connections of this source are in their handshake",
       per_source_max_});
  if (known_.size() < max_)
    return;
  auto most = std::max_element(by_source_.begin(), by_source_.end(), [](auto& a, auto& b) {
                return a.second < b.second;
              })->second;
  refuse_oldest(
    [&](auto& n) { return count_of(n.source) == most; },
    {errc::busy, "more than {} connections are in their handshake", max_});
}

void newcomers::refuse_oldest(
  const std::function<bool(const newcomer&)>& of_these, const status& why) {
  auto oldest =
    std::find_if(known_.begin(), known_.end(), [&](auto& n) { return of_these(n.second); });
  auto refuse = std::move(oldest->second.refuse);
  remove(oldest->first);
  refuse(why);
}

std::uint32_t newcomers::count_of(const std::string& source) const {
  auto found = by_source_.find(source);
  return found == by_source_.end() ? 0 : found->second;
}

} // namespace millrace::net
