// What a node's servers lend to processes: the numbers by which those name it, and who owns what is
// made for them. Used by the servers of sets, of streams and of groups.
#pragma once

#include <millrace/actors/service.hpp>
#include <millrace/core/ids.hpp>
#include <millrace/storage/samples/sample_pool.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

namespace millrace::actors {

/// Returns who owns what the asker creates: "user 1000".
inline std::string owner_of(const asker& from) {
  return from.holder.owner.empty() ? storage::samples::process_owner() : from.holder.owner;
}

/// Finds a lease of a process by its number, or, with the number 0, by the mark with which it was
/// opened.
template <class Lease>
auto find_lease(
  std::map<std::uint64_t, Lease>& leases, std::uint64_t number, const decltype(Lease::mark)& mark,
  const asker& from) {
  auto found = number != 0 || mark.is_nil()
    ? leases.find(number)
    : std::ranges::find_if(leases, [&](auto& one) { return one.second.mark == mark; });
  return found != leases.end() && found->second.peer == from.peer ? found : leases.end();
}

/// Returns a number that cannot be guessed, and that no lease has: not 0.
template <class Lease>
std::uint64_t unused_number(const std::map<std::uint64_t, Lease>& leases) {
  std::uint64_t number = 0;
  while (number == 0 || leases.contains(number))
    random_bytes(&number, sizeof(number));
  return number;
}

} // namespace millrace::actors
