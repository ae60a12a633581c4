// Which process an object belongs to, and what becomes of objects in a forked child.
// Used by futures, by engines, and by what a process has one of.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace millrace {

/// Remembers the process that made an object.
///
/// *Problem*: a forked child has a copy of each object of its parent, and the descriptors and
/// shared memory below, but none of the threads. What uses such an object waits for ever, or sends
/// messages as the parent. So the object must know where it was made, at the cost of one load.
/// Threads: any.
class process_mark {
public:
  /// Marks the calling process.
  process_mark() noexcept;

  /// Returns false in a child that was forked after the mark was made.
  bool is_here() const noexcept { return forks_ == forks_before.load(std::memory_order_relaxed); }
  /// Returns the number that the marked process has on its host.
  std::uint32_t process() const noexcept { return process_; }

private:
  // The forks between the first process that made a mark and this one.
  static constinit std::atomic<std::uint32_t> forks_before;

  std::uint32_t forks_;
  std::uint32_t process_;
};

/// Returns a pointer to `made` that owns it in the process of `mark`. In a forked child the last
/// owner leaks the object: its destructor would wait for threads that are not there, and close what
/// the parent still uses.
template <class T>
std::shared_ptr<T> kept_from_forks(T* made, process_mark mark = {}) {
  return {made, [mark](T* object) {
            if (mark.is_here())
              delete object;
          }};
}

/// Returns the one `T` of this process. It is made at first use, perhaps twice, and is never
/// destroyed. A forked child makes another one, since a thread of its parent may have held the lock
/// of that one.
template <class T>
T& one_per_process() {
  struct owned {
    process_mark mark;
    T object;
  };
  static constinit std::atomic<owned*> newest = nullptr;
  auto* found = newest.load(std::memory_order_acquire);
  while (!found || !found->mark.is_here()) {
    auto made = std::make_unique<owned>();
    if (newest.compare_exchange_strong(found, made.get()))
      found = made.release();
  }
  return found->object;
}

} // namespace millrace
