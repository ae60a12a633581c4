// Proves that a scenario finds a defect. Used by the scenarios' tests.
#pragma once

#include <millrace/core/planted_defect.hpp>
#include <millrace/tests/support/seeds.hpp>

#include <boost/test/unit_test.hpp>

#include <array>
#include <cstddef>
#include <exception>
#include <functional>
#include <iostream>
#include <ostream>
#include <string_view>

namespace millrace::sim {

/// How a defect shows: words of the promise that it breaks.
struct planted_kind {
  const char* name;
  const char* breaks;
};

inline constexpr std::array<planted_kind, 24> planted_kinds{{
  {"none", ""},
  {"lost_withdrawal", "stays exposed"},
  {"deadline_not_armed", "requests"},
  {"older_version_kept", "must be"},
  {"awaited_step_overwritten", "all ranks had saved"},
  {"slot_reused_while_read", "checksum"},
  {"frames_reordered", "undisturbed"},
  {"published_before_durable", "checksum"},
  {"segment_not_synced", "checksum"},
  {"index_not_synced", "the index"},
  {"output_not_synced", "what was flushed"},
  {"tick_never_rests", "has a timer"},
  {"durable_before_published", "all ranks had saved"},
  {"durable_never_answered", "`durable`"},
  {"staging_lease_kept", "budget"},
  {"slot_lease_kept", "goes on"},
  {"views_not_compared", "must be"},
  {"resumed_behind_reads", "left out"},
  {"set_lease_kept", "data server"},
  {"home_published_first", "whole, or not at all"},
  {"lost_part_misplaced", "bytes of sample"},
  {"stream_place_kept", "of the stream end"},
  {"late_samples_lost", "of the stream is given"},
  {"window_read_ended_early", "bytes of sample"},
}};

inline const planted_kind& kind_of(defect one) {
  return planted_kinds.at(static_cast<std::size_t>(one));
}

/// Runs seeds with a defect turned on until one breaks the promise that the defect is about; 2,000
/// at most. Without the defect, that seed must break none.
inline void find_planted(defect one, const std::function<void(std::uint64_t)>& run) {
  auto& kind = kind_of(one);
  planted_defect = one;
  auto found = testing::first_that_fails(2000, [&](std::uint64_t seed) {
    try {
      run(seed);
    } catch (const std::exception& other) {
      if (std::string_view{other.what()}.find(kind.breaks) != std::string_view::npos)
        throw;
      std::cout << kind.name << ": seed " << seed << ", besides: " << other.what() << std::endl;
    }
  });
  planted_defect = defect::none;
  BOOST_TEST(found.why != "");
  BOOST_CHECK_NO_THROW(run(found.seed));
  std::cout << kind.name << ": seed " << found.seed << ": " << found.why << std::endl;
}

} // namespace millrace::sim

namespace millrace {

inline std::ostream& operator<<(std::ostream& out, defect one) {
  return out << sim::kind_of(one).name;
}

} // namespace millrace
