// What a listing over several providers found. Returned by `repository` and `checkpoints`.
#pragma once

#include <millrace/core/future.hpp>
#include <millrace/core/status.hpp>

#include <string>
#include <vector>

namespace millrace {

/// A provider that did not answer, and why.
struct silent_provider {
  std::string name; // empty: `why` names it
  status why;
};

/// The answers of all providers that gave one.
template <class Item>
struct listed {
  struct entry : Item {
    std::string provider; // the provider that keeps it
  };

  std::vector<entry> found;            // sorted by name
  std::vector<silent_provider> silent; // what they keep is not in `found`
  std::vector<entry> marks;            // erased models, kept for providers that are away
  /// For models: ready when the marks that nothing needs any more are removed, or when that has
  /// failed or the time of the listing is over. Those that are left are for a later listing.
  future<void> swept;
};

} // namespace millrace
