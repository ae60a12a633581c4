// Keeps a table of regions and a table of questions.
#include <millrace/transport/verbs/region_keys.hpp>

#include <iterator>

namespace millrace::transport::verbs {

region_keys::keys_ptr region_keys::find(const region_name& name) {
  auto found = known_.find(name);
  if (found == known_.end())
    return nullptr;
  found->second.used_at = ++clock_;
  return found->second.keys;
}

std::optional<std::uint64_t> region_keys::ask(const region_name& name) {
  auto& e = known_[name];
  e.used_at = ++clock_;
  if (e.asked != 0)
    return std::nullopt;
  e.asked = ++last_question_;
  questions_.emplace(e.asked, name);
  return e.asked;
}

std::optional<region_name> region_keys::answered(std::uint64_t number) {
  auto question = questions_.extract(number);
  if (!question)
    return std::nullopt;
  auto found = known_.find(question.mapped());
  if (found == known_.end() || found->second.asked != number)
    return std::nullopt; // withdrawn meanwhile
  found->second.asked = 0;
  return question.mapped();
}

void region_keys::add(const region_name& name, keys_ptr keys) {
  known_[name].keys = std::move(keys);
}

bool region_keys::give_up(const region_name& name) {
  auto found = known_.find(name);
  if (found == known_.end() || found->second.asked == 0)
    return false;
  questions_.erase(found->second.asked);
  known_.erase(found);
  return true;
}

void region_keys::forget(const region_name& name) {
  if (auto found = known_.find(name); found != known_.end() && found->second.asked == 0)
    known_.erase(found);
}

void region_keys::withdrawn(std::uint64_t region) {
  std::erase_if(known_, [&](auto& e) { return e.first.region == region; });
}

bool region_keys::forget_all() {
  auto some = !known_.empty();
  for (auto i = known_.begin(); i != known_.end();) {
    i->second.keys = nullptr;
    i = i->second.asked == 0 ? known_.erase(i) : std::next(i);
  }
  return some;
}

bool region_keys::trim(std::size_t entries_max) {
  bool some = false;
  while (known_.size() > entries_max) {
    auto oldest = known_.end();
    for (auto i = known_.begin(); i != known_.end(); ++i)
      if (
        i->second.asked == 0 &&
        (oldest == known_.end() || i->second.used_at < oldest->second.used_at))
        oldest = i;
    if (oldest == known_.end())
      return some;
    known_.erase(oldest);
    some = true;
  }
  return some;
}

void region_keys::clear() {
  known_.clear();
  questions_.clear();
}

} // namespace millrace::transport::verbs
