// The events on the files below one directory. The recorder writes them down, and crash images are
// made from them.
// Used by the recorder, by histories, and by disks of simulated machines.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::testing::disk {

enum class event_kind : std::uint8_t {
  file_made,      // name `path` for the new file `id`
  linked,         // another name `path` for the file `id`
  directory_made, // at `path`
  renamed,        // the file `id` from `other` to `path`
  removed,        // the name `path`, of a file or a directory
  written,        // data at `offset`
  written_back,   // the same, already on the medium: msync
  resized,        // to `offset` bytes
  allocated,      // at least `offset` bytes; new ones are 0
  zeroed,         // `size_bytes` from `offset`, a hole
  synced,         // the file `id`
  names_synced,   // of the directory `path`
  said,           // data went to standard output
  unknown         // a call that the recorder does not understand: `path` says which
};

/// A record of the log. The path, the other path and, of what was written or said, `size_bytes` of
/// data follow.
struct event_head {
  event_kind kind = event_kind::unknown;
  std::uint32_t path_bytes = 0;
  std::uint32_t other_bytes = 0;
  std::uint64_t id = 0; // of a file, whatever its names are
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

/// True when data follows the paths.
constexpr bool has_data(event_kind kind) noexcept {
  return kind == event_kind::written || kind == event_kind::written_back ||
    kind == event_kind::said;
}

/// A record, read back. Paths are as they were recorded.
struct event {
  event_head head;
  std::string path, other, data;
};

} // namespace millrace::testing::disk
