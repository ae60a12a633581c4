// The table of registrations: a map with random keys.
#include <millrace/actors/checkpoint/registration_table.hpp>

namespace millrace::actors {

std::uint64_t registration_table::add(registration entry) {
  std::uint64_t number = 0;
  // 0 means "none" in requests.
  while (number == 0 || entries_.contains(number))
    random_bytes(&number, sizeof(number));
  entries_.emplace(number, std::move(entry));
  return number;
}

const registration* registration_table::find(std::uint64_t number, const asker& from) const {
  auto found = entries_.find(number);
  return found != entries_.end() && found->second.owner.peer == from.peer ? &found->second
                                                                          : nullptr;
}

registration registration_table::remove(std::uint64_t number) {
  return std::move(entries_.extract(number).mapped());
}

std::vector<registration> registration_table::remove_all_through(const caf::actor_addr& gone) {
  std::vector<registration> out;
  for (auto i = entries_.begin(); i != entries_.end();) {
    if (i->second.through == gone) {
      out.push_back(std::move(i->second));
      i = entries_.erase(i);
    } else {
      ++i;
    }
  }
  return out;
}

void registration_table::remove_puller(const caf::actor_addr& gone) {
  std::erase_if(entries_, [&](auto& one) { return one.second.puller.address() == gone; });
}

std::vector<registration> registration_table::remove_all() {
  std::vector<registration> out;
  for (auto& [number, entry] : std::exchange(entries_, {}))
    out.push_back(entry);
  return out;
}

} // namespace millrace::actors
