// The kill points of a pool, all of which the code passes. Read by crash tests.
#pragma once

#include <array>
#include <string_view>

namespace millrace::storage::pmem {

inline constexpr std::array<std::string_view, 27> kill_points = {
  "pmem.create.before_link",    "pmem.enroll.reserved",       "pmem.enroll.before_publish",
  "pmem.enroll.after_publish",  "pmem.leave.after_publish",   "pmem.begin.before_publish",
  "pmem.begin.after_publish",   "pmem.commit.before_write",   "pmem.persist.before",
  "pmem.persist.after",         "pmem.done.before_publish",   "pmem.done.after_publish",
  "pmem.erase.before_publish",  "pmem.erase.after_publish",   "pmem.mark.before_publish",
  "pmem.mark.after_publish",    "pmem.forget.before_publish", "pmem.forget.after_publish",
  "pmem.free.before_publish",   "pmem.free.after_publish",    "pmem.repack.reserved",
  "pmem.repack.before_publish", "pmem.repack.after_publish",  "pmem.store.reserved",
  "pmem.store.before_publish",  "pmem.store.after_publish",   "pmem.pin.after_publish",
};

} // namespace millrace::storage::pmem
