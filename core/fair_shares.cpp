// The counts of places by process and by user, and the rule of `fair_shares`.
#include <millrace/core/assert.hpp>
#include <millrace/core/fair_shares.hpp>

namespace millrace {

namespace {

template <class Counts, class Key>
std::uint64_t count_of(const Counts& counts, const Key& key) {
  auto found = counts.find(key);
  return found == counts.end() ? 0 : found->second;
}

// So many parties are remembered although they hold nothing, since most of them come again.
constexpr std::size_t idle_max = 16;

template <class Counts, class Key>
void take_from(Counts& counts, const Key& key, std::uint64_t count) {
  auto found = counts.find(key);
  MILLRACE_ASSERT(found != counts.end() && found->second >= count);
  found->second -= count;
  if (found->second == 0 && counts.size() > idle_max)
    counts.erase(found);
}

} // namespace

bool fair_shares::fits(const party& who, std::uint64_t count) const {
  auto free = places_ - taken_;
  auto open = who.privileged ? free : free - std::min(free, kept_);
  if (count > open)
    return false;
  if (who.process.is_nil())
    return true;
  auto of_process = count_of(by_process_, who.process);
  if (of_process > 0 && of_process + count > free)
    return false;
  auto of_owner = count_of(by_owner_, who.owner);
  return who.privileged || of_owner == 0 || (of_owner + count) / owner_factor < free;
}

bool fair_shares::take(const party& who, std::uint64_t count) {
  if (!fits(who, count))
    return false;
  auto& of_process = by_process_[who.process];
  auto& of_owner = by_owner_[who.owner];
  taken_ += count;
  of_process += count;
  of_owner += count;
  return true;
}

void fair_shares::give_back(const party& who, std::uint64_t count) {
  taken_ -= count;
  take_from(by_process_, who.process, count);
  take_from(by_owner_, who.owner, count);
}

std::uint64_t fair_shares::taken_by(const party& who) const {
  return count_of(by_process_, who.process);
}

std::shared_ptr<void> lend_place(std::shared_ptr<fair_shares> shares, const party& who) {
  if (!shares->take(who))
    return nullptr;
  auto* place = shares.get();
  return {place, [shares = std::move(shares), who](void*) { shares->give_back(who); }};
}

result<std::shared_ptr<void>> lent_places::lend(party who, std::uint64_t count) {
  if (auto bad = take(who, count); !bad.ok())
    return fail(bad);
  return std::shared_ptr<void>{
    this, [self = shared_from_this(), who = std::move(who), count](void*) {
      self->give_back(who, count);
    }};
}

status lent_places::take(const party& who, std::uint64_t count) {
  std::lock_guard guard{mutex_};
  auto is_bound = who.privileged && shares_.kept() == 0;
  auto has = is_bound ? shares_.take({who.owner, who.process}, count) : shares_.take(who, count);
  if (has)
    return {};
  return {
    errc::busy,
    "{} of {} {} are taken, {} of them by this process, which gets no {} more",
    shares_.taken(),
    shares_.places(),
    what_,
    shares_.taken_by(who),
    count};
}

void lent_places::give_back(const party& who, std::uint64_t count) {
  std::lock_guard guard{mutex_};
  shares_.give_back(who, count);
}

std::uint64_t lent_places::taken() const {
  std::lock_guard guard{mutex_};
  return shares_.taken();
}

} // namespace millrace
