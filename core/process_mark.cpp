// Counts forks, in the child, before the program goes on there.
#include <millrace/core/assert.hpp>
#include <millrace/core/process_mark.hpp>

#include <pthread.h>
#include <unistd.h>

namespace millrace {

namespace {

constinit std::atomic<std::uint32_t> process_number = 0;

void note_process() noexcept { process_number = static_cast<std::uint32_t>(::getpid()); }

} // namespace

constinit std::atomic<std::uint32_t> process_mark::forks_before = 0;

process_mark::process_mark() noexcept {
  static const bool counted = [] {
    note_process();
    return ::pthread_atfork(nullptr, nullptr, [] {
             ++forks_before;
             note_process();
           }) == 0;
  }();
  MILLRACE_ASSERT(counted);
  forks_ = forks_before.load(std::memory_order_relaxed);
  process_ = process_number.load(std::memory_order_relaxed);
}

} // namespace millrace
