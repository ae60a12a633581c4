// Grants places when they come back.
#include <millrace/actors/staging/shared_places.hpp>

#include <algorithm>
#include <vector>

namespace millrace::actors {

void shared_places::ask(party who, std::uint64_t count, completion<std::shared_ptr<void>> granted) {
  {
    std::lock_guard guard{mutex_};
    count = std::min(count, shares_.places());
    if (!shares_.take(who, count)) {
      waiting_.push(std::move(who), {count, std::move(granted)});
      return;
    }
  }
  granted(lend(who, count));
}

std::shared_ptr<void> shared_places::lend(const party& who, std::uint64_t count) {
  return {this, [self = shared_from_this(), who, count](void*) { self->take_back(who, count); }};
}

void shared_places::take_back(const party& who, std::uint64_t count) {
  std::vector<std::pair<party, request>> next;
  {
    std::lock_guard guard{mutex_};
    shares_.give_back(who, count);
    auto may = [this](auto& p, auto& r) { return shares_.fits(p, r.count); };
    while (auto one = waiting_.next(may)) {
      shares_.take(one->first, one->second.count);
      next.push_back(std::move(*one));
    }
  }
  for (auto& [p, r] : next)
    r.granted(lend(p, r.count));
}

} // namespace millrace::actors
