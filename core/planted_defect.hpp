// Deliberate defects, which prove that the simulator finds defects of their kind. Storage, actors,
// transport and clients pass them.
#pragma once

#include <cstdint>

namespace millrace {

enum class defect : std::uint8_t {
  none,
  lost_withdrawal,          // memory stays exposed after its owner withdrew it
  deadline_not_armed,       // a provider's actor does not look at the deadlines of its requests
  older_version_kept,       // a store leaves an older version at another provider
  awaited_step_overwritten, // a rank that is ahead overwrites a step that others can complete
  slot_reused_while_read,   // a checkpoint's slot is filled while it is being restored
  frames_reordered,         // a channel accepts frames that overtook others
  published_before_durable, // a pool publishes bytes that it has not written back
  segment_not_synced,       // models in segment files are published before their bytes are durable
  index_not_synced,         // changes of an index are reported before they are durable
  output_not_synced,        // files of flushed steps get their names before their bytes are durable
  tick_never_rests,         // a provider's actor looks at deadlines although it has no request
  durable_before_published, // a save is called durable while its bytes are on their way
  durable_never_answered,   // some `durable` get no answer, and no client looks at deadlines
  staging_lease_kept,       // a block of staging memory does not come back
  slot_lease_kept,          // what has read a slot of a pool keeps it
  views_not_compared,       // a provider answers alone by the views that it had before its start
  resumed_behind_reads,     // a loader's state is where it reads ahead, not what it gives next
  set_lease_kept,           // a data server keeps a set for a reader that has gone
  home_published_first,     // the home's part of a set is published before the others
  lost_part_misplaced,      // samples of a lost part are looked for elsewhere in the files
  stream_place_kept,        // places that a lost producer was writing do not come back
  late_samples_lost,        // samples of a call that nobody waits for are not put back
  window_read_ended_early,  // a read by a window ends while files are still read into its memory
};

#if defined(MILLRACE_KILL_POINTS)
/// The defect that a test has turned on. Built in by the same option as the kill points.
inline constinit defect planted_defect = defect::none;
#else
inline constexpr defect planted_defect = defect::none;
#endif

inline bool is_planted(defect one) noexcept { return planted_defect == one; }

} // namespace millrace
