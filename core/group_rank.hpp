// One process of a group. Nodes send it to the members; programs get it from `broadcast_group`.
#pragma once

#include <millrace/core/inspect.hpp>

#include <cstdint>
#include <string>

namespace millrace {

struct group_rank {
  std::uint32_t rank = 0;
  std::string who; // as it named itself

  friend bool operator==(const group_rank&, const group_rank&) = default;
};
MILLRACE_INSPECT(group_rank, x.rank, x.who)

} // namespace millrace
