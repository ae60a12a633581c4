// Proves that a scenario finds a defect. Used by the scenarios' tests.
#pragma once

#include <millrace/core/planted_defect.hpp>
#include <millrace/tests/support/seeds.hpp>

#include <boost/test/unit_test.hpp>

#include <array>
#include <cstddef>
#include <functional>
#include <iostream>
#include <ostream>

namespace millrace {

inline std::ostream& operator<<(std::ostream& out, defect one) {
  constexpr std::array names{
    "none",
    "lost_withdrawal",
    "deadline_not_armed",
    "older_version_kept",
    "awaited_step_overwritten",
    "slot_reused_while_read",
    "frames_reordered",
    "published_before_durable",
    "segment_not_synced",
    "index_not_synced",
    "output_not_synced",
    "tick_never_rests",
    "durable_before_published",
    "durable_never_answered",
    "staging_lease_kept",
    "slot_lease_kept",
    "views_not_compared"};
  return out << names.at(static_cast<std::size_t>(one));
}

} // namespace millrace

namespace millrace::sim {

/// Runs seeds with a defect turned on until one breaks a promise; 2,000 at most. Without the
/// defect, that seed must break none.
inline void find_planted(defect one, const std::function<void(std::uint64_t)>& run) {
  planted_defect = one;
  auto found = testing::first_that_fails(2000, run);
  planted_defect = defect::none;
  BOOST_TEST(found.why != "");
  BOOST_CHECK_NO_THROW(run(found.seed));
  std::cout << one << ": seed " << found.seed << ": " << found.why << std::endl;
}

} // namespace millrace::sim
